"""Weights files as they lie on disk: what is read of sound ones, and what damaged and hostile ones are answered with."""

from __future__ import annotations

import json
import struct
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import save_file

from steerserve import messages as m
from steerserve.engines.checkpoint.client import CheckpointEngine
from steerserve.errors import Refusal
from steerserve.rules.units import MIB
from steerserve.worker import memory
from steerserve.worker.sae import npz
from steerserve.worker.sae.files import Info, open_tensors, read_json
from tests.worker.sae import checkpoints as disk
from tests.worker.sae.hostile import (
    HOSTILE,
    good_npz,
    good_safetensors,
    good_torch,
    ramp,
    sentinel_of,
    torch_calling,
)
from tests.worker.saes import source

DTYPES = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool".split()
Writer = Callable[[Path], None]


def refused(work: Callable[[], Any]) -> Refusal:
    with pytest.raises(Refusal) as found:
        work()
    assert found.value.code == "SAE_LOAD_FAILED"
    return found.value


# ---------------------------------------------------------------- sound files


def safetensors_file(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    save_file(tensors, path)
    return path


def torch_zip(path: Path, value: Any) -> Path:
    torch.save(value, path)
    return path


def torch_legacy(path: Path, value: Any) -> Path:
    torch.save(value, path, _use_new_zipfile_serialization=False)
    return path


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("writer", "name"),
    [
        (safetensors_file, "a.safetensors"),
        (torch_zip, "a.pt"),
        (torch_zip, "a.pth"),
        (torch_legacy, "a.bin"),
    ],
)
def test_every_dtype_is_read_as_it_was_written(
    tmp_path: Path, writer: Callable[[Path, Any], Path], name: str, dtype: str
) -> None:
    given = {"W": torch.arange(12).reshape(3, 4).to(getattr(torch, dtype)), "b": torch.zeros(0)}
    found = open_tensors(writer(tmp_path / name, given))
    size = given["W"].element_size() * 12
    assert found.infos == {"W": Info((3, 4), dtype, size), "b": Info((0,), "float32", 0)}
    assert found.size_bytes == size
    assert torch.equal(found.read("W"), given["W"])
    assert found.read("W").dtype == given["W"].dtype


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_is_read_in_every_order_and_dtype(tmp_path: Path, save: Callable[..., None]) -> None:
    given = {
        "rows": ramp(3, 4),
        "columns": np.asfortranarray(ramp(3, 4)),
        "swapped": ramp(3, 4).astype(">f8"),
        "half": ramp(5).astype(np.float16),
        "mask": np.array([True, False]),
        "k": np.int64(7),
        "nothing": ramp(0, 4),
    }
    save(tmp_path / "params.npz", activation="jumprelu", **given)
    found = open_tensors(tmp_path / "params.npz")
    assert found.scalars == {"activation": "jumprelu"}
    for name, array in given.items():
        assert np.array_equal(found.read(name).numpy(), array), name
    assert found.infos["swapped"] == Info((3, 4), "float64", 96)
    assert found.infos["k"] == Info((), "int64", 8)


@pytest.mark.parametrize("writer", [torch_zip, torch_legacy])
def test_nested_dicts_are_seen_flat_and_wrappers_fall_away(
    tmp_path: Path, writer: Callable[[Path, Any], Path]
) -> None:
    weights = OrderedDict(weight=torch.ones(2, 3), bias=torch.zeros(3))
    given = {
        "model": {"state_dict": {"encoder": weights, "k": 32}},
        "optimizer": {"step": [torch.zeros(1)]},
        "cfg": {"d_in": 3, "dtype": torch.float32, "layers": (1, 2), "more": {"act": "relu"}},
        "epoch": 4,
        "note": "best",
    }
    found = open_tensors(writer(tmp_path / "sae.pt", given))
    assert set(found.infos) == {"encoder.weight", "encoder.bias", "optimizer.step.0"}
    assert torch.equal(found.read("encoder.weight"), weights["weight"])
    assert found.scalars == {"k": 32, "epoch": 4, "note": "best"}
    assert found.config == {
        "d_in": 3,
        "dtype": "torch.float32",
        "layers": [1, 2],
        "more": {"act": "relu"},
    }


def test_a_wrapper_beside_tensors_is_a_prefix(tmp_path: Path) -> None:
    given = {"model": {"w": torch.ones(1)}, "w": torch.zeros(1)}
    found = open_tensors(torch_zip(tmp_path / "a.pt", given))
    assert set(found.infos) == {"model.w", "w"}


@pytest.mark.parametrize("writer", [torch_zip, torch_legacy])
def test_tied_and_transposed_weights_are_sound(
    tmp_path: Path, writer: Callable[[Path, Any], Path]
) -> None:
    matrix = torch.nn.Parameter(torch.arange(600.0).reshape(20, 30))
    given = {"W_dec": matrix, "W_enc": matrix.T, "row": matrix[3]}
    found = open_tensors(writer(tmp_path / "a.pt", given))
    for name, tensor in given.items():
        assert torch.equal(found.read(name), tensor)
        assert not found.read(name).requires_grad


def test_no_tensor_is_read_before_it_is_asked_for(tmp_path: Path) -> None:
    """Files with holes: nothing but their headers takes a place on the disk, and none of it is read."""
    size = 64 << 30
    header = json.dumps({"W": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}})
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode())
    with path.open("r+b") as file:
        file.truncate(8 + len(header) + size)
    found = open_tensors(path)
    assert found.infos == {"W": Info((size // 4,), "float32", size)}


def test_a_missing_tensor_is_named_with_those_found(tmp_path: Path) -> None:
    found = open_tensors(safetensors_file(tmp_path / "a.safetensors", {"W_enc": torch.ones(2, 3)}))
    assert "W_enc [2, 3]" in refused(lambda: found.read("W_dec")).message


def test_memory_that_runs_out_while_reading_is_not_the_files_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "a.npz", W=ramp(4))
    found = open_tensors(tmp_path / "a.npz")

    def full(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(npz.np, "empty", full)
    with pytest.raises(MemoryError):
        found.read("W")


# ---------------------------------------------------------------- hostile and damaged files


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_by_name_and_fault(tmp_path: Path, name: str) -> None:
    suffix, write, says = HOSTILE[name]
    path = tmp_path / f"weights{suffix}"
    write(path)

    def use() -> None:
        tensors = open_tensors(path)
        for tensor in tensors.infos:
            tensors.read(tensor)

    refusal = refused(use)
    assert refusal.message.startswith(path.name)
    assert says in refusal.message
    assert refusal.details["file"] == path.name
    assert str(tmp_path) not in refusal.message
    assert "\n" not in refusal.message
    assert not sentinel_of(path).exists()
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_the_sentinel_would_tell(tmp_path: Path) -> None:
    """The same file as in the table, read without care."""
    path = tmp_path / "weights.pt"
    torch_calling(path)
    torch.load(path, weights_only=False)
    assert sentinel_of(path).exists()


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert refused(lambda: open_tensors(tmp_path / "a.npz")).message == "a.npz is missing"
    assert refused(lambda: open_tensors(tmp_path / ("a" * 300 + ".npz"))).message.endswith(
        "missing"
    )


def test_compressed_arrays_must_fit_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "a.npz", W=ramp(1000))
    np.savez(tmp_path / "b.npz", W=ramp(1000))
    monkeypatch.setattr(memory, "free", lambda _: 4000)
    assert "4000 are free" in refused(lambda: open_tensors(tmp_path / "a.npz")).message
    assert open_tensors(tmp_path / "b.npz").size_bytes == 4000


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pt", ".bin"])
def test_no_damage_gets_through_as_anything_but_a_refusal(tmp_path: Path, suffix: str) -> None:
    """Bytes overwritten at random, and cuts at random places: a refusal, or tensors as their headers say."""
    path = tmp_path / f"a{suffix}"
    {
        ".safetensors": good_safetensors,
        ".npz": good_npz,
        ".pt": good_torch,
        ".bin": lambda p: torch_legacy(p, {"W_dec": torch.ones(64, 64)}) and None,
    }[suffix](path)
    whole = path.read_bytes()
    draw = np.random.default_rng(0)
    outcomes = set()
    for _ in range(150):
        raw = bytearray(whole)
        near = [draw.integers(min(2000, len(raw))), len(raw) - 1 - draw.integers(700)]
        for at in near[: draw.integers(1, 3)]:
            raw[at] = draw.integers(256)
        path.write_bytes(raw[: draw.integers(len(raw))] if draw.random() < 0.2 else raw)
        try:
            tensors = open_tensors(path)
            for name, info in tensors.infos.items():
                assert tuple(tensors.read(name).shape) == info.shape
            outcomes.add("read")
        except Refusal as refusal:
            outcomes.add(refusal.code)
    assert outcomes == {"read", "SAE_LOAD_FAILED"}


# ---------------------------------------------------------------- through an engine process

LEFT_MAXIMUM = 100 * MIB
SUFFIXED = {n: row for n, row in HOSTILE.items() if row[0] in (".safetensors", ".npz", ".pt")}
PLACES: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    # suffix: where a published SAE has such a file, and what lies beside it
    ".safetensors": (
        "blocks.1.hook_resid_post/sae_weights.safetensors",
        {"cfg.json": {"architecture": "standard", "d_in": 16, "hook_name": "hook_embed"}},
    ),
    ".npz": ("layer_20/width_16k/average_l0_71/params.npz", {}),
    ".pt": (
        "resid_post_layer_12/trainer_0/ae.pt",
        {"config.json": {"trainer": {"dict_class": "AutoEncoder", "activation_dim": 16}}},
    ),
}


async def inspected(engine: CheckpointEngine, path: Path) -> Refusal | None:
    try:
        await engine.ask(m.Inspect(source=source(path)))
    except Refusal as refusal:
        return refusal
    return None


async def test_an_engine_answers_hostile_saes_and_serves_on(
    engine: CheckpointEngine, tmp_path: Path
) -> None:
    """Each file of the table, laid out as an SAE is published, and by itself."""
    process = psutil.Process(engine.pid)
    sound = disk.gemma_scope(tmp_path / "sound")
    assert (await engine.ask(m.Inspect(source=sound.source()))).claims.d_sae == disk.D_SAE
    # counted after the first answer, because an engine that still starts opens its own files
    files = process.num_fds()
    before = process.memory_info().rss
    for name, (suffix, write, says) in SUFFIXED.items():
        root = tmp_path / name
        place, beside = PLACES[suffix]
        path = root / place
        path.parent.mkdir(parents=True)
        write(path)
        for other, config in beside.items():
            path.with_name(other).write_text(json.dumps(config))
        there = sorted(root.rglob("*"))
        for source_path in (path.parent, path):
            refusal = await inspected(engine, source_path)
            assert refusal is not None, name
            assert refusal.code == "SAE_LOAD_FAILED", (name, refusal.message)
            assert str(tmp_path) not in refusal.message, name
            assert says in refusal.message or "calls" not in says, (name, refusal.message)
        assert sorted(root.rglob("*")) == there, name
    assert process.is_running()
    assert process.num_fds() == files
    assert process.memory_info().rss - before < LEFT_MAXIMUM
    assert (await engine.ask(m.Inspect(source=sound.source()))).claims.d_sae == disk.D_SAE


# ---------------------------------------------------------------- configurations


def test_configurations_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('\ufeff{"k": 1, "k": 2, "s": "\\ud83d\\ude00"}', "utf-8")
    assert read_json(tmp_path / "a.json") == {"k": 2, "s": "\U0001f600"}


@pytest.mark.parametrize(
    ("name", "raw", "says"),
    [
        ("a.json", b"", "empty"),
        ("a.json", b"{", "not valid JSON"),
        ("a.json", b"[1]", "not a JSON object"),
        ("a.json", b"null", "not a JSON object"),
        ("a.json", b"\xff\xfe{", "not valid JSON"),
        ("a.json", b'{"a":' * 100_000, "not valid JSON"),
        ("a.json", b'{"a": ' + b"1" * 10_000 + b"}", "not valid JSON"),
        ("a.json", b'{"a": "\xff"}', "not valid JSON"),
        ("a.json", b" " * 1_000_001, "larger than 1000000 bytes"),
    ],
)
def test_a_damaged_configuration_is_refused(
    tmp_path: Path, name: str, raw: bytes, says: str
) -> None:
    (tmp_path / name).write_bytes(raw)
    assert refused(lambda: read_json(tmp_path / name)).message == f"{name} is {says}"
