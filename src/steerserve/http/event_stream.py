"""The response whose body is server-sent events, the form of one event, and what is sent while the first is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final, TypeVar

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers by which proxies pass each event on at once."""

WAITING_SECONDS = 15.0
"""Proxies and clients end a connection on which nothing came for about 30 to 60 seconds."""
COMMENT = b": the model reads the prompt\n\n"
"""A line that readers of server-sent events skip."""
_END: Final = object()

Item = TypeVar("Item")


async def until_due(first: asyncio.Future[object]) -> None:
    """Wait until the future is done or a comment is due."""
    await asyncio.wait({first}, timeout=WAITING_SECONDS)


async def with_waits(items: AsyncIterator[Item]) -> AsyncIterator[Item | None]:
    """The items, and None each time that a comment is due before the first of them."""
    first = asyncio.ensure_future(_first(items))
    try:
        while not first.done():
            await until_due(first)
            if not first.done():
                yield None
    finally:
        if not first.done():
            first.cancel()
            with suppress(asyncio.CancelledError):
                await first
    item = first.result()
    if item is _END:
        return
    yield item  # type: ignore[misc]
    async for item in items:
        yield item


async def _first(items: AsyncIterator[object]) -> object:
    return await anext(items, _END)


class EventStream(StreamingResponse):
    """A response of server-sent events. Its end calls `close`, even when the client never reads a byte."""

    def __init__(
        self,
        events: AsyncIterator[bytes],
        close: Callable[[], Awaitable[None]],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        whole = {**(headers or {}), **HEADERS}
        super().__init__(events, media_type="text/event-stream", headers=whole)
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._close()


def event(data: bytes, name: str | None = None) -> bytes:
    """One event with JSON as its data, and perhaps a name."""
    named = f"event: {name}\n".encode() if name else b""
    return named + b"data: " + data + b"\n\n"
