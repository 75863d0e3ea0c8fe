"""Stored directions of a model's activations, of any kind: their rows, and the bytes of their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from steerserve.database.named import NamedStore
from steerserve.database.stored import Row
from steerserve.rules.steering.vector import Direction


class DirectionStore(NamedStore[Row]):
    """Reads and writes rows with directions, whose numbers are in the column `data`."""

    async def _add(self, row: Row, directions: Iterable[Direction]) -> Row:
        """Raises:
        Refusal: the noun's `_ALREADY_EXISTS`, DOCUMENT_STORE_FULL, INSUFFICIENT_DISK.
        """
        data = b"".join(one.data for one in directions)
        return await self._insert(row, len(data), data=data)

    async def _with_data(self, id_or_name: str) -> tuple[Row, bytes]:
        """Raises:
        Refusal: the noun's `_NOT_FOUND`.
        """
        found = await self._first(id_or_name, [*self._read, self._table.c.data])
        return self._record(found), found["data"]


class Placed(Protocol):
    """Where a direction is."""

    @property
    def layer(self) -> int: ...
    @property
    def site(self) -> str: ...


def split(places: Sequence[Placed], width: int, data: bytes) -> Iterator[Direction]:
    """The directions at these places, whose numbers `data` has one after the other."""
    size = 4 * width
    for index, at in enumerate(places):
        yield Direction(at.layer, at.site, data[index * size : (index + 1) * size])
