"""GGUF files that lie: each is refused with its cause, at once, and without memory for what it claims."""

from __future__ import annotations

import os
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from steerserve.engines.gguf import loading
from steerserve.files import gguf, gguf_part
from steerserve.files.gguf import GGUFError
from steerserve.files.gguf_part import Allowance
from steerserve.rules.models.gguf_header import Header
from tests import gguf as maker
from tests.files.test_gguf import ARCHITECTURE, entry_of, text
from tests.memory import stays_below

BIG = 1 << 63
SECONDS = 5.0
"""What a refusal may take on a busy machine. It takes a few milliseconds on one that is not."""

PEAK_BYTES = 60_000_000
TOKENS = "tokenizer.ggml.tokens"


def tensor(name: str, shape: tuple[int, ...], offset: int, kind: int = 0) -> bytes:
    head = text(name) + struct.pack("<I", len(shape))
    return head + struct.pack(f"<{len(shape)}QIQ", *shape, kind, offset)


def write(
    path: Path, *entries: bytes, tensors: tuple[bytes, ...] = (), size: int | None = None
) -> Path:
    """A file with these entries and tensors, then zeros up to `size`."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries) + 1)
    path.write_bytes(head + ARCHITECTURE + b"".join(entries) + b"".join(tensors))
    if size is not None:
        os.truncate(path, size)
    return path


def words(key: str, *texts: bytes) -> bytes:
    body = b"".join(struct.pack("<Q", len(each)) + each for each in texts)
    return entry_of(key, 9, struct.pack("<IQ", 8, len(texts)) + body)


def number(key: str, value: int) -> bytes:
    return entry_of(key, 10, struct.pack("<Q", value))


def raw_key(key: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<II", 4, 1)


def twice() -> tuple[bytes, ...]:
    return (tensor("a", (32,), 0), tensor("a", (32,), 128))


LIES: dict[str, tuple[tuple[bytes, ...], tuple[bytes, ...], str]] = {
    "a list of lists": ((entry_of("a", 9, struct.pack("<IQIQ", 9, 1, 9, 1)),), (), "list type 9"),
    "a key twice": ((number("a", 1), number("a", 2)), (), "'a' twice"),
    "a key that is not UTF-8": ((raw_key(b"\xff\xfea"),), (), "not UTF-8"),
    "a key without a name": ((raw_key(b""),), (), "without a name"),
    "a key of a mebibyte": ((raw_key(b"k" * (1 << 20)),), (), "too long"),
    "a text in place of a number": (
        (entry_of("llama.block_count", 8, text("32")),),
        (),
        "llama.block_count is not a whole number",
    ),
    "a truth in place of a number": (
        (entry_of("llama.block_count", 7, b"\1"),),
        (),
        "llama.block_count is not a whole number",
    ),
    "a list in place of a number": (
        (entry_of("llama.context_length", 9, struct.pack("<IQI", 4, 1, 5)),),
        (),
        "llama.context_length is not a whole number",
    ),
    "a context without end": (
        (number("llama.context_length", 1 << 31),),
        (),
        "llama.context_length is not a whole number from 0 to 2147483647",
    ),
    "an alignment of 0": ((number("general.alignment", 0),), (), "general.alignment"),
    "an alignment of 24": ((number("general.alignment", 24),), (), "power of two"),
    "an alignment of 2**31": ((number("general.alignment", 1 << 31),), (), "general.alignment"),
    "an alignment of 2**63": ((number("general.alignment", BIG),), (), "general.alignment"),
    "dimensions that overflow": ((), (tensor("a", (BIG, BIG, 4), 0),), "'a' has more weights"),
    "five dimensions": ((), (tensor("a", (1, 1, 1, 1, 1), 0),), "'a' has 5 dimensions"),
    "rows that are not whole blocks": ((), (tensor("a", (33,), 0, kind=8),), "blocks of Q8_0"),
    "a tensor off its place": ((), (tensor("a", (32,), 1),), "a multiple of 32 bytes"),
    "tensors that overlap": (
        (),
        (tensor("a", (64,), 0), tensor("b", (1,), 4096), tensor("c", (1,), 224)),
        "'a' and 'c' overlap",
    ),
    "a tensor twice": ((), twice(), "'a' is listed twice"),
    "tokens that are numbers": (
        (entry_of(TOKENS, 9, struct.pack("<IQI", 4, 1, 5)),),
        (),
        "tokens is not a list of texts",
    ),
    "fewer scores than tokens": (
        (
            words(TOKENS, b"a", b"b"),
            entry_of("tokenizer.ggml.scores", 9, struct.pack("<IQf", 6, 1, 0)),
        ),
        (),
        "scores does not have one number for each token",
    ),
    "scores that are bytes": (
        (words(TOKENS, b"a"), entry_of("tokenizer.ggml.scores", 9, struct.pack("<IQB", 0, 1, 0))),
        (),
        "scores does not have one number for each token",
    ),
    "types that are one number": (
        (words(TOKENS, b"a"), number("tokenizer.ggml.token_type", 1)),
        (),
        "token_type does not have one number for each token",
    ),
}


@pytest.mark.parametrize("kind", LIES)
def test_a_lie_of_the_header_is_refused_by_its_name(tmp_path: Path, kind: str) -> None:
    entries, tensors, cause = LIES[kind]
    path = write(tmp_path / "m.gguf", *entries, tensors=tensors, size=1 << 33)
    with pytest.raises(GGUFError) as caught:
        gguf.read_header([path])
    assert cause in str(caught.value)
    assert str(caught.value).isprintable()
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize("name", ["\u202eamall", "a\nb", "../x", "l" * 65, "<b>"])
def test_an_architecture_has_the_letters_of_one(tmp_path: Path, name: str) -> None:
    path = tmp_path / "m.gguf"
    entry = entry_of("general.architecture", 8, text(name))
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + entry)
    with pytest.raises(GGUFError, match="impossible architecture"):
        gguf.read_header([path])


def list_of(kind: int, count: int) -> bytes:
    return text(TOKENS) + struct.pack("<IIQ", 9, kind, count)


HUGE: dict[str, tuple[bytes, str]] = {
    "ten million tokens": (list_of(8, 10_000_000), "more strings"),
    "2**63 tokens": (list_of(8, BIG), "more strings"),
    "2**63 numbers": (list_of(4, BIG), "cut short"),
    "numbers beyond any header": (list_of(4, 1 << 28), "longer than that of any model"),
    "a text beyond any header": (text("a") + struct.pack("<IQ", 8, 1 << 30), "longer than"),
    "a token of 2**63 bytes": (list_of(8, 1) + struct.pack("<Q", BIG), "cut short"),
    "a token beyond any header": (list_of(8, 2) + struct.pack("<Q", 1 << 28), "longer than"),
}


@pytest.mark.parametrize("kind", HUGE)
def test_a_count_costs_neither_time_nor_memory(tmp_path: Path, kind: str) -> None:
    body, cause = HUGE[kind]
    path = write(tmp_path / "m.gguf", body, size=1 << 33)

    def read_it() -> None:
        started = time.thread_time()
        with pytest.raises(GGUFError, match=cause):
            gguf.read_header([path])
        assert time.thread_time() - started < SECONDS

    assert stays_below(PEAK_BYTES, read_it)


def test_the_largest_header_that_is_read_takes_bounded_time_and_memory(tmp_path: Path) -> None:
    """As many tokens as may be, with the ids of the last two as the special ones; and as many tensors and keys."""
    count = gguf_part.STRINGS_MAXIMUM
    path = write(
        tmp_path / "m.gguf",
        number("tokenizer.ggml.bos_token_id", count - 1),
        number("tokenizer.ggml.eos_token_id", count - 2),
        *(number(f"{n}".ljust(1000, "k"), n) for n in range(gguf_part.KEYS_MAXIMUM - 4)),
        list_of(8, count) + struct.pack("<Qc", 1, b"t") * count,
        tensors=tuple(
            tensor(f"{n}".ljust(200, "t"), (8,), 32 * n) for n in range(gguf_part.TENSORS_MAXIMUM)
        ),
    )
    started = time.thread_time()
    header = gguf.read_header([path])
    assert time.thread_time() - started < SECONDS
    assert (header.vocabulary, header.bos_token, header.eos_token) == (count, "t", "t")
    # the files of a split model share what may be read of their headers
    allowance = Allowance()
    gguf_part.read_part(path, allowance)
    with pytest.raises(GGUFError, match="more strings"):
        gguf_part.read_part(path, allowance)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A whole file of less than a kilobyte with an entry of every kind."""
    path = write(
        tmp_path_factory.mktemp("small") / "m.gguf",
        *(entry_of(f"n{kind}", kind, bytes(size)) for kind, size in ((0, 1), (3, 2), (6, 4))),
        number("llama.block_count", 2),
        entry_of("llama.attention.head_count_kv", 9, struct.pack("<IQ2I", 4, 2, 1, 1)),
        words(TOKENS, b"<s>", b"", "é".encode()),
        entry_of("tokenizer.ggml.scores", 9, struct.pack("<IQ3f", 6, 3, 0, 0, 0)),
        number("tokenizer.ggml.bos_token_id", 2),
        entry_of("tokenizer.chat_template", 8, text(maker.CHATML)),
        tensors=(tensor("token_embd.weight", (8, 3), 0), tensor("b", (32, 1), 96, kind=8)),
    )
    whole = path.read_bytes()
    return whole + bytes(-len(whole) % 32) + bytes(96 + 34)


def outcome(path: Path) -> tuple[Header | None, str]:
    """The header of a file, or why it is refused."""
    try:
        return gguf.read_header([path]), ""
    except GGUFError as error:
        return None, str(error)


def test_a_file_that_ends_at_any_byte_is_refused_or_lacks_its_tensors(
    small: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    refused = 0
    for end in range(len(small)):
        path.write_bytes(small[:end])
        header, cause = outcome(path)
        if header is None:
            refused += 1
            assert "cut short" in cause or "not a GGUF file" in cause
        else:
            assert header.missing_bytes == len(small) - end
    path.write_bytes(small)
    assert gguf.read_header([path]).missing_bytes == 0
    assert len(small) - 200 < refused < len(small) - 130


def test_a_thousand_mutations_are_read_or_refused(small: bytes, tmp_path: Path) -> None:
    """Bits, bytes and whole numbers of the header are replaced; nothing but a GGUFError may be raised."""
    path, source = tmp_path / "m.gguf", random.Random(11)
    numbers = [struct.pack("<Q", n) for n in (0, 1, 1 << 31, (1 << 32) - 1, BIG, (1 << 64) - 1)]
    refused, started = 0, time.thread_time()
    for _ in range(1000):
        data = bytearray(small)
        for _ in range(source.randrange(1, 4)):
            at = source.randrange(len(data) - 130)
            match source.randrange(4):
                case 0:
                    data[at] ^= 1 << source.randrange(8)
                case 1:
                    data[at] = source.randrange(256)
                case 2:
                    data[at : at + 8] = source.choice(numbers)
                case _:
                    other = source.randrange(len(data) - 16)
                    data[at : at + 16] = data[other : other + 16]
        path.write_bytes(data)
        header, cause = outcome(path)
        refused += header is None
        assert cause.isprintable()
        assert header is None or (header.missing_bytes >= 0 and header.parameters < BIG)
    assert 300 < refused < 1000
    assert time.thread_time() - started < 7 * SECONDS


# ------------------------------------------------------------- files that change


def test_a_file_that_shrinks_while_it_is_read_is_refused(
    small: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(small)
    fstat = os.fstat

    def shrink(descriptor: int) -> os.stat_result:
        facts = fstat(descriptor)
        os.truncate(path, 100)
        return facts

    monkeypatch.setattr("steerserve.files.gguf_part.os.fstat", shrink)
    with pytest.raises(GGUFError, match="shrank while it was read"):
        gguf.read_header([path])


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(GGUFError, match="not a regular file"):
        gguf.read_header([tmp_path / "m.gguf"])


def _touch(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"G")


def _swap(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.replace(path)


@pytest.mark.parametrize(
    "change", [_touch, _swap, Path.unlink, lambda path: os.truncate(path, 200)]
)
def test_a_file_that_changed_after_its_header_was_read_is_named(
    small: bytes, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(small)
    header = gguf.read_header([path])
    assert loading.changed(header) is None
    change(path)
    assert loading.changed(header) == "m.gguf"


# ------------------------------------------------------------- split models


@pytest.fixture
def parts(tmp_path: Path) -> Callable[..., list[Path]]:
    """Writes the two files of a split model, the second with other entries and tensors."""

    def make(*entries: bytes, tensors: tuple[bytes, ...] = (), total: int = 2) -> list[Path]:
        first, second = (tmp_path / f"m-0000{n}-of-00002.gguf" for n in (1, 2))
        count = number("split.count", 2)
        write(
            first,
            count,
            number("split.no", 0),
            number("split.tensors.count", total),
            tensors=(tensor("a", (8,), 0),),
        )
        write(second, *(entries or (count, number("split.no", 1))), tensors=tensors)
        return [first, second]

    return make


def test_the_parts_of_a_split_model_belong_together(parts: Callable[..., list[Path]]) -> None:
    other = (tensor("b", (8,), 0),)
    assert gguf.read_header(parts(tensors=other)).parameters == 16
    lies = {
        "have one tensor: 'a'": parts,
        "2 tensors in place of 9": lambda **_: parts(tensors=other, total=9),
        "is one of 3 parts": lambda **_: parts(number("split.count", 3)),
        "is not part 2": lambda **_: parts(number("split.count", 2)),
        "split.no is not a whole number": lambda **_: parts(
            number("split.count", 2), entry_of("split.no", 8, text("1"))
        ),
    }
    for cause, make in lies.items():
        with pytest.raises(GGUFError, match=cause):
            gguf.read_header(make(tensors=(tensor("a", (8,), 0),)))


def test_a_name_that_counts_too_many_parts_is_refused_before_they_are_looked_for(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "m-00001-of-99999.gguf")
    with pytest.raises(GGUFError, match="99999 parts"):
        gguf.entry(path)


def test_a_model_of_more_weights_than_any_is_refused(tmp_path: Path) -> None:
    """Tensors of an unknown type have no size, so that neither the file nor an overlap contradicts their number."""
    weights = tuple(tensor(str(n), (1 << 53,), 0, kind=99) for n in range(2))
    with pytest.raises(GGUFError, match="more weights than any model"):
        gguf.read_header([write(tmp_path / "m.gguf", tensors=weights)])
