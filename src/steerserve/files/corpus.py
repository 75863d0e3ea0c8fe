"""Files of texts on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import IO

from steerserve.errors import Refusal
from steerserve.files import local
from steerserve.files.model_content import ReadingEnded
from steerserve.rules.bounds import CORPUS_TEXT_BYTES
from steerserve.rules.inference.corpus_texts import check_name
from steerserve.rules.units import MIB


def find(named: str, most_mb: int, check: local.PathCheck) -> Path:
    """The file of texts that a client names. `check` refuses a path that may not be read.

    Raises:
        Refusal: INVALID_LOCAL_PATH; INVALID_PARAMETER for a file of no known kind; PAYLOAD_TOO_LARGE.
    """
    check(named)
    path = local.resolve_file(named)
    check_name(path.name)
    with local.reading(path.parent):
        size = path.stat().st_size
    if size > most_mb * MIB:
        raise Refusal(
            "PAYLOAD_TOO_LARGE",
            f"the file has {-(-size // MIB)} MiB; at most {most_mb} MiB are read (CORPORA_MAX_MB)",
            param="local_path",
            limit_mb=most_mb,
        )
    return path


def lines(path: Path, ended: Event) -> Iterator[bytes]:
    """The lines of a file, until `ended` is set. Of a line that is too long, there is more than CORPUS_TEXT_BYTES.

    Raises:
        Refusal: INVALID_LOCAL_PATH where it cannot be read.
        ReadingEnded
    """
    with local.reading(path.parent), path.open("rb") as opened:
        yield from lines_of(opened, ended)


def lines_of(opened: IO[bytes], ended: Event) -> Iterator[bytes]:
    """The lines of an open file, as `lines` gives them."""
    while line := opened.readline(CORPUS_TEXT_BYTES + 1):
        if ended.is_set():
            raise ReadingEnded
        yield line
