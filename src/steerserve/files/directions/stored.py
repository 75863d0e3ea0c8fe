"""Files of directions, what their formats say, and numbers as a file stores them."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field

from steerserve.rules.steering.vector import (
    Convention,
    Operation,
    check_width,
    invalid,
    packed,
)

SIZES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}
"""A type as safetensors and GGUF name it -> its name in PyTorch."""
_LETTERS = {"float32": "f", "float16": "e", "float64": "d"}


@dataclass(frozen=True, slots=True)
class Numbers:
    """A tensor of a file: its dtype by PyTorch's name, its shape, and its bytes, little-endian, in C order."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @property
    def direction_shape(self) -> tuple[int, ...]:
        """The shape without leading axes of length 1."""
        shape = self.shape
        while len(shape) > 1 and shape[0] == 1:
            shape = shape[1:]
        return shape

    def row(self, index: int) -> Numbers:
        """One row of a tensor of two axes."""
        size = self.shape[1] * SIZES[self.dtype]
        return Numbers(self.dtype, self.shape[1:], self.data[index * size : (index + 1) * size])


@dataclass(frozen=True, slots=True)
class DirectionFile:
    """A file of a vector or of a probe: its name without a folder, its content, and the content of the file beside it
    that says more about it."""

    name: str
    data: bytes = field(repr=False)
    metadata: bytes | None = None


@dataclass(slots=True)
class Found:
    """What a format says, before the options of the client are used. Each of `entries` has the key in the file, the
    number of the layer, the site and the numbers of one direction. Those of a probe have `biases`, in the same order.
    `is_named` says whether the file says the layers of its directions."""

    format: str
    entries: list[tuple[str, int, str, Numbers]] = field(default_factory=list)
    convention: Convention = "resid_post"
    operation: Operation = "add"
    model_hint: str | None = None
    suggested_value: float | None = None
    warnings: list[str] = field(default_factory=list)
    training: dict[str, object] | None = None
    is_named: bool = True
    biases: list[float] = field(default_factory=list)


def numbers_of(
    file: str, key: str, dtype: str, shape: tuple[int, ...], data: bytes | memoryview
) -> Numbers:
    """A checked tensor.

    Raises:
        Refusal: INVALID_VECTOR for a dtype other than floats, and for more or fewer bytes than the shape needs.
    """
    if dtype not in SIZES:
        raise invalid(file, f"has the dtype {dtype[:40]}; a direction has floats", key)
    if math.prod(shape) * SIZES[dtype] != len(data):
        raise invalid(file, "does not have the bytes that its shape needs", key)
    return Numbers(dtype, shape, bytes(data))


def float32(file: str, key: str, numbers: Numbers) -> bytes:
    """The numbers of one direction as float32, little-endian.

    Raises:
        Refusal: INVALID_VECTOR for more than one axis, for too many numbers, and for numbers that float32 does not
            have.
    """
    if len(numbers.direction_shape) != 1:
        shape = list(numbers.shape)
        raise invalid(file, f"has the shape {shape}; a direction has one axis", key)
    count = len(numbers.data) // SIZES[numbers.dtype]
    check_width(file, key, count)
    if numbers.dtype == "float32":
        return numbers.data
    if numbers.dtype == "bfloat16":
        wide = bytearray(2 * len(numbers.data))
        wide[2::4], wide[3::4] = numbers.data[::2], numbers.data[1::2]
        return bytes(wide)
    try:
        return packed(struct.unpack(f"<{count}{_LETTERS[numbers.dtype]}", numbers.data))
    except OverflowError:
        raise invalid(file, "has a number that float32 does not have", key) from None
