"""The log of this process, configured for a test."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from steerserve.logs import setup as log


@contextmanager
def configured(level: str, *others: logging.Handler) -> Iterator[None]:
    """While the block runs, the lines of this process go to the standard error as JSON, and to other handlers."""
    root = logging.getLogger()
    handlers, before = root.handlers[:], root.level
    log.configure(level, "json", *others)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(before)
