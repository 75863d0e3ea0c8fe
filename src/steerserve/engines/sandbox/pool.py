"""Several processes that answer questions, and the fair order of the questions that wait for one of them.

`ProcessPool` owns the processes, the waiting questions, and the time that each client has used. The decisions are those
of `rules/inference/fairness.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from steerserve.engines.sandbox.pool_process import PoolProcess, stopping
from steerserve.errors import Refusal
from steerserve.logs import background
from steerserve.rules.bounds import ACCOUNTS_KEPT
from steerserve.rules.inference import fairness
from steerserve.rules.inference.fairness import Account, Turn


class LineFull(Exception):
    """Too many questions wait, and this one is among those of the client that has most of them."""


class _Yielded(Exception):
    """The question has become long, and no process is left for a further long question."""


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """The questions of one moment."""

    waiting: int
    running: int


class ProcessPool:
    """A question waits until it has a process. The process that was used last is used next, so most services never
    start a second process. A question that becomes long may lose its process to others; it then waits again and starts
    anew.

    Args:
        waiting_maximum: the number of questions that may wait, of those that say they may be refused.
    """

    def __init__(
        self, name: str, command: Sequence[str], count: int, waiting_maximum: int = 0
    ) -> None:
        self._processes = [PoolProcess(name, command) for _ in range(count)]
        self._free = list(self._processes)
        self._waiting_maximum = waiting_maximum
        self._numbers = itertools.count()
        self._waiting: dict[Turn, asyncio.Future[PoolProcess]] = {}
        self._running: dict[Turn, float] = {}
        """Questions that hold a process, each with the time since which it has not been charged."""
        self._accounts: dict[str, Account] = {}
        self._renewals: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def pids(self) -> list[int]:
        """The ids of the processes that run."""
        return [process.pid for process in self._processes if process.pid is not None]

    def counts(self) -> PoolCounts:
        return PoolCounts(len(self._waiting), len(self._running))

    async def close(self) -> None:
        """End the processes. Questions that wait or run are refused."""
        self._is_closed = True
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(stopping())
        renewals = list(self._renewals)
        for renewal in renewals:
            renewal.cancel()
        for process in self._processes:
            await process.close()
        await asyncio.gather(*renewals, return_exceptions=True)

    async def ask(
        self, body: bytes, seconds: float, client: str, *, may_drop: bool = False
    ) -> bytes:
        """The answer of a process.

        Raises:
            TimeoutError: the answer takes longer than `seconds`, without the wait for a process.
            Died: the process did not survive the question.
            LineFull: the question may be refused (`may_drop`), and too many wait.
            Refusal: SHUTTING_DOWN, or INTERNAL_ERROR when no process starts.
        """
        turn = Turn(client, next(self._numbers), len(body), may_drop=may_drop)
        while True:
            process = await self._process_for(turn)
            try:
                return await self._answer(turn, process, body, seconds)
            except _Yielded:
                turn = replace(turn, is_long=True)

    # ------------------------------------------------------------- inside

    async def _process_for(self, turn: Turn) -> PoolProcess:
        """A process, which the turn then holds."""
        if self._is_closed:
            raise stopping()
        future: asyncio.Future[PoolProcess] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = future
        self._begin()
        dropped = fairness.overflow(self._unanswered(), self._waiting_maximum)
        if dropped is not None:
            self._waiting.pop(dropped).set_exception(LineFull())
        try:
            return await future
        except asyncio.CancelledError:
            # the process, or a refusal, may have come in the moment in which the client left
            if turn in self._running:
                self._release(turn, future.result())
            elif not future.cancelled() and future.done():
                future.exception()
            raise
        finally:
            self._waiting.pop(turn, None)

    def _unanswered(self) -> list[Turn]:
        """The waiting questions, without those whose clients have left."""
        return [turn for turn, future in self._waiting.items() if not future.done()]

    def _begin(self) -> None:
        """Give the free processes to the questions that are next."""
        while self._free:
            waiting = self._unanswered()
            used = self._used({turn.client for turn in waiting})
            turn = fairness.next_turn(waiting, self._running, len(self._processes), used)
            if turn is None:
                return
            process = next(
                (process for process in reversed(self._free) if process.is_warm), self._free[-1]
            )
            self._free.remove(process)
            self._running[turn] = time.monotonic()
            self._waiting.pop(turn).set_result(process)

    async def _answer(self, turn: Turn, process: PoolProcess, body: bytes, seconds: float) -> bytes:
        """Raises:
        _Yielded: the question has become long, and may not be.
        """
        asking: asyncio.Task[bytes] | None = None
        try:
            await process.warm()
            asking = asyncio.create_task(process.ask(body, seconds))
            if not turn.is_long:
                await asyncio.wait({asking}, timeout=fairness.QUICK_SECONDS)
                if not asking.done():
                    turn = self._grown(turn)
            return await asking
        finally:
            if asking is not None and not asking.done():
                asking.cancel()
                await asyncio.wait({asking})
            self._release(turn, process)

    def _grown(self, turn: Turn) -> Turn:
        """The turn as a long one, which holds the process on."""
        grown = replace(turn, is_long=True)
        others = [other for other in self._running if other != turn]
        if not fairness.may_run(grown, others, len(self._processes)):
            raise _Yielded
        self._running[grown] = self._running.pop(turn)
        if self._free and not any(process.is_warm for process in self._free):
            # costly questions are about, so the next quick one shall not wait for the start of a process
            self._renew(self._free.pop(), None)
        return grown

    def _release(self, turn: Turn, process: PoolProcess) -> None:
        """Charge the client, and free the process. The start of a new process, where this one had to be ended, is
        charged too."""
        if process.is_warm or self._is_closed:
            self._charge(turn)
            self._free.append(process)
            self._begin()
        else:
            starting = replace(turn, is_long=False)
            self._running[starting] = self._running.pop(turn)
            self._renew(process, starting)

    def _renew(self, process: PoolProcess, turn: Turn | None) -> None:
        renewal = background.start(self._warm(process, turn))
        self._renewals.add(renewal)
        renewal.add_done_callback(self._renewals.discard)

    async def _warm(self, process: PoolProcess, turn: Turn | None) -> None:
        """Start the process of a process. A failure is left for the next question, which then raises it."""
        try:
            with contextlib.suppress(Refusal):
                await process.warm()
        finally:
            if turn is not None:
                self._charge(turn)
            self._free.append(process)
            self._begin()

    def _charge(self, turn: Turn) -> None:
        now = time.monotonic()
        account = self._accounts.get(turn.client, Account())
        self._accounts[turn.client] = account.charged(now - self._running.pop(turn), now)
        if len(self._accounts) > 2 * ACCOUNTS_KEPT:
            self._accounts = fairness.kept(self._accounts, now)

    def _used(self, clients: set[str]) -> dict[str, float]:
        """The seconds that each of these clients used lately, those of its running questions included."""
        now = time.monotonic()
        used = {client: self._accounts.get(client, Account()).lately(now) for client in clients}
        for turn, since in self._running.items():
            if turn.client in used:
                used[turn.client] += now - since
        return used
