"""Checkpoint folders on this machine: which may be named, and what damaged or hostile ones are answered."""

from __future__ import annotations

import json
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from steerserve.errors import Refusal
from steerserve.files import local
from tests.doubles import write_checkpoint, write_tensors
from tests.refusals import refusal_of

INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "model")


def refused(folder: Path) -> Refusal:
    refusal = refusal_of(local.read_model, folder)
    assert refusal.code == "INVALID_LOCAL_PATH"
    json.dumps(refusal.details)
    return refusal


def header(**tensor: Any) -> dict[str, Any]:
    return {"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]} | tensor}


# ---------------------------------------------------------------------- which folders


def test_a_folder_is_resolved_through_its_links(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    assert local.resolve(str(tmp_path / "link")) == folder.resolve()
    assert local.resolve(f"{folder}/../model/.") == folder.resolve()


@pytest.mark.shows("download-errors.6")
@pytest.mark.parametrize(
    "named",
    [
        "",
        "model",
        "./model",
        "~/model",
        "../etc",
        "/nowhere/at/all",
        "/",
        "//",
        "/etc",
        "//etc",
        "/tmp/../etc",
        "/proc/self/cwd/../../etc",
        "/usr/lib",
        "/etc/passwd",
        "/tmp\x00/etc",
        "\x00",
        "/" + "x" * 300,
        "/tmp/" + "x/" * 3000,
        "/tmp/\ud800",
        "file:///tmp",
    ],
)
def test_a_path_that_may_not_be_named_is_refused(named: str) -> None:
    refusal = refusal_of(local.resolve, named)
    assert refusal.code == "INVALID_LOCAL_PATH"
    assert len(refusal.details["local_path"]) <= 500


@pytest.mark.parametrize("target", ["/etc", "/", "/proc/self", "/usr/share"])
def test_a_link_into_a_protected_folder_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "link").symlink_to(target)
    assert refusal_of(lambda: local.resolve(str(tmp_path / "link"))).code == "INVALID_LOCAL_PATH"


def test_a_loop_of_links_a_dangling_link_and_a_file_are_refused(
    tmp_path: Path, folder: Path
) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    for path in (tmp_path / "loop", tmp_path / "dangling", folder / WEIGHTS):
        assert refusal_of(local.resolve, str(path)).code == "INVALID_LOCAL_PATH"


# ---------------------------------------------------------------------- what they hold


def test_a_checkpoint_is_read_from_its_headers(folder: Path) -> None:
    found = local.read_model(folder)
    assert (found.architecture, found.dtype, found.parameters) == (
        "TinyForCausalLM",
        "float32",
        4,
    )
    assert found.size_bytes == sum(file.stat().st_size for file in folder.iterdir())


def test_the_files_of_an_index_are_read_together(folder: Path) -> None:
    write_tensors(folder / "part-2.safetensors", header(), bytes(16))
    index = {"weight_map": {"a": WEIGHTS, "b": "part-2.safetensors", "c": WEIGHTS}}
    (folder / INDEX).write_text(json.dumps(index))
    assert local.read_model(folder).parameters == 8


def test_weights_that_are_links_into_a_cache_are_read(folder: Path, tmp_path: Path) -> None:
    (folder / WEIGHTS).rename(tmp_path / "blob")
    (folder / WEIGHTS).symlink_to(tmp_path / "blob")
    assert local.read_model(folder).parameters == 4


def test_weights_without_a_header_have_no_parameter_count(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    assert local.read_model(folder).parameters is None


@pytest.mark.parametrize("kept", [0, 4, 8, 20, -1])
def test_cut_short_weights_are_refused(folder: Path, kept: int) -> None:
    file = folder / WEIGHTS
    file.write_bytes(file.read_bytes()[:kept])
    assert WEIGHTS in refused(folder).message


@pytest.mark.parametrize("length", [0, 1 << 62, 2**64 - 1, 200_000_000])
def test_a_header_length_beyond_the_file_is_refused(folder: Path, length: int) -> None:
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", length) + b"{}")
    refused(folder)


@pytest.mark.parametrize(
    "damaged",
    [
        b"{",
        b"not json",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"5",
        b'"text"',
        b"[" * 100_000,
        {"w": None},
        {"w": []},
        {"w": {}},
        header(shape=None),
        header(shape=5),
        header(shape=["x"]),
        header(shape=[None]),
        b'{"w": {"dtype": "F32", "shape": [1e999], "data_offsets": [0, 16]}}',
        b'{"w": {"dtype": "F32", "shape": [NaN], "data_offsets": [0, 16]}}',
        header(shape=[-1, 4]),
        header(shape=[2**40, 2**40]),
        header(shape=[0, 10**30], data_offsets=[0, 0]),
        header(shape=[1] * 17, data_offsets=[0, 4]),
        header(data_offsets=None),
        header(data_offsets=[]),
        header(data_offsets=[0]),
        header(data_offsets=[0, None]),
        header(data_offsets=[0, "16"]),
        header(data_offsets=[0, {}]),
        header(data_offsets=[0, 1 << 70]),
        header(data_offsets=[0, -16]),
        b'{"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, NaN]}}',
    ],
    ids=lambda damaged: repr(damaged)[:60],
)
def test_a_damaged_header_is_refused(folder: Path, damaged: Any) -> None:
    write_tensors(folder / WEIGHTS, damaged, bytes(16))
    assert WEIGHTS in refused(folder).message


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "/etc/passwd",
        "sub/x.safetensors",
        "..",
        ".",
        "",
        "missing.safetensors",
        "a\x00b",
        "x" * 300,
        "\ud800",
        "./model.safetensors",
    ],
)
def test_an_index_may_name_only_files_of_its_folder(
    folder: Path, tmp_path: Path, name: str
) -> None:
    write_tensors(tmp_path / "x.safetensors", header(), bytes(16))
    (folder / "sub").mkdir()
    write_tensors(folder / "sub" / "x.safetensors", header(), bytes(16))
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": WEIGHTS, "b": name}}))
    refused(folder)


@pytest.mark.parametrize(
    "index", ["{}", "[]", "null", "{", '{"weight_map": []}', '{"weight_map": {"a": 5}}', ""]
)
def test_a_damaged_index_is_refused(folder: Path, index: str) -> None:
    (folder / INDEX).write_text(index)
    assert INDEX in refused(folder).message


@pytest.mark.parametrize("config", ["", "{", "[]", "null", "[" * 100_000, "\x00"])
def test_a_damaged_config_is_refused(folder: Path, config: str) -> None:
    (folder / "config.json").write_text(config)
    assert "config.json" in refused(folder).message


@pytest.mark.parametrize("architectures", [None, [], "text", {}, 5])
def test_a_config_that_names_no_architecture_is_taken_as_unknown(
    folder: Path, architectures: Any
) -> None:
    (folder / "config.json").write_text(json.dumps({"architectures": architectures}))
    assert local.read_model(folder).architecture is None


def test_a_folder_without_config_or_weights_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / WEIGHTS).unlink()
    assert "no model weights" in refused(folder).message
    (tmp_path / "empty").mkdir()
    assert "config.json" in refused(tmp_path / "empty").message


@pytest.mark.parametrize("name", ["config.json", INDEX, WEIGHTS])
def test_a_folder_in_the_place_of_a_file_is_refused(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()
    refused(folder)


@pytest.mark.parametrize("name", ["config.json", INDEX, WEIGHTS])
def test_a_named_pipe_in_the_place_of_a_file_is_refused_without_reading_it(
    folder: Path, name: str
) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with ThreadPoolExecutor(1) as reader:
        reading = reader.submit(refused, folder)
        try:
            reading.result(1)
        finally:
            # a reader that waits at the pipe comes free when somebody opens it to write
            with suppress(OSError):
                os.close(os.open(folder / name, os.O_WRONLY | os.O_NONBLOCK))


def test_what_a_config_names_is_cut_and_cleaned(folder: Path) -> None:
    config = {"architectures": ["\ud800\u202eTiny\x00" + "x" * 10_000], "dtype": "f\n" * 10_000}
    (folder / "config.json").write_text(json.dumps(config))
    found = local.read_model(folder)
    assert (found.architecture, found.dtype) == ("Tiny" + "x" * 251, "f" * 20)
    odd = {"architectures": [{"a": 1}], "dtype": ["float32"]}
    (folder / "config.json").write_text(json.dumps(odd))
    found = local.read_model(folder)
    assert (found.architecture, found.dtype) == (None, None)


@pytest.mark.parametrize("name", ["config.json", WEIGHTS])
def test_a_file_that_may_not_be_read_is_refused(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def guard(original: Any) -> Any:
        def guarded(path: Path, *args: Any, **named: Any) -> Any:
            if path.name == name:
                raise PermissionError(13, "Permission denied", str(path))
            return original(path, *args, **named)

        return guarded

    for way in ("open", "read_bytes"):
        monkeypatch.setattr(Path, way, guard(getattr(Path, way)))
    refused(folder)


def test_a_folder_that_may_not_be_listed_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(path: Path) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", forbidden)
    assert "Permission denied" in refused(folder).message
    monkeypatch.setattr(Path, "is_dir", forbidden)
    assert refusal_of(lambda: local.resolve(str(folder))).code == "INVALID_LOCAL_PATH"
