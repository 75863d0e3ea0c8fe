"""A connection of a client of live events: how large its messages may be, and how fast it may send them.

Clients send only subscriptions and answers to pings, which are a few bytes.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode

from steerserve.http.connections import Connections
from steerserve.rules.bounds import LIVE_BURST_BYTES, LIVE_BYTES_PER_SECOND, LIVE_FRAGMENTS


class WebSocketLink(WebSocketsSansIOProtocol):
    """A connection of live events."""

    def __init__(self, connections: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._connections = connections
        self._allowance = float(LIVE_BURST_BYTES)
        self._counted = self.loop.time()

    @property
    def is_held_up(self) -> bool:
        return not self.writable.is_set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connections.become(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.leave(self.transport)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        # the first bytes are the request that became this connection
        if self.handshake_initiated and not self._may_send(len(data)):
            self._cut("the client sent too much")
            return
        super().data_received(data)
        if len(self.frames) > LIVE_FRAGMENTS:
            self._cut("the message has too many fragments")

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            # otherwise the base class would log the refusal of a client as an error of the service
            self.handshake_complete = True

    def _cut(self, reason: str) -> None:
        if not self.close_sent:
            self.conn.fail(CloseCode.POLICY_VIOLATION, reason)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
        self.transport.close()

    def _may_send(self, size: int) -> bool:
        now = self.loop.time()
        grown = self._allowance + (now - self._counted) * LIVE_BYTES_PER_SECOND
        self._allowance = min(grown, float(LIVE_BURST_BYTES)) - size
        self._counted = now
        return self._allowance >= 0
