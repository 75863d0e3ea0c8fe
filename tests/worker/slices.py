"""Work that the engine does in slices between its steps, done at once."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

Result = TypeVar("Result")


def finished(work: Generator[None, None, Result]) -> Result:
    while True:
        try:
            next(work)
        except StopIteration as ended:
            result: Result = ended.value
            return result
