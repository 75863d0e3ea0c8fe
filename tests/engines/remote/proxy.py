"""A network between two nodes that a test can make worse: it swallows bytes, delays them, or cuts the connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from steerserve.engines.remote.facts import Contact

HERE = "127.0.0.1"


class Proxy:
    """Passes the bytes of each connection on to a host."""

    def __init__(self) -> None:
        self.is_split = False
        """While set, bytes in both directions vanish, and no connection is closed."""
        self.delay = 0.0
        """Seconds that each chunk takes longer."""
        self.pace = 0
        """Bytes per second; 0 for no bound."""
        self.held: asyncio.Event | None = None
        """While there is one that is not set, bytes in both directions wait."""
        self._writers: list[asyncio.StreamWriter] = []

    def cut(self) -> None:
        """End all connections at once, in both directions."""
        for writer in self._writers:
            writer.transport.abort()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with suppress(ConnectionError):
            while chunk := await reader.read(1 << 14):
                if self.delay:
                    await asyncio.sleep(self.delay)
                if self.pace:
                    await asyncio.sleep(len(chunk) / self.pace)
                if self.held is not None:
                    await self.held.wait()
                if not self.is_split:
                    writer.write(chunk)
                    await writer.drain()
        if not self.is_split:
            writer.close()


@asynccontextmanager
async def between(contact: Contact) -> AsyncIterator[tuple[Contact, Proxy]]:
    """A contact that reaches the host through a proxy."""
    async with proxied(contact.host, contact.port) as (port, proxy):
        yield replace(contact, host=HERE, port=port), proxy


@asynccontextmanager
async def proxied(host: str, port: int) -> AsyncIterator[tuple[int, Proxy]]:
    """A port of this machine that reaches another one through a proxy."""
    proxy = Proxy()
    tasks: list[asyncio.Task[None]] = []

    async def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(host, port, limit=1 << 14)
        except ConnectionError:
            writer.transport.abort()
            return
        tasks.append(asyncio.create_task(proxy.carry(reader, back)))
        tasks.append(asyncio.create_task(proxy.carry(there, writer)))

    server = await asyncio.start_server(joined, HERE, 0, limit=1 << 14)
    try:
        yield server.sockets[0].getsockname()[1], proxy
    finally:
        server.close()
        proxy.cut()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
