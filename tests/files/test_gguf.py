"""Reading GGUF headers: what they say, over several parts, and that no damage costs time, memory or an untyped error."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import pytest

import gguf as reference
from steerserve.files import gguf
from steerserve.files.gguf import GGUFError
from tests import gguf as maker
from tests.memory import stays_below


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    for label in ("F32", "F16", "BF16", "Q8_0", "Q4_0"):
        maker.write(folder / f"tiny-{label}.gguf", label)
    maker.write(folder / "encoder.gguf", kind="encoder", context=64)
    (folder / "split").mkdir()
    maker.write(folder / "split" / "tiny-Q8_0.gguf", "Q8_0", split=4)
    return folder


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry_of(key: str, kind: int, body: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + body


ARCHITECTURE = entry_of("general.architecture", 8, text("llama"))


def made(path: Path, *entries: bytes, keys: int | None = None, tensors: int = 0) -> Path:
    """A file with these header entries; `keys` is how many it claims."""
    counts = struct.pack("<QQ", tensors, len(entries) if keys is None else keys)
    path.write_bytes(b"GGUF" + struct.pack("<I", 3) + counts + b"".join(entries))
    return path


@pytest.mark.parametrize("label", ["F32", "F16", "BF16", "Q8_0", "Q4_0"])
def test_a_header_says_what_the_reference_reader_says(folder: Path, label: str) -> None:
    path = folder / f"tiny-{label}.gguf"
    header = gguf.read_header(gguf.entry(path))
    truth = reference.GGUFReader(path)
    assert header.parameters == sum(int(t.n_elements) for t in truth.tensors)
    assert header.tensor_bytes == sum(int(t.n_bytes) for t in truth.tensors)
    assert header.embedding_bytes == next(
        int(t.n_bytes) for t in truth.tensors if t.name == "token_embd.weight"
    )
    assert header.label == label
    assert (header.architecture, header.name) == ("llama", "tiny-counting")
    assert (header.context_length, header.layers, header.hidden_size) == (256, 1, 512)
    assert (header.heads, header.kv_heads, header.key_length, header.value_length) == (
        4,
        (2,),
        128,
        128,
    )
    assert header.vocabulary == len(maker.vocabulary())
    assert header.longest_token == max(len(t.encode()) for t, _, _ in maker.vocabulary())
    assert header.chat_template == maker.CHATML
    assert (header.bos_id, header.bos_token, header.eos_token) == (1, "<s>", maker.END)
    assert (header.size_bytes, header.missing_bytes) == (path.stat().st_size, 0)
    assert not header.is_embedding_only


def test_an_encoder_is_told_by_its_header(folder: Path) -> None:
    header = gguf.read_header([folder / "encoder.gguf"])
    assert header.is_embedding_only
    assert header.architecture == "bert"
    assert header.chat_template is None


def test_a_split_model_is_read_over_all_its_parts(folder: Path) -> None:
    files = gguf.entry(folder / "split")
    assert len(files) == 3
    assert gguf.entry(files[0]) == files
    header, whole = gguf.read_header(files), gguf.read_header([folder / "tiny-Q8_0.gguf"])
    assert header.shards == 3
    assert (header.parameters, header.tensor_bytes) == (whole.parameters, whole.tensor_bytes)
    for wrong in (files[:2], files[:1], [files[0], files[0], files[2]], files[::-1]):
        with pytest.raises(GGUFError):
            gguf.read_header(wrong)


def test_a_part_that_is_missing_is_named(folder: Path, tmp_path: Path) -> None:
    files = gguf.entry(folder / "split")
    for file in (files[0], files[2]):
        os.link(file, tmp_path / file.name)
    with pytest.raises(GGUFError, match=files[1].name):
        gguf.entry(tmp_path / files[0].name)
    with pytest.raises(GGUFError, match="incomplete"):
        gguf.entry(tmp_path)


def test_a_folder_has_one_model_or_the_label_names_it(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match="several"):
        gguf.entry(folder)
    assert gguf.entry(folder, "q4_0") == (folder / "tiny-Q4_0.gguf",)
    with pytest.raises(GGUFError, match="Q5_K"):
        gguf.entry(folder, "Q5_K")
    with pytest.raises(GGUFError, match="no complete"):
        gguf.entry(tmp_path)
    for name in ("README.md", "missing.gguf"):
        with pytest.raises(GGUFError, match="neither"):
            gguf.entry(tmp_path / name)


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    """A pipe would be read for ever."""
    os.mkfifo(tmp_path / "pipe-Q8_0.gguf")
    with pytest.raises(GGUFError):
        gguf.entry(tmp_path / "pipe-Q8_0.gguf")
    assert not gguf.listing(tmp_path).variants


def test_a_number_per_layer_is_kept_as_such(tmp_path: Path) -> None:
    per_layer = entry_of("llama.attention.head_count_kv", 9, struct.pack("<IQ4I", 4, 4, 2, 0, 1, 8))
    count = struct.Struct("<I")
    path = made(
        tmp_path / "m.gguf",
        ARCHITECTURE,
        entry_of("llama.block_count", 4, count.pack(3)),
        entry_of("llama.embedding_length", 4, count.pack(64)),
        entry_of("llama.attention.head_count", 4, count.pack(4)),
        per_layer,
    )
    header = gguf.read_header([path])
    assert header.kv_heads == (2, 0, 1)
    assert header.key_length == 16


@pytest.mark.parametrize("kind", ["mmproj", "adapter", "imatrix"])
def test_what_is_no_language_model_is_said(tmp_path: Path, kind: str) -> None:
    path = made(tmp_path / "m.gguf", ARCHITECTURE, entry_of("general.type", 8, text(kind)))
    with pytest.raises(GGUFError, match=kind):
        gguf.read_header([path])


def test_a_file_that_is_cut_short_in_its_tensors_says_by_how_much(
    folder: Path, tmp_path: Path
) -> None:
    data = (folder / "tiny-Q8_0.gguf").read_bytes()
    path = tmp_path / "short.gguf"
    path.write_bytes(data[:-1234])
    assert gguf.read_header([path]).missing_bytes == 1234


BIG = 1 << 62
ABSURD = {
    "keys": {"keys": BIG},
    "more keys than there are": {"keys": 3},
    "tensors": {"tensors": BIG},
    "tensors that are not there": {"tensors": 5},
}
ENTRIES = {
    "a text longer than the file": text("a") + struct.pack("<IQ", 8, BIG),
    "a kept text longer than any": text("general.name") + struct.pack("<IQ", 8, BIG),
    "a key longer than any": struct.pack("<Q", BIG) + b"x",
    "numbers beyond the file": text("a") + struct.pack("<IIQ", 9, 4, BIG),
    "layers beyond the file": text("llama.attention.head_count_kv")
    + struct.pack("<IIQ", 9, 4, BIG),
    "texts beyond the file": text("a") + struct.pack("<IIQ", 9, 8, BIG),
    "an unknown value type": text("a") + struct.pack("<I", 77),
    "a negative count": entry_of("llama.block_count", 5, struct.pack("<i", -1)),
    "an absurd count": entry_of("llama.block_count", 10, struct.pack("<Q", BIG)),
    "a count that is text": entry_of("llama.context_length", 6, struct.pack("<f", 1.5)),
    "heads that do not fit": entry_of(
        "llama.attention.head_count_kv", 9, struct.pack("<IQi", 5, 1, -1)
    )
    + entry_of("llama.block_count", 4, struct.pack("<I", 2)),
}


@pytest.mark.parametrize("kind", [*ABSURD, *ENTRIES])
def test_a_header_that_claims_too_much_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "m.gguf"
    if kind in ABSURD:
        made(path, ARCHITECTURE, **ABSURD[kind])
    else:
        made(path, ARCHITECTURE, ENTRIES[kind], keys=3 if "heads" in kind else 2)
    # sparse: it looks large, and reads as zeros
    os.truncate(path, 1 << 33)

    def read_it() -> None:
        started = time.thread_time()
        with pytest.raises(GGUFError) as caught:
            gguf.read_header([path])
        assert time.thread_time() - started < 5
        assert str(tmp_path) not in str(caught.value)

    assert stays_below(50_000_000, read_it)


@pytest.mark.parametrize(
    "data", [b"", b"GGUF", b"GGUF\x03\x00\x00\x00", b"<html>", b"GGUF\x00\x00\x00\x03" + bytes(40)]
)
def test_what_is_no_gguf_file_is_said(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(GGUFError, match=r"m\.gguf"):
        gguf.read_header([path])
