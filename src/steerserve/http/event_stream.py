"""The response whose body is server-sent events, and the form of one event."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers by which proxies pass each event on at once."""


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
