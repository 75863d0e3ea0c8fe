"""The numbers of the GGUF format: tensor types with their sizes, file types with their labels, value types.

Source: the format's specification and the enumerations of ggml (`ggml_type`, `llama_ftype`).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple


class TensorType(NamedTuple):
    """A block of `elements` weights takes `size` bytes."""

    name: str
    elements: int
    size: int


_TENSORS = """
0 F32 1 4 | 1 F16 1 2 | 2 Q4_0 32 18 | 3 Q4_1 32 20 | 6 Q5_0 32 22 | 7 Q5_1 32 24 | 8 Q8_0 32 34 | 9 Q8_1 32 40
10 Q2_K 256 84 | 11 Q3_K 256 110 | 12 Q4_K 256 144 | 13 Q5_K 256 176 | 14 Q6_K 256 210 | 15 Q8_K 256 292
16 IQ2_XXS 256 66 | 17 IQ2_XS 256 74 | 18 IQ3_XXS 256 98 | 19 IQ1_S 256 50 | 20 IQ4_NL 32 18 | 21 IQ3_S 256 110
22 IQ2_S 256 82 | 23 IQ4_XS 256 136 | 24 I8 1 1 | 25 I16 1 2 | 26 I32 1 4 | 27 I64 1 8 | 28 F64 1 8 | 29 IQ1_M 256 56
30 BF16 1 2 | 34 TQ1_0 256 54 | 35 TQ2_0 256 66 | 39 MXFP4 32 17 | 40 NVFP4 64 36 | 41 Q1_0 128 18
"""
_FILES = """
0 F32 1 F16 2 Q4_0 3 Q4_1 7 Q8_0 8 Q5_0 9 Q5_1 10 Q2_K 11 Q3_K_S 12 Q3_K_M 13 Q3_K_L 14 Q4_K_S 15 Q4_K_M 16 Q5_K_S
17 Q5_K_M 18 Q6_K 19 IQ2_XXS 20 IQ2_XS 21 Q2_K_S 22 IQ3_XS 23 IQ3_XXS 24 IQ1_S 25 IQ4_NL 26 IQ3_S 27 IQ3_M 28 IQ2_S
29 IQ2_M 30 IQ4_XS 31 IQ1_M 32 BF16 36 TQ1_0 37 TQ2_0 38 MXFP4_MOE 39 NVFP4 40 Q1_0
"""
_GUESSED = 1024
"""A flag in a file type: the writer of the file was not sure of the type."""


def _tensor_types() -> dict[int, TensorType]:
    rows = (row.split() for line in _TENSORS.strip().splitlines() for row in line.split("|"))
    return {int(n): TensorType(name, int(count), int(size)) for n, name, count, size in rows}


def _file_labels() -> dict[int, str]:
    words = _FILES.split()
    return {int(n): label for n, label in zip(words[::2], words[1::2], strict=True)}


TENSOR_TYPES = MappingProxyType(_tensor_types())
FILE_LABELS = MappingProxyType(_file_labels())
SCALARS = MappingProxyType(
    {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
)
"""Value type -> its letter in a format of `struct`."""

STRING, ARRAY = 8, 9
CACHE_BYTES = MappingProxyType({"f16": 2.0, "q8_0": 34 / 32})
"""Bytes of one element of the KV cache."""


def label_of(file_type: object) -> str | None:
    """The label for a header's `general.file_type`; None for an unknown file type."""
    return FILE_LABELS.get(file_type & ~_GUESSED) if isinstance(file_type, int) else None
