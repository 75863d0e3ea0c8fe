"""Reads the header of one GGUF file. A count in the file may be a lie, so it is checked against the file's size and a
constant before memory is allocated or a loop is run.
"""

from __future__ import annotations

import io
import os
import stat
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from steerserve.files.gguf_bytes import HeaderBytes
from steerserve.rules.models.gguf_header import FileStamp
from steerserve.rules.models.gguf_layout import (
    ALIGNMENT_DEFAULT,
    GGUFError,
    GgufTensor,
    check_alignment,
    check_layout,
    shown,
)
from steerserve.rules.models.gguf_types import ARRAY, SCALARS, STRING, TENSOR_TYPES

MAGIC = b"GGUF"
VERSIONS = (2, 3)
HEADER_MAXIMUM = 1 << 27
"""The most bytes in the headers of all files of a model. The largest vocabularies take a quarter of this."""

KEYS_MAXIMUM = 1 << 12
TENSORS_MAXIMUM = 1 << 15
"""The most keys, and the most tensors, in a file. Models have about a hundred keys and a thousand tensors."""

STRINGS_MAXIMUM = 1 << 21
"""The most elements in all lists of strings of a model. The largest vocabularies, with their merges, have half of
this."""

NAME_MAXIMUM = 1 << 10
"""The most bytes in the name of a key, a tensor or a token that begins or ends a text."""

TEXT_MAXIMUM = 1 << 20
"""The most bytes in a text that is kept. The longest such texts are chat templates."""

NUMBERS_MAXIMUM = 1 << 16
"""The most elements in all kept lists of numbers together."""

LAYERS_MAXIMUM = 1 << 12
DIMENSIONS_MAXIMUM = 4
FIGURE_MAXIMUM = (1 << 31) - 1
"""The largest length, width or count that llama.cpp takes."""

TOKENS = "tokenizer.ggml.tokens"
_BESIDE_TOKENS = (("tokenizer.ggml.scores", "f"), ("tokenizer.ggml.token_type", "iI"))
"""Lists with a number for every token, and the letters in `struct` of their types. llama.cpp reads as many numbers as
there are tokens, whatever the length of the list."""

_BLOCK = 1 << 12
"""How many tokens lie between two places that are noted."""

_TEXTS = frozenset(
    "general.architecture general.name general.type tokenizer.chat_template "
    "tokenizer.chat_template.default".split()
)
_PER_LAYER = (".attention.head_count", ".attention.head_count_kv")

Value = int | float | bool | str | list[int] | None


@dataclass(slots=True)
class Allowance:
    """How much of the headers of one model may still be read: bytes, and elements of lists of strings."""

    header_bytes: int = HEADER_MAXIMUM
    strings: int = STRINGS_MAXIMUM


@dataclass(slots=True)
class Part:
    """The header of one file. `values` has the numbers, and those texts and lists that are used; every other value is
    None. `lists` has the type of the elements, as a letter in `struct` or `s` for strings, and the length of every
    list. `start` is the place in the file from which the offsets of tensors count."""

    stamp: FileStamp
    values: dict[str, Value] = field(default_factory=dict)
    lists: dict[str, tuple[str, int]] = field(default_factory=dict)
    token_texts: dict[str, str] = field(default_factory=dict)
    longest_token: int = 0
    tensors: list[GgufTensor] = field(default_factory=list)
    start: int = 0
    missing: int = 0

    @property
    def parameters(self) -> int:
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def tensor_bytes(self) -> int:
        return sum(tensor.size for tensor in self.tensors)

    @property
    def embedding_bytes(self) -> int:
        return sum(tensor.size for tensor in self.tensors if tensor.name == "token_embd.weight")

    @property
    def types(self) -> Counter[str]:
        """How many weights there are of each tensor type."""
        counts: Counter[str] = Counter()
        for tensor in self.tensors:
            counts[tensor.kind.name if tensor.kind else "unknown"] += tensor.elements
        return counts

    @property
    def tokens(self) -> int:
        """The length of the vocabulary; 0 without one."""
        return self.lists.get(TOKENS, ("s", 0))[1]

    def count(self, key: str, most: int = FIGURE_MAXIMUM) -> int:
        """A number of the header; 0 if the header does not have it.

        Raises:
            GGUFError: the value is not a whole number from 0 to `most`.
        """
        value = self.values.get(key, 0)
        if type(value) is not int or not 0 <= value <= most:
            raise GGUFError(f"{key} is not a whole number from 0 to {most}")
        return value

    def id_of(self, which: str) -> int | None:
        """The id of the special token `bos` or `eos`."""
        value = self.values.get(f"tokenizer.ggml.{which}_token_id")
        return value if type(value) is int and value >= 0 else None


def read_part(path: Path, allowance: Allowance) -> Part:
    """The header of a file. What it takes is subtracted from the allowance.

    Raises:
        GGUFError: the file is not a GGUF file, or its header is damaged, incomplete or a lie.
    """
    try:
        # a pipe that took the file's place would keep an ordinary `open` waiting
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb", buffering=0) as file:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode):
                raise GGUFError("not a regular file")
            source = HeaderBytes(file, facts.st_size, allowance.header_bytes)
            return _Reader(source, FileStamp.from_stat(str(path), facts), allowance).part()
    except OSError as error:
        raise GGUFError(f"{path.name} cannot be read: {error.strerror}") from None
    except GGUFError as error:
        raise GGUFError(f"{path.name}: {error}") from None


def read_content(data: bytes, keeps_text: Callable[[str], bool]) -> Part:
    """The header of a file whose whole content is `data`. `keeps_text` says of a key whether its text is kept.

    Raises:
        GGUFError: as `read_part`.
    """
    source = HeaderBytes(io.BytesIO(data), len(data), HEADER_MAXIMUM)
    return _Reader(source, FileStamp("", 0, 0, len(data), 0), Allowance(), keeps_text).part()


class _Reader:
    def __init__(
        self,
        source: HeaderBytes,
        stamp: FileStamp,
        allowance: Allowance,
        keeps_text: Callable[[str], bool] = _TEXTS.__contains__,
    ) -> None:
        self._source = source
        self._allowance = allowance
        self._keeps_text = keeps_text
        self._numbers = 0
        self._places: list[int] = []
        self._part = Part(stamp)

    def part(self) -> Part:
        source = self._source
        if self._part.stamp.size < len(MAGIC) or source.read_bytes(len(MAGIC)) != MAGIC:
            raise GGUFError("not a GGUF file")
        version = source.number("I")
        if version not in VERSIONS:
            raise GGUFError(f"GGUF version {version} is not supported")
        tensors, keys = source.number("Q"), source.number("Q")
        if tensors > TENSORS_MAXIMUM or keys > KEYS_MAXIMUM:
            raise GGUFError("the header counts more entries than any model has")
        for _ in range(keys):
            key = self._name()
            if key in self._part.values:
                raise GGUFError(f"the header has {shown(key)} twice")
            self._part.values[key] = self._value(key, source.number("I"))
        self._part.tensors = [self._tensor() for _ in range(tensors)]
        self._allowance.header_bytes -= source.place
        self._measure()
        self._check_vocabulary()
        for which in ("bos", "eos"):
            token = self._part.id_of(which)
            if token is not None and token < self._part.tokens:
                self._part.token_texts[which] = self._token_text(token)
        return self._part

    def _name(self) -> str:
        try:
            name = self._source.text(NAME_MAXIMUM).decode()
        except UnicodeDecodeError:
            raise GGUFError("the header has an entry whose name is not UTF-8") from None
        if not name:
            raise GGUFError("the header has an entry without a name")
        return name

    # ------------------------------------------------------------- values

    def _value(self, key: str, kind: int) -> Value:
        """The value of a key; None if it is not kept."""
        source = self._source
        if kind in SCALARS:
            return source.numbers(SCALARS[kind])[0]
        if kind == STRING and self._keeps_text(key):
            return source.text(TEXT_MAXIMUM).decode("utf-8", "replace")
        if kind == STRING:
            source.skip(source.number("Q"))
            return None
        if kind == ARRAY:
            return self._list(key, source.number("I"), source.number("Q"))
        raise GGUFError(f"{shown(key)} has the unknown value type {kind}")

    def _list(self, key: str, kind: int, count: int) -> list[int] | None:
        if kind == STRING:
            self._skip_texts(key, count)
            return None
        if kind not in SCALARS:
            raise GGUFError(f"{shown(key)} has the unknown list type {kind}")
        letter = SCALARS[kind]
        self._part.lists[key] = letter, count
        if not key.endswith(_PER_LAYER) or letter in "fd":
            self._source.skip(count * struct.calcsize(f"<{letter}"))
            return None
        self._numbers += count
        if self._numbers > NUMBERS_MAXIMUM:
            raise GGUFError("the header lists more layers than any model has")
        return [int(number) for number in self._source.numbers(f"{count}{letter}")]

    def _skip_texts(self, key: str, count: int) -> None:
        """Skip a list of texts. Of the tokens, the length of the longest is noted, and the places of some."""
        self._part.lists[key] = "s", count
        self._allowance.strings -= count
        if self._allowance.strings < 0:
            raise GGUFError("the header lists more strings than any model has")
        longest, places = self._source.skip_texts(count, _BLOCK)
        if key == TOKENS:
            self._places, self._part.longest_token = places, longest

    # ------------------------------------------------------------- tensors and tokens

    def _tensor(self) -> GgufTensor:
        name, source = self._name(), self._source
        dimensions = source.number("I")
        if dimensions > DIMENSIONS_MAXIMUM:
            raise GGUFError(f"the tensor {shown(name)} has {dimensions} dimensions")
        *shape, kind, offset = map(int, source.numbers(f"{dimensions}QIQ"))
        return GgufTensor.from_shape(name, shape, TENSOR_TYPES.get(kind), offset)

    def _measure(self) -> None:
        """Check where the tensors lie, and count the bytes of theirs that the file does not have."""
        part = self._part
        named = part.count("general.alignment") if "general.alignment" in part.values else None
        alignment = check_alignment(ALIGNMENT_DEFAULT if named is None else named)
        check_layout(part.tensors, alignment)
        part.start = start = -(-self._source.place // alignment) * alignment
        end = max((start + tensor.offset + tensor.size for tensor in part.tensors), default=0)
        part.missing = max(0, end - part.stamp.size)

    def _check_vocabulary(self) -> None:
        part = self._part
        if TOKENS in part.values and part.lists.get(TOKENS, ("", 0))[0] != "s":
            raise GGUFError(f"{TOKENS} is not a list of texts")
        for key, letters in _BESIDE_TOKENS:
            if key not in part.values:
                continue
            letter, count = part.lists.get(key, ("", 0))
            if letter not in tuple(letters) or count < part.tokens:
                raise GGUFError(f"{key} does not have one number for each token")

    def _token_text(self, token: int) -> str:
        """The text of a token. Chat templates need the texts of the tokens that begin and end a text."""
        source = self._source
        source.go(self._places[token // _BLOCK])
        source.skip_texts(token % _BLOCK, _BLOCK)
        return source.text(NAME_MAXIMUM).decode("utf-8", "replace")
