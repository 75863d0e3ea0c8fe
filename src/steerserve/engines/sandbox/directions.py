"""Reads files of vectors and probes, each in a process of its own, so that a hostile file does no harm.

`read_file` is the client in the control plane; `python -m steerserve.engines.sandbox.directions` is the process, under
limits of time and memory.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from steerserve.engines.sandbox.pool_process import Died, PoolProcess, limit, serve
from steerserve.errors import Refusal
from steerserve.files.directions.probes import PROBES
from steerserve.files.directions.reader import Formats, Read
from steerserve.files.directions.stored import DirectionFile
from steerserve.files.directions.vectors import VECTORS
from steerserve.rules.steering.vector import ReadOptions

READ_SECONDS = 60.0
"""Seconds that reading one file may take."""

MEMORY_BYTES = 1 << 30
"""Address space of a process."""

NICENESS = 10
"""A file is read for a fifth of a second, in which requests come first."""

COMMAND = ("-m", "steerserve.engines.sandbox.directions")

Question = tuple[str, DirectionFile, ReadOptions]
"""The noun of the formats, the file, and what the client says about it."""


class FileAnswer(msgspec.Struct):
    """What was read, as MessagePack; or the code, the message and the details of the refusal."""

    read: bytes = b""
    refusal: tuple[str, str, dict[str, object]] | None = None


async def read_file(formats: Formats[Read], file: DirectionFile, options: ReadOptions) -> Read:
    """The vector, or the probe, in a file.

    Raises:
        Refusal: what `Formats.read` refuses; INVALID_VECTOR or INVALID_PROBE for a file that takes too much time or
            memory; INTERNAL_ERROR when no process starts.
    """
    process = PoolProcess(
        "the reader of files of directions", [sys.executable, *COMMAND], niceness=NICENESS
    )
    question = msgspec.msgpack.encode((formats.noun, file, options))
    try:
        body = await process.ask(question, READ_SECONDS)
    except TimeoutError:
        raise formats.refusal(file.name, f"takes longer than {READ_SECONDS:g} s to read") from None
    except Died:
        raise formats.refusal(file.name, "needs more memory than a file may take") from None
    finally:
        await process.close()
    answer = msgspec.msgpack.decode(body, type=FileAnswer)
    if answer.refusal is not None:
        code, message, details = answer.refusal
        raise Refusal(code, message, **details)  # type: ignore[arg-type]
    return msgspec.msgpack.decode(answer.read, type=formats.kind)


def answer(body: bytes) -> bytes:
    """What a file has, or its refusal."""
    noun, file, options = msgspec.msgpack.decode(body, type=Question)
    formats: Formats[Any] = PROBES if noun == PROBES.noun else VECTORS
    try:
        read = FileAnswer(msgspec.msgpack.encode(formats.read(file, options)))
    except Refusal as refusal:
        read = FileAnswer(refusal=(refusal.code, refusal.message, refusal.details))
    return msgspec.msgpack.encode(read)


def main() -> None:
    """The process."""
    limit(MEMORY_BYTES)
    serve(answer, READ_SECONDS)


if __name__ == "__main__":
    main()
