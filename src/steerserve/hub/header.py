"""Reads the header of a safetensors file at the hub by range requests: 8 bytes of length, then JSON. The tensors are
not fetched.

Only the downloader process imports this.
"""

from __future__ import annotations

import re
import struct

from steerserve.files.local import header_tensors
from steerserve.hub.session import Session
from steerserve.hub.wire import HeaderRead, Headers, Kind, Trouble

FIRST_BYTES = 64 << 10
"""The number of bytes in the first request. The headers of nearly all SAEs are shorter."""

HEADER_BYTES = 4 << 20
TENSORS = 10_000
"""The most tensors in a header. The files of most checkpoints have fewer."""

UNKNOWN_SIZE = 1 << 62
PATH_SHOWN = 500
"""The most characters of a file's path that a message shows."""

_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")


def fetch_header(job: Headers, session: Session) -> HeaderRead:
    """The tensors of the file, and the bytes that were read.

    Raises:
        Trouble: FAILED, with the name of the file, when its header is damaged or longer than `HEADER_BYTES`, or lists
            more
            than `TENSORS` tensors.
    """
    if job.file.size == 0:
        raise _damaged(job, "is empty")
    url = session.address(job.repo_id, job.file.path, job.sha)
    begun, total = _bytes(url, 0, FIRST_BYTES, session)
    total = job.file.size if total is None else total
    size = struct.unpack("<Q", begun[:8])[0] if len(begun) >= 8 else 0
    if not 0 < size <= HEADER_BYTES or (total is not None and size + 8 > total):
        raise _damaged(job, "is not a safetensors file, or its header is too large")
    if len(begun) < size + 8:
        further, _ = _bytes(url, len(begun), size + 8, session)
        begun += further
    available = UNKNOWN_SIZE if total is None else total - 8 - size
    try:
        if len(begun) < size + 8:
            raise ValueError("it ended early")
        tensors = header_tensors(begun[8 : size + 8], available)
    except ValueError:
        raise _damaged(job, "has a damaged safetensors header") from None
    if len(tensors) > TENSORS:
        raise _damaged(job, f"lists more than {TENSORS} tensors in its header")
    entries = [(t.name[:200], t.dtype, list(t.shape), t.size_bytes) for t in tensors]
    return HeaderRead(entries, begun)


def _damaged(job: Headers, fault: str) -> Trouble:
    return Trouble(Kind.FAILED, f"{job.file.path[:PATH_SHOWN]!a} {fault}")


def _bytes(url: str, begin: int, end: int, session: Session) -> tuple[bytes, int | None]:
    """The bytes of a file from `begin` to before `end`, and the size of the file if the answer tells it. If the answer
    has the whole file, it is read no further than needed.

    Raises:
        Trouble
    """
    body = bytearray()
    with session.stream(url, {"Range": f"bytes={begin}-{end - 1}"}) as response:
        ranged = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if ranged and int(ranged[1]) != begin:
            raise Trouble(Kind.FAILED, "the hub sends another part of a file than it was asked for")
        skipped = 0 if ranged else begin
        count = skipped + end - begin
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) >= count:
                break
    return bytes(body[skipped:count]), int(ranged[2]) if ranged else None
