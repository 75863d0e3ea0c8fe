"""Decides who may use the llama.cpp server: rows that write share a pool of KV cells; an embedding has the server
alone.

First come, first served; rows of requests that yield come last, and none of them begins beside a row of another
request, or in the QUIET_SECONDS after it. Without the gate, the server would end every request when its pool runs
out, and an embedding would wait as long as any row writes. The gate sends a row only when its cells are free.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from steerserve.rules.inference.yielding import QUIET_SECONDS


@dataclass(slots=True, eq=False)
class LlamaSlot:
    """One slot of the server. Its cache begins with `tokens`. `held` is the number of cells that its row may fill;
    `turn` orders the slots by their last use; `yields` says whether its row is of a request that yields."""

    number: int
    tokens: Sequence[int] = ()
    held: int = 0
    turn: int = 0
    yields: bool = False


@dataclass(slots=True, eq=False)
class _Waiter:
    tokens: Sequence[int]
    need: int
    yields: bool = False
    admitted: asyncio.Future[LlamaSlot | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def wants_all(self) -> bool:
        return not self.need


class Gate:
    """Admits rows that fill `pool` tokens of cache at most, `places` rows at once."""

    def __init__(self, pool: int, places: int) -> None:
        self._pool = pool
        self._free = [LlamaSlot(number) for number in range(places)]
        self._running = 0
        self._held = 0
        self._live = 0
        self._quiet: asyncio.TimerHandle | None = None
        self._is_alone = False
        self._turns = 0
        self._waiting: deque[_Waiter] = deque()

    @property
    def is_idle(self) -> bool:
        return not (self._running or self._is_alone or self._waiting)

    @property
    def held(self) -> int:
        """The number of tokens of cache that the running rows may fill."""
        return self._held

    async def enter(self, tokens: Sequence[int], need: int, *, yields: bool = False) -> LlamaSlot:
        """A slot for a row with these prompt tokens that may fill `need` cells. The row keeps the slot until
        `leave`."""
        place = await self._turn(_Waiter(tokens, need, yields))
        assert place is not None
        return place

    def leave(self, place: LlamaSlot) -> None:
        self._running -= 1
        self._held -= place.held
        self._turns += 1
        place.held, place.turn = 0, self._turns
        self._free.append(place)
        if not place.yields:
            self._live -= 1
            if not self._live:
                self._keep_quiet()
        self._admit()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """While open, no other request uses the server; later ones wait."""
        await self._turn(_Waiter((), 0))
        try:
            yield
        finally:
            self._end_alone()

    def _end_alone(self) -> None:
        self._is_alone = False
        self._admit()

    async def _turn(self, waiter: _Waiter) -> LlamaSlot | None:
        self._waiting.append(waiter)
        self._admit()
        try:
            return await waiter.admitted
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
                self._admit()
            elif waiter.admitted.done() and not waiter.admitted.cancelled():
                # the waiter was admitted in the moment in which it was cancelled
                place = waiter.admitted.result()
                self._end_alone() if place is None else self.leave(place)
            raise

    def _keep_quiet(self) -> None:
        """Let rows that yield wait a moment, because the next live request often follows at once."""
        if self._quiet is not None:
            self._quiet.cancel()
        self._quiet = asyncio.get_running_loop().call_later(QUIET_SECONDS, self._end_quiet)

    def _end_quiet(self) -> None:
        self._quiet = None
        self._admit()

    def _next(self) -> _Waiter | None:
        """The waiter whose turn it is."""
        live = next((waiter for waiter in self._waiting if not waiter.yields), None)
        if live is not None or self._live or self._quiet is not None:
            return live
        return self._waiting[0] if self._waiting else None

    def _admit(self) -> None:
        while (waiter := self._next()) is not None and self._fits(waiter):
            self._waiting.remove(waiter)
            if waiter.admitted.done():
                continue
            if waiter.wants_all:
                self._is_alone = True
                waiter.admitted.set_result(None)
            else:
                waiter.admitted.set_result(self._taken(waiter))

    def _fits(self, waiter: _Waiter) -> bool:
        if self._is_alone:
            return False
        if waiter.wants_all:
            return not self._running
        return bool(self._free) and self._held + waiter.need <= self._pool

    def _taken(self, waiter: _Waiter) -> LlamaSlot:
        """Take the free slot whose cache begins with most of the prompt; among equals, the slot that was unused for
        longest."""
        best = max(
            self._free, key=lambda place: (_common(place.tokens, waiter.tokens), -place.turn)
        )
        self._free.remove(best)
        best.held, best.tokens, best.yields = waiter.need, waiter.tokens, waiter.yields
        self._live += not waiter.yields
        self._running += 1
        self._held += waiter.need
        return best


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """The number of tokens that both sequences begin with. It is searched by halving, because a comparison of slices is
    quick."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
