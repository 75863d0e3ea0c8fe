"""Cancels the work for an answer when the client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

Result = TypeVar("Result")


async def answer_nobody(_: Request, __: Exception) -> Response:
    """The answer where a client went away. It is empty, because the client cannot read it."""
    return Response(status_code=499)


async def unless_disconnected(request: Request, work: Coroutine[object, object, Result]) -> Result:
    """The result of the work. The work is cancelled when the client goes away before the end. The body of the request
    must have been read before.

    Raises:
        ClientDisconnect: the client went away.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.wait({working, watching})
        if working.done() and not working.cancelled():
            working.exception()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
