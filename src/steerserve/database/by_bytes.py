"""Rows that are read in portions of bounded size, however many or large they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from steerserve.rules.bounds import STORED_READ_BYTES

SIZES_AT_ONCE = 500
"""The rows whose sizes one statement reads."""


class Portion(NamedTuple):
    """Rows with the numbers `first` to `last`, and their size in bytes."""

    first: int
    last: int
    size: int


def portions(sizes: Iterable[tuple[int, int]]) -> Iterator[Portion]:
    """Rows, given by their numbers and sizes, in portions of at most STORED_READ_BYTES. A larger row is a portion of
    its own."""
    portion: Portion | None = None
    for number, size in sizes:
        if portion is None:
            portion = Portion(number, number, size)
        elif portion.size + size <= STORED_READ_BYTES:
            portion = Portion(portion.first, number, portion.size + size)
        else:
            yield portion
            portion = Portion(number, number, size)
    if portion is not None:
        yield portion
