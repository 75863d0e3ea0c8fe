"""The content of SAEs on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from steerserve.files.sae_files import content_digest


def written(folder: Path, **files: bytes) -> Path:
    """A folder with these files; `__` stands for a dot."""
    folder.mkdir()
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_bytes(content)
    return folder


SAELENS = {"cfg__json": b"{}", "sae_weights__safetensors": b"weights"}


def test_equal_content_has_one_digest_whatever_lies_beside_it(tmp_path: Path) -> None:
    digest = content_digest(written(tmp_path / "one", **SAELENS))
    beside = written(tmp_path / "two", **SAELENS, labels__json=b"{}", README__md=b"hello")
    assert content_digest(beside) == digest
    assert content_digest(beside / "sae_weights.safetensors") == digest


@pytest.mark.parametrize(
    "change",
    [{"cfg__json": b"{ }"}, {"sae_weights__safetensors": b"Weights"}],
)
def test_one_other_byte_is_another_digest(tmp_path: Path, change: dict[str, bytes]) -> None:
    one, two = written(tmp_path / "one", **SAELENS), written(tmp_path / "two", **SAELENS | change)
    assert content_digest(one) != content_digest(two)


def test_a_file_of_another_name_has_the_digest_of_its_content(tmp_path: Path) -> None:
    folder = written(tmp_path / "raw", one__pt=b"tensors", two__pt=b"tensors", three__pt=b"others")
    digests = {name: content_digest(folder / f"{name}.pt") for name in ("one", "two", "three")}
    assert digests["one"] == digests["two"] != digests["three"]


def test_a_folder_in_no_known_layout_counts_with_all_its_files(tmp_path: Path) -> None:
    one = written(tmp_path / "one", a__bin=b"a", b__bin=b"b")
    two = written(tmp_path / "two", a__bin=b"a", b__bin=b"c")
    assert content_digest(one) != content_digest(two)
