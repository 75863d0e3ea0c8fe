"""Files of texts on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from steerserve.errors import Refusal
from steerserve.files import local
from steerserve.rules.inference.corpus_texts import LINE_MAXIMUM, check_name
from steerserve.rules.units import MIB


def find(named: str, most_mb: int) -> Path:
    """The file of texts that a client names.

    Raises:
        Refusal: INVALID_LOCAL_PATH; INVALID_PARAMETER for a file of no known kind; PAYLOAD_TOO_LARGE.
    """
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


def lines(path: Path) -> Iterator[bytes]:
    """The lines of a file. Of a line that is too long, there is more than LINE_MAXIMUM bytes.

    Raises:
        Refusal: INVALID_LOCAL_PATH where it cannot be read.
    """
    with local.reading(path.parent), path.open("rb") as opened:
        while line := opened.readline(LINE_MAXIMUM + 1):
            yield line
