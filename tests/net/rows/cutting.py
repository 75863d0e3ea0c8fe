"""Cancels the task of a client at a chosen await, its own or one of the tasks that it has begun."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, ClassVar


class Cut:
    """Counts the suspensions of a client's task and of all tasks that it begins, and cancels the client's task at the
    suspension of the number `at`. With `is_late` the cancel comes when what is waited for is done, and whoever waits
    has not gone on yet."""

    running: ClassVar[Cut | None] = None
    """The cut whose work takes a step now."""

    def __init__(self, at: int, *, is_late: bool) -> None:
        self._at = at
        self._is_late = is_late
        self._client: asyncio.Task[None] | None = None
        self._seen = 0

    @property
    def has_cut(self) -> bool:
        """Whether there were so many suspensions."""
        return self._seen >= self._at

    async def run(self, work: Coroutine[Any, Any, Any]) -> bool:
        """Run work as the client. Returns whether it was cancelled before its end."""
        loop = asyncio.get_running_loop()
        loop.set_task_factory(_begin)
        try:
            self._client = asyncio.Task(_Steps(self, work), loop=loop)
            await asyncio.wait([self._client])
            has_cut = self.has_cut
        finally:
            loop.set_task_factory(None)
        # work that is carried on may end although its client has left
        if not self._client.cancelled():
            self._client.result()
        return has_cut

    def suspended(self, waited: asyncio.Future[Any] | None) -> None:
        """One of the tasks waits for this."""
        self._seen += 1
        client = self._client
        if self._seen != self._at or client is None:
            return
        if self._is_late and waited is not None:
            # before the task hears of it
            waited.add_done_callback(lambda _: client.cancel())
        else:
            client.cancel()


class _Steps(Coroutine[Any, Any, Any]):
    """The steps of the work of one task."""

    def __init__(self, cut: Cut, work: Coroutine[Any, Any, Any]) -> None:
        self._cut = cut
        self._work = work

    def send(self, value: Any) -> Any:
        return self._step(self._work.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._work.throw, *error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise NotImplementedError("a task takes its steps")

    def _step(self, go_on: Callable[..., Any], *args: Any) -> Any:
        before, Cut.running = Cut.running, self._cut
        try:
            waited = go_on(*args)
        finally:
            Cut.running = before
        self._cut.suspended(waited)
        return waited


def _begin(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **fields: Any
) -> asyncio.Task[Any]:
    """A task, whose suspensions are counted where a client has begun it."""
    counted = work if Cut.running is None else _Steps(Cut.running, work)
    return asyncio.Task(counted, loop=loop, **fields)
