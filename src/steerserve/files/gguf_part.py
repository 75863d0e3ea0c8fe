"""Reads the header of one GGUF file. A count in the file may be a lie, so it is checked against the file's size and a
constant before memory is allocated or a loop is run.
"""

from __future__ import annotations

import math
import os
import struct
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from steerserve.rules.gguf_types import ARRAY, SCALARS, STRING, TENSOR_TYPES, TensorType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
KEYS_MAXIMUM = 1 << 16
TENSORS_MAXIMUM = 1 << 16
NAME_MAXIMUM = 1 << 16
TEXT_MAXIMUM = 1 << 20
"""The most bytes in a text that is kept. The longest such texts are chat templates."""

STRINGS_MAXIMUM = 1 << 23
"""The most elements in all lists of strings together. The largest vocabularies have an eighth of this."""

NUMBERS_MAXIMUM = 1 << 16
"""The most elements in all kept lists of numbers together."""

LAYERS_MAXIMUM = 1 << 12
DIMENSIONS_MAXIMUM = 8
COUNT_MAXIMUM = 1 << 53
TOKENS = "tokenizer.ggml.tokens"
_TEXTS = frozenset(
    "general.architecture general.name general.type tokenizer.chat_template "
    "tokenizer.chat_template.default".split()
)
_PER_LAYER = (".attention.head_count", ".attention.head_count_kv")

Value = int | float | bool | str | list[int]


class GGUFError(ValueError):
    """The file is not a GGUF model. The message says why, and never names a folder."""


@dataclass(slots=True)
class Part:
    """The header of one file. `values` has the numbers, and those texts and lists that are used. `lengths` has the
    length of every list."""

    size: int
    values: dict[str, Value] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    token_texts: dict[str, str] = field(default_factory=dict)
    longest_token: int = 0
    parameters: int = 0
    tensor_bytes: int = 0
    embedding_bytes: int = 0
    missing: int = 0
    types: Counter[str] = field(default_factory=Counter)

    def count(self, key: str, most: int = COUNT_MAXIMUM) -> int:
        """A number of the header; 0 if the header does not have it.

        Raises:
            GGUFError: the value is not a whole number from 0 to `most`.
        """
        value = self.values.get(key, 0)
        if type(value) is not int or not 0 <= value <= most:
            raise GGUFError(f"{key[:80]} is not a plausible number")
        return value

    def id_of(self, which: str) -> int | None:
        """The id of the special token `bos` or `eos`."""
        value = self.values.get(f"tokenizer.ggml.{which}_token_id")
        return value if type(value) is int and value >= 0 else None


def read_part(path: Path) -> Part:
    """Raises:
    GGUFError: the file is not a GGUF file, or its header is damaged or incomplete.
    """
    try:
        with path.open("rb", buffering=1 << 20) as file:
            size = os.fstat(file.fileno()).st_size
            return _Reader(file, size).part()
    except OSError as error:
        raise GGUFError(f"{path.name} cannot be read: {error.strerror}") from None
    except GGUFError as error:
        raise GGUFError(f"{path.name}: {error}") from None


class _Reader:
    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size
        self._strings = 0
        self._numbers = 0
        self._tokens_at: int | None = None
        self._part = Part(size)

    def part(self) -> Part:
        if self._size < len(MAGIC) or self._take(len(MAGIC)) != MAGIC:
            raise GGUFError("not a GGUF file")
        version = self._number("I")
        if version not in VERSIONS:
            raise GGUFError(f"GGUF version {version} is not supported")
        tensors, keys = self._number("Q"), self._number("Q")
        if tensors > TENSORS_MAXIMUM or keys > KEYS_MAXIMUM:
            raise GGUFError("the header counts more entries than any model has")
        for _ in range(keys):
            key = self._name()
            self._value(key, self._number("I"))
        listed = [self._tensor() for _ in range(tensors)]
        self._measure(listed)
        self._read_token_texts()
        return self._part

    def _take(self, count: int) -> bytes:
        if count > self._size - self._file.tell():
            raise GGUFError("the header is cut short or damaged")
        data = self._file.read(count)
        if len(data) != count:
            raise GGUFError("the file shrank while it was read")
        return data

    def _skip(self, count: int) -> None:
        if count > self._size - self._file.tell():
            raise GGUFError("the header is cut short or damaged")
        self._file.seek(count, os.SEEK_CUR)

    def _number(self, kind: str) -> int:
        return int(struct.unpack(f"<{kind}", self._take(struct.calcsize(f"<{kind}")))[0])

    def _text(self, most: int) -> str:
        length = self._number("Q")
        if length > most:
            raise GGUFError("a text in the header is too long")
        return self._take(length).decode("utf-8", "replace")

    def _name(self) -> str:
        name = self._text(NAME_MAXIMUM)
        if not name:
            raise GGUFError("the header has an entry without a name")
        return name

    def _value(self, key: str, kind: int) -> None:
        values = self._part.values
        if kind in SCALARS:
            spelled = f"<{SCALARS[kind]}"
            values[key] = struct.unpack(spelled, self._take(struct.calcsize(spelled)))[0]
        elif kind == STRING and key in _TEXTS:
            values[key] = self._text(TEXT_MAXIMUM)
        elif kind == STRING:
            self._skip(self._number("Q"))
        elif kind == ARRAY:
            self._array(key, self._number("I"), self._number("Q"))
        else:
            raise GGUFError(f"unknown value type {kind}")

    def _array(self, key: str, kind: int, count: int) -> None:
        self._part.lengths[key] = count
        if kind == STRING:
            if key == TOKENS:
                self._tokens_at = self._file.tell()
            longest = self._skip_strings(count)
            if key == TOKENS:
                self._part.longest_token = longest
            return
        if kind not in SCALARS:
            raise GGUFError(f"unknown list type {kind}")
        size = count * struct.calcsize(f"<{SCALARS[kind]}")
        if not key.endswith(_PER_LAYER) or SCALARS[kind] in "fd":
            self._skip(size)
            return
        self._numbers += count
        if self._numbers > NUMBERS_MAXIMUM:
            raise GGUFError("the header lists more layers than any model has")
        numbers = struct.unpack(f"<{count}{SCALARS[kind]}", self._take(size))
        self._part.values[key] = [int(number) for number in numbers]

    def _skip_strings(self, count: int) -> int:
        """Skip strings, and return the length of the longest in bytes."""
        self._strings += count
        if self._strings > STRINGS_MAXIMUM:
            raise GGUFError("the header lists more strings than any model has")
        longest = 0
        read, seek, unpack = self._file.read, self._file.seek, struct.Struct("<Q").unpack
        for _ in range(count):
            head = read(8)
            if len(head) != 8:
                raise GGUFError("the header is cut short or damaged")
            (length,) = unpack(head)
            if length > TEXT_MAXIMUM:
                raise GGUFError("a text in the header is too long")
            longest = max(longest, length)
            seek(length, os.SEEK_CUR)
        if self._file.tell() > self._size:
            raise GGUFError("the header is cut short or damaged")
        return longest

    def _tensor(self) -> tuple[str, int, TensorType | None, int]:
        """Name, elements, type and offset of a tensor."""
        name = self._name()
        dimensions = self._number("I")
        if dimensions > DIMENSIONS_MAXIMUM:
            raise GGUFError("a tensor has too many dimensions")
        elements = math.prod(self._number("Q") for _ in range(dimensions))
        if elements > COUNT_MAXIMUM:
            raise GGUFError("a tensor is implausibly large")
        return name, elements, TENSOR_TYPES.get(self._number("I")), self._number("Q")

    def _measure(self, tensors: list[tuple[str, int, TensorType | None, int]]) -> None:
        part = self._part
        alignment = part.count("general.alignment") or 32
        start = -(-self._file.tell() // alignment) * alignment
        end = start if tensors else 0
        for name, elements, kind, offset in tensors:
            size = -(-elements // kind.elements) * kind.size if kind else 0
            part.parameters += elements
            part.tensor_bytes += size
            part.types[kind.name if kind else "unknown"] += elements
            if name == "token_embd.weight":
                part.embedding_bytes = size
            end = max(end, start + offset + size)
        part.missing = max(0, end - self._size)

    def _read_token_texts(self) -> None:
        """Read the texts of the tokens that begin and end a text. Chat templates need them."""
        wanted = {which: self._part.id_of(which) for which in ("bos", "eos")}
        count = self._part.lengths.get(TOKENS, 0)
        for which, token in wanted.items():
            if self._tokens_at is None or token is None or token >= count:
                continue
            self._file.seek(self._tokens_at)
            for _ in range(token):
                self._skip(self._number("Q"))
            self._part.token_texts[which] = self._text(NAME_MAXIMUM)
