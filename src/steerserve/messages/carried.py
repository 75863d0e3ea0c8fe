"""Edits that are carried to their end, also when the task that asked for them is cancelled.

An edit changes an engine and then the state of its owner. If it ended between the two, the owner would report another
state than the engine has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import structlog

from steerserve.errors import Refusal

log = structlog.get_logger(__name__)
Given = ParamSpec("Given")
Result = TypeVar("Result")
Work = Callable[[], Coroutine[Any, Any, Result]]


async def carry_edit(lock: asyncio.Lock, edit: Work[Result]) -> Result:
    """Take the lock, make the edit, and free the lock. A caller that is cancelled before the lock is taken has changed
    nothing. A caller that is cancelled later does not stop the edit.

    Raises:
        Exception: whatever the edit raises.
    """
    await lock.acquire()
    return await carry_on(edit, lock.release)


async def carry_on(edit: Work[Result], release: Callable[[], None] = lambda: None) -> Result:
    """Make the edit, and call `release` at its end. A caller that is cancelled does not stop the edit.

    Raises:
        Exception: whatever the edit raises.
    """
    # the task needs no owner: whoever completes what it waits for keeps it alive
    task = asyncio.create_task(edit(), name="edit")
    task.add_done_callback(lambda _: release())
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_log_fault)
        raise


def carried(
    method: Callable[Given, Coroutine[Any, Any, Result]],
) -> Callable[Given, Coroutine[Any, Any, Result]]:
    """Let a method of an owner run to its end, from its first step, also when its caller is cancelled."""

    @wraps(method)
    async def carry(*args: Given.args, **fields: Given.kwargs) -> Result:
        return await carry_on(lambda: method(*args, **fields))

    return carry


async def finish_edit(edit: Coroutine[Any, Any, object], then: Callable[[], None]) -> None:
    """Make a short edit, then call `then` if it succeeded. A cancellation of the caller takes effect after both.

    Raises:
        Exception: whatever the edit raises.
    """
    task, cancelled = asyncio.create_task(edit, name="edit"), None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    try:
        task.result()
        then()
    finally:
        if cancelled is not None:
            raise cancelled


def _log_fault(task: asyncio.Task[Any]) -> None:
    """Log an error of an edit that nobody waits for. A refusal has changed nothing, so it needs no line."""
    if task.cancelled():
        return
    error = task.exception()
    if error is not None and not isinstance(error, Refusal):
        log.error("edit_failed", exc_info=error)
