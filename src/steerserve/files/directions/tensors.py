"""The tensors of a safetensors file, with its metadata."""

from __future__ import annotations

import json
import struct

from steerserve.files.directions.stored import DTYPES, Numbers, numbers_of
from steerserve.files.local import HEADER_BYTES, header_tensors
from steerserve.rules import json_size
from steerserve.rules.bounds import DIRECTIONS, VECTOR_PARTS
from steerserve.rules.steering.vector import invalid

_LENGTH = 8


def is_safetensors(data: bytes) -> bool:
    """Whether a file begins as a safetensors file does: with the length of a JSON header."""
    return data[_LENGTH : _LENGTH + 1] == b"{" and _header_bytes(data) <= HEADER_BYTES


def read(file: str, data: bytes) -> tuple[dict[str, Numbers], dict[str, str]]:
    """The tensors by their names, and the metadata.

    Raises:
        Refusal: INVALID_VECTOR for a file that is damaged or cut short, and for tensors that are no floats.
    """
    length = _header_bytes(data)
    body = memoryview(data)[_LENGTH + length :]
    raw = data[_LENGTH : _LENGTH + length]
    try:
        if len(raw) != length:
            raise ValueError("the header is cut short")
        if json_size.has_more_values(raw, VECTOR_PARTS):
            raise ValueError(f"its header has more than {VECTOR_PARTS} values")
        listed = header_tensors(raw, len(body))
    except ValueError as error:
        raise invalid(file, f"is damaged or cut short: {error}") from None
    if len(listed) > DIRECTIONS:
        raise invalid(file, f"has more than {DIRECTIONS} tensors")
    header = json.loads(raw)
    tensors = {}
    for one in listed:
        begin, end = header[one.name]["data_offsets"]
        dtype = DTYPES.get(one.dtype, one.dtype)
        tensors[one.name] = numbers_of(file, one.name, dtype, one.shape, body[begin:end])
    metadata = header.get("__metadata__")
    texts = metadata if isinstance(metadata, dict) else {}
    return tensors, {k: v for k, v in texts.items() if isinstance(v, str)}


def _header_bytes(data: bytes) -> int:
    return int(struct.unpack_from("<Q", data)[0]) if len(data) >= _LENGTH else 0
