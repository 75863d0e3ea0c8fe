"""Clients of live events, many in one process. Each speaks Socket.IO over a WebSocket and notes changes of steering."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

ADDRESS = "ws://127.0.0.1:{port}/socket.io/?EIO=4&transport=websocket"
OPEN, PING, PONG, CONNECT, CONNECTED = b"0", b"2", "3", "40", b"40"
"""The first bytes of packets of Engine.IO and Socket.IO."""
EVENT = re.compile(rb'42\["steering:update",.*?"values":\{"0":([-0-9.e]+)\}')
OPENING = 100
"""The most clients that connect at once."""
CONNECT_SECONDS = 30.0


class LiveClient(asyncio.Protocol):
    """One client. `seen` has the time and the value of each change of the steering of feature 0."""

    def __init__(self, port: int) -> None:
        self._wire = ClientProtocol(parse_uri(ADDRESS.format(port=port)))
        self.joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.seen: list[tuple[float, float]] = []
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._wire.send_request(self._wire.connect())
        self._flush()

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self._wire.receive_data(data)
        for event in self._wire.events_received():
            if isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                self._read(bytes(event.data), now)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.joined.done():
            self.joined.set_exception(exc or ConnectionError("the service refused the client"))

    def _read(self, packet: bytes, now: float) -> None:
        if found := EVENT.match(packet):
            self.seen.append((now, float(found[1])))
        elif packet.startswith(OPEN):
            self._wire.send_text(CONNECT.encode())
        elif packet.startswith(PING):
            self._wire.send_text(PONG.encode())
        elif packet.startswith(CONNECTED) and not self.joined.done():
            self.joined.set_result(None)

    def _flush(self) -> None:
        assert self.transport is not None
        for part in self._wire.data_to_send():
            self.transport.write(part)


@asynccontextmanager
async def connected(port: int, count: int) -> AsyncIterator[list[LiveClient]]:
    """So many clients that have joined."""
    gate = asyncio.Semaphore(OPENING)
    clients: list[LiveClient] = []

    async def one() -> None:
        async with gate, asyncio.timeout(CONNECT_SECONDS):
            client = LiveClient(port)
            clients.append(client)
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: client, "127.0.0.1", port)
            await client.joined

    try:
        await asyncio.gather(*(one() for _ in range(count)))
        yield clients
    finally:
        for client in clients:
            if client.transport is not None:
                client.transport.abort()
