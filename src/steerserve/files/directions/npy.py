"""NumPy's `.npy`: one array. Source: NumPy's description of the format, versions 1.0 to 3.0."""

from __future__ import annotations

import ast
import struct

from steerserve.files.directions.stored import Numbers, numbers_of
from steerserve.rules.steering.vector import invalid

MAGIC = b"\x93NUMPY"
HEADER_MAXIMUM = 10_000
_KEY = "array"
_DTYPES = {"<f2": "float16", "<f4": "float32", "<f8": "float64"}
_WHOLE = {"<i4": "<i", "<i8": "<q", "<u4": "<I", "<u8": "<Q"}


def read(file: str, data: bytes) -> Numbers:
    """The array of a file.

    Raises:
        Refusal: INVALID_VECTOR for a damaged header, objects, and numbers that are no little-endian floats.
    """
    dtype, shape, is_fortran, body = _parts(file, data)
    if dtype not in _DTYPES:
        why = (
            "holds objects or numbers other than little-endian floats; save it with .astype('<f4')"
        )
        raise invalid(file, why)
    if len(shape) > 8 or (is_fortran and len([n for n in shape if n != 1]) > 1):
        raise invalid(file, "has an array in Fortran order, or of too many axes")
    return numbers_of(file, _KEY, _DTYPES[dtype], shape, body)


def whole(file: str, data: bytes) -> int:
    """The whole number of a file, which has no other number.

    Raises:
        Refusal: INVALID_VECTOR for anything else.
    """
    dtype, shape, _, body = _parts(file, data)
    form = _WHOLE.get(dtype)
    if form is None or len(body) != struct.calcsize(form) or any(n != 1 for n in shape):
        raise invalid(file, "is not one whole number")
    return int(struct.unpack(form, body)[0])


def _parts(file: str, data: bytes) -> tuple[str, tuple[int, ...], object, bytes]:
    """The dtype, the shape, whether the order is that of Fortran, and the bytes of the numbers."""
    if len(data) < 12 or data[6] not in (1, 2, 3):
        raise invalid(file, "is not a complete .npy file of version 1 to 3")
    form, start = ("<H", 10) if data[6] == 1 else ("<I", 12)
    (length,) = struct.unpack_from(form, data, 8)
    if length > min(HEADER_MAXIMUM, len(data) - start):
        raise invalid(file, "is cut short, or has a header that is too long")
    try:
        header = ast.literal_eval(data[start : start + length].decode("latin-1").strip())
        dtype, shape = header["descr"], header["shape"]
        is_fortran = header["fortran_order"]
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        raise invalid(file, "has a damaged header") from None
    if not isinstance(dtype, str):
        dtype = "a structure"
    if not isinstance(shape, tuple) or not all(type(n) is int and 0 <= n < 1 << 32 for n in shape):
        raise invalid(file, "has a damaged shape")
    return dtype, shape, is_fortran, data[start + length :]
