"""Trained lenses in files of tuned-lens and of jlens, against their formulas in float64."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from steerserve.errors import Refusal
from steerserve.messages import LensRead
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.rows.lens_files import inspect, unembed_hash
from tests.refusals import refusal_of
from tests.worker.models import VOCABULARY
from tests.worker.rows.conftest import Pair
from tests.worker.running import Bench, words

TEXT = words(40)


def printed_hash(weight: Tensor) -> str:
    """The hash as tuned-lens computes it of the whole matrix."""
    text = np.array_str(weight.detach().float().numpy(), precision=1)
    return hashlib.sha256(text.encode()).hexdigest()


def tuned(
    folder: Path,
    model: Checkpoint,
    width: int | None = None,
    layers: int | None = None,
    **changes: Any,
) -> tuple[str, nn.ModuleList]:
    """A folder as TunedLens.save writes it, with a map for the stream before each block. Without a width and a number
    of layers these are the model's."""
    torch.manual_seed(3)
    width, layers = width or model.hidden_size, layers or model.layers
    maps = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])
    folder.mkdir()
    torch.save(maps.state_dict(), folder / "params.pt")
    config = {
        "base_model_name_or_path": "tiny",
        "d_model": width,
        "num_hidden_layers": layers,
        "bias": True,
        "base_model_revision": None,
        "unembed_hash": printed_hash(model.model.get_output_embeddings().weight),
        "lens_type": "linear_tuned_lens",
    }
    (folder / "config.json").write_text(json.dumps(config | changes))
    return str(folder), maps


def jacobians(model: Checkpoint, layers: list[int]) -> dict[int, Tensor]:
    draw = torch.Generator().manual_seed(4)
    shape = model.hidden_size, model.hidden_size
    return {layer: torch.randn(shape, generator=draw).half() for layer in layers}


def looked(model: Checkpoint, path: str, layers: list[int] | None = None) -> LensRead:
    bench = Bench(model)
    bench.lens(1, TEXT, layers, VOCABULARY, path=path)
    bench.run()
    assert not bench.refused
    return bench.lenses[1]


def refused(model: Checkpoint, path: str, layers: list[int] | None = None) -> Refusal:
    return refusal_of(Bench(model).lens, 1, TEXT, layers, path=path)


def check(found: LensRead, number: int, expected: Tensor) -> None:
    made = torch.zeros(len(found.tokens), VOCABULARY, dtype=torch.float64)
    for at, listed in enumerate(found.layers[number].positions):
        for one in listed:
            made[at, one.token] = one.probability
    torch.testing.assert_close(made, expected.softmax(-1), atol=3e-5, rtol=2e-3)


@pytest.mark.parametrize("variant", ["llama", "gemma2"])
def test_a_tuned_lens_maps_the_stream_before_a_block(
    pair: Pair, tmp_path: Path, variant: str
) -> None:
    model, truth = pair(variant)
    path, maps = tuned(tmp_path / "lens", model)
    found = looked(model, path)
    streams, _ = truth.streams(model.encode(TEXT, special=True))
    assert found.kind == "tuned"
    assert [one.layer for one in found.layers] == list(range(model.layers))
    for layer, stream in enumerate(streams):
        if layer + 1 < model.layers:
            # the stream after a block is the one before the next block
            with torch.no_grad():
                stream = stream + maps[layer + 1].double()(stream)
        check(found, layer, truth.logits(stream))


@pytest.mark.parametrize("variant", ["llama", "gemma2"])
@pytest.mark.parametrize("form", ["dict", "stacked", "parameters"])
def test_a_jacobian_lens_maps_the_stream_after_a_block(
    pair: Pair, tmp_path: Path, form: str, variant: str
) -> None:
    model, truth = pair(variant)
    maps = jacobians(model, list(range(model.layers - 1)))
    stored: Any = {"J": maps}
    if form == "stacked":
        stored = {"J": torch.stack(list(maps.values()))}
    if form == "parameters":
        stored = {"parameters": {"jacobians": maps}, "n_prompts": 3}
    file = tmp_path / "tiny_jacobian_lens.pt"
    torch.save(stored, file)
    found = looked(model, str(file))
    streams, _ = truth.streams(model.encode(TEXT, special=True))
    assert found.kind == "jacobian"
    for layer, stream in enumerate(streams):
        mapped = stream @ maps[layer].double().t() if layer in maps else stream
        check(found, layer, truth.logits(mapped))


def test_a_lens_has_the_layers_that_its_file_has(llama: Checkpoint, tmp_path: Path) -> None:
    file = tmp_path / "lens.pt"
    torch.save({"J": {}, "n": 1}, file)
    assert refused(llama, str(file)).code == "INVALID_LENS"
    few = jacobians(llama, [0])
    torch.save({"J": few}, file)
    last = llama.layers - 1
    assert [one.layer for one in looked(llama, str(file)).layers] == sorted({0, last})
    if last > 1:
        error = refused(llama, str(file), [1])
        assert (error.code, error.param) == ("INVALID_PARAMETER", "layers[0]")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"unembed_hash": "0" * 64}, "LENS_MISMATCH"),
        ({"width": 9}, "LENS_MISMATCH"),
        ({"layers": 9}, "LENS_MISMATCH"),
        # the matrices are others than the configuration says
        ({"d_model": 99}, "INVALID_LENS"),
        ({"num_hidden_layers": 99}, "INVALID_LENS"),
        ({"unembed_hash": None}, "INVALID_LENS"),
        ({"unembed_hash": "0"}, "INVALID_LENS"),
        ({"d_model": "wide"}, "INVALID_LENS"),
        ({"lens_type": "other"}, "INVALID_LENS"),
    ],
)
def test_a_lens_of_another_checkpoint_is_refused(
    llama: Checkpoint, tmp_path: Path, changes: dict[str, Any], code: str
) -> None:
    path, _ = tuned(tmp_path / "lens", llama, **changes)
    assert refused(llama, path).code == code


def test_a_lens_has_a_small_index(tmp_path: Path) -> None:
    """The interpreter that reads an index is the one that makes the tokens of others."""
    lens = {"J": torch.eye(4)[None]}
    many = lens | {f"x{number}": torch.ones(1) for number in range(2000)}
    torch.save(lens | {"x": [None] * 100_000}, tmp_path / "long.pt")
    torch.save(many, tmp_path / "many.pt")
    torch.save(lens, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    save_file(many, tmp_path / "many.safetensors")
    np.savez(tmp_path / "many.npz", **{name: one.numpy() for name, one in many.items()})
    told = {"long.pt": "index", "old.pt": "save it again"}
    for name in ("long.pt", "many.pt", "old.pt", "many.safetensors", "many.npz"):
        refusal = refusal_of(lambda name=name: inspect(str(tmp_path / name)))  # type: ignore[misc]
        assert refusal.code == "INVALID_LENS"
        assert told.get(name, "index") in refusal.message
    torch.save(lens | {f"J.{layer}": torch.eye(4) for layer in range(130)}, tmp_path / "deep.pt")
    assert len(inspect(str(tmp_path / "deep.pt")).layers) == 130


def test_what_is_no_lens_is_refused(llama: Checkpoint, tmp_path: Path) -> None:
    assert refused(llama, str(tmp_path)).code == "INVALID_LENS"
    wide = tmp_path / "wide.pt"
    torch.save({"J": {0: torch.ones(3, 3)}}, wide)
    assert refused(llama, str(wide)).code == "LENS_MISMATCH"
    deep = tmp_path / "deep.pt"
    torch.save({"J": jacobians(llama, [99])}, deep)
    assert refused(llama, str(deep)).code == "LENS_MISMATCH"
    mixed = tmp_path / "mixed.pt"
    torch.save({"J": {0: torch.ones(3, 3), 1: torch.ones(4, 4)}}, mixed)
    assert refused(llama, str(mixed)).code == "INVALID_LENS"
    code = tmp_path / "code.pt"
    torch.save({"J": print}, code)
    assert refused(llama, str(code)).code == "INVALID_LENS"


def test_the_headers_say_what_a_lens_is_for(llama: Checkpoint, tmp_path: Path) -> None:
    path, _ = tuned(tmp_path / "lens", llama)
    facts, last = inspect(path), llama.layers - 1
    assert (facts.kind, facts.layers) == ("tuned", list(range(last)))
    assert (facts.width, facts.model_layers) == (llama.hidden_size, llama.layers)
    assert facts.model_name == "tiny"
    assert facts.unembed_hash == printed_hash(llama.model.get_output_embeddings().weight)
    file = tmp_path / "lens.pt"
    torch.save({"J": jacobians(llama, [1, 0])}, file)
    facts = inspect(str(file))
    assert (facts.kind, facts.layers, facts.width) == ("jacobian", [0, 1], llama.hidden_size)
    assert (facts.model_layers, facts.model_name, facts.unembed_hash) == (None, None, None)
    assert facts.size_bytes == 2 * 2 * llama.hidden_size**2


@pytest.mark.parametrize("shape", [(3, 4), (30, 34), (7, 200), (5, 300), (400, 6), (600, 700)])
def test_the_hash_is_that_of_the_whole_matrix(shape: tuple[int, int]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 30
    for one in (weight, weight.bfloat16()):
        assert unembed_hash(one) == printed_hash(one)
