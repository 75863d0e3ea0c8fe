"""The content digest of models of this machine."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from steerserve.files.model_content import ReadingEnded, digest, stamp

FILES = {"config.json": b"{}", "model.safetensors": b"weights"}


def written(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def content(place: Path) -> str:
    return digest(place, threading.Event()).content


def test_the_digest_is_the_documented_one(tmp_path: Path) -> None:
    lines = [
        f"{hashlib.sha256(data).hexdigest()} {len(data)} {name}" for name, data in FILES.items()
    ]
    text = "".join(f"{line}\n" for line in sorted(lines, key=lambda line: line.split()[2]))
    expected = hashlib.sha256(text.encode()).hexdigest()
    place = written(tmp_path / "one", FILES)
    assert content(place) == f"v2:{expected}"
    # the first version counted every file
    assert digest(place, threading.Event()).first_version == expected
    (place / "VERSION").write_text("1")
    assert digest(place, threading.Event()).first_version != expected


def test_the_place_hidden_files_and_folders_do_not_count(tmp_path: Path) -> None:
    one, two = written(tmp_path / "one", FILES), written(tmp_path / "two", FILES | {".hub": b"x"})
    written(two / "checkpoint-1", FILES)
    assert content(one) == content(two)


def test_files_that_decide_nothing_do_not_count(tmp_path: Path) -> None:
    others = ("VERSION", "README.md", "LICENSE", "trainer_state.json", "training_args.bin", "a.png")
    place = written(tmp_path / "one", FILES | dict.fromkeys(others, b"x"))
    assert content(place) == content(written(tmp_path / "two", FILES))
    before = stamp(place)
    (place / "VERSION").rename(place / "VERSION.old")
    (place / "README.md").write_bytes(b"longer")
    assert stamp(place) == before


@pytest.mark.parametrize(
    "name",
    [
        *("m-00001-of-2.safetensors", "pytorch_model.bin", "generation_config.json", "vocab.txt"),
        *("tokenizer.json", "tokenizer.model", "merges.txt", "chat_template.jinja", "modeling.py"),
    ],
)
def test_files_that_decide_something_count(tmp_path: Path, name: str) -> None:
    one = written(tmp_path / "one", FILES | {name: b"x"})
    assert content(one) != content(written(tmp_path / "two", FILES | {name: b"y"}))


@pytest.mark.parametrize(
    "change",
    [{"config.json": b"{ }"}, {"model.safetensors": b"Weights"}, {"more.py": b""}],
    ids=["a byte", "as many bytes", "an empty file"],
)
def test_another_byte_or_file_is_another_content(tmp_path: Path, change: dict[str, bytes]) -> None:
    one, two = written(tmp_path / "one", FILES), written(tmp_path / "two", FILES | change)
    assert content(one) != content(two)


def test_the_parts_of_a_gguf_model_are_its_content(tmp_path: Path) -> None:
    parts = {f"a-{part:05d}-of-00002.gguf": b"part" for part in (1, 2)}
    one = written(tmp_path / "one", parts)
    two = written(tmp_path / "two", parts | {"other.gguf": b"other"})
    first = next(iter(parts))
    assert content(one / first) == content(two / first)
    (tmp_path / "single.gguf").write_bytes(b"part")
    (tmp_path / "renamed.gguf").write_bytes(b"part")
    assert content(tmp_path / "single.gguf") == content(tmp_path / "renamed.gguf")
    (two / first).write_bytes(b"Part")
    assert content(one / first) != content(two / first)


def test_the_stamp_tells_that_a_file_was_written(tmp_path: Path) -> None:
    folder = written(tmp_path / "one", FILES)
    # two writes within one tick of the file system's clock have the same time
    os.utime(folder / "config.json", ns=(0, 0))
    before = stamp(folder)
    assert stamp(folder) == before
    (folder / "config.json").write_bytes(b"[]")
    assert stamp(folder) != before


def test_reading_ends_when_it_is_told_to(tmp_path: Path) -> None:
    ended = threading.Event()
    ended.set()
    with pytest.raises(ReadingEnded):
        digest(written(tmp_path / "one", FILES), ended)
