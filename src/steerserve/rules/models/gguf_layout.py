"""Where the tensors of a GGUF file lie, as its header says, and the refusal of what no true header says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from steerserve.rules.models.gguf_types import TensorType

WEIGHTS_MAXIMUM = 1 << 53
"""The most weights in a tensor, and in a model."""

ALIGNMENT_DEFAULT = 32
ALIGNMENT_MAXIMUM = 1 << 16
_SHOWN = 80


class GGUFError(ValueError):
    """The file is not a GGUF model. The message says why, and never names a folder."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor as the header lists it. `row` is the length of its rows. `kind` is None for a type that this
    service does not know; its `size` in bytes is then 0. `offset` counts the bytes from the first tensor."""

    name: str
    row: int
    elements: int
    kind: TensorType | None
    offset: int
    size: int

    @classmethod
    def from_shape(
        cls, name: str, shape: Sequence[int], kind: TensorType | None, offset: int
    ) -> GgufTensor:
        elements = math.prod(shape)
        size = -(-elements // kind.elements) * kind.size if kind else 0
        return cls(name, shape[0] if shape else 1, elements, kind, offset, size)


def check_alignment(alignment: int) -> int:
    """The multiple of bytes at which every tensor begins.

    Raises:
        GGUFError: the number is not a power of two, or is larger than `ALIGNMENT_MAXIMUM`.
    """
    if not 0 < alignment <= ALIGNMENT_MAXIMUM or alignment & (alignment - 1):
        raise GGUFError(
            f"general.alignment is not a power of two from 1 to {ALIGNMENT_MAXIMUM}: {alignment}"
        )
    return alignment


def check_layout(tensors: Sequence[GgufTensor], alignment: int) -> None:
    """Check each tensor by itself, then that no two have one name and that no two overlap.

    Raises:
        GGUFError
    """
    names: set[str] = set()
    for tensor in tensors:
        why = _fault(tensor, alignment)
        if not why and tensor.name in names:
            why = "is listed twice"
        if why:
            raise GGUFError(f"the tensor {shown(tensor.name)} {why}")
        names.add(tensor.name)
    end, before = 0, ""
    for tensor in sorted(tensors, key=lambda each: (each.offset, each.size)):
        if tensor.offset < end:
            raise GGUFError(f"the tensors {shown(before)} and {shown(tensor.name)} overlap")
        if tensor.size:
            end, before = tensor.offset + tensor.size, tensor.name


def _fault(tensor: GgufTensor, alignment: int) -> str | None:
    """What is wrong with one tensor; None if nothing is."""
    if tensor.elements > WEIGHTS_MAXIMUM:
        return "has more weights than any tensor"
    if tensor.kind and tensor.row % tensor.kind.elements:
        return f"has rows that are not whole blocks of {tensor.kind.name}"
    if tensor.offset % alignment:
        return f"does not begin at a multiple of {alignment} bytes"
    return None


def shown(name: str) -> str:
    """The beginning of a name in an untrusted file, with every other character than ASCII escaped."""
    return ascii(name[:_SHOWN])
