"""Stored directions that requests named lately, in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from steerserve.rules.steering.vector import Direction

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


class Kept(Generic[Kind]):
    """Owner of what is kept. `read` reads one from the database."""

    def __init__(self, read: Callable[[str], Awaitable[Kind]]) -> None:
        self._read = read
        self._kept: dict[str, Kind] = {}
        self._ids: dict[str, str] = {}
        self._bytes = 0
        self._removals = 0

    async def find(self, id_or_name: str) -> Kind:
        """The one that a request names. One that was found lately comes from memory.

        Raises:
            Refusal: as `read`.
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

    def remove(self, removed: str) -> None:
        """The one with this id was deleted."""
        self._removals += 1
        self._forget(removed)

    def _forget(self, forgotten: str) -> None:
        one = self._kept.pop(forgotten, None)
        if one is not None:
            self._bytes -= _size(one)
            del self._ids[one.name]


def _size(one: Named) -> int:
    return sum(len(direction.data) for direction in one.directions)
