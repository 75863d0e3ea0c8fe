"""Stored vectors and probes: what requests do with both, and those that requests named lately, in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from steerserve.database.directions import DirectionStore
from steerserve.database.stored import Row
from steerserve.rules.steering.vector import Direction, check_name

KEPT_BYTES = 64 << 20
"""The most bytes of directions that are kept in memory for requests, of one kind."""


class Named(Protocol):
    """What requests name by its id or its name."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def directions(self) -> Sequence[Direction]: ...


Kind = TypeVar("Kind", bound=Named)


class Directions(Generic[Row, Kind]):
    """Owner of the vectors, or of the probes, that are kept in memory. All are records of `store`.

    Args:
        read: reads one from the database, with its directions.
        prefix: the beginning of all ids, with which no name begins.
    """

    def __init__(
        self, store: DirectionStore[Row], read: Callable[[str], Awaitable[Kind]], prefix: str
    ) -> None:
        self._rows = store
        self._read = read
        self._prefix = prefix
        self._kept: dict[str, Kind] = {}
        self._ids: dict[str, str] = {}
        self._bytes = 0
        self._removals = 0

    async def page(self, limit: int, offset: int = 0) -> tuple[list[Row], int]:
        """Some of the rows, oldest first, and how many there are."""
        return await self._rows.page(limit, offset)

    async def get(self, id_or_name: str) -> Row:
        """The row of one, without its directions.

        Raises:
            Refusal: VECTOR_NOT_FOUND or PROBE_NOT_FOUND.
        """
        return await self._rows.row(id_or_name)

    async def find(self, id_or_name: str) -> Kind:
        """The one that a request names by its id or its name. One that was found lately comes from memory.

        Raises:
            Refusal: VECTOR_NOT_FOUND or PROBE_NOT_FOUND; DATABASE_UNAVAILABLE.
        """
        kept = self._kept.get(self._ids.get(id_or_name, id_or_name))
        if kept is None:
            removals = self._removals
            kept = await self._read(id_or_name)
            if removals != self._removals:
                return kept  # it may be the one that was removed meanwhile
        self._forget(kept.id)
        self._kept[kept.id], self._ids[kept.name] = kept, kept.id
        self._bytes += _size(kept)
        while self._bytes > KEPT_BYTES:
            self._forget(next(iter(self._kept)))
        return kept

    async def check_name(self, name: str) -> None:
        """Refuse a name before a file is read or a text.

        Raises:
            Refusal: VALIDATION_ERROR; VECTOR_ALREADY_EXISTS or PROBE_ALREADY_EXISTS.
        """
        check_name(name, self._prefix)
        await self._rows.check_name(name)

    async def remove(self, id_or_name: str) -> str:
        """Delete one, and return its id.

        Raises:
            Refusal: VECTOR_NOT_FOUND or PROBE_NOT_FOUND.
        """
        row = await self._rows.row(id_or_name)
        await self._rows.remove(row.id)
        self._removals += 1
        self._forget(row.id)
        return row.id

    def _forget(self, forgotten: str) -> None:
        one = self._kept.pop(forgotten, None)
        if one is not None:
            self._bytes -= _size(one)
            del self._ids[one.name]


def _size(one: Named) -> int:
    return sum(len(direction.data) for direction in one.directions)
