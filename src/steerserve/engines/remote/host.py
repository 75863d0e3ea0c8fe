"""The end of a link on the node: one engine, and the one peer that may use it.

The host passes bytes on between the engine's socket and the connection without reading them, and tells the peer every
moment how the engine is. The engine ends when its peer is gone, and the host ends with its engine.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import structlog

from steerserve.engines.checkpoint.process import ForkServer, Started
from steerserve.engines.remote import certificates
from steerserve.engines.remote.channel import PATIENCE, Channel, PartKind, Patience
from steerserve.engines.remote.facts import Contact, checkpoint_seen, read_facts
from steerserve.engines.remote.listener import ANY_PORT, PeerListener, listen
from steerserve.engines.remote.presence import NodeFiles
from steerserve.rules.residency import heartbeat

log = structlog.get_logger(__name__)

LIFE = struct.Struct(">Q?")
"""The payload of a beat of the node: the number that the engine writes, and whether its process is stopped."""

EXIT = struct.Struct(">i")
"""The payload of END: the exit code, negative for a signal."""

END_SECONDS = 5.0
"""Seconds in which an engine that has closed its socket must have ended, and its last bytes must have been sent."""


class EngineHost:
    """One engine on this node. `open` starts it, `ended` waits for the end of everything, `close` brings the end.

    Args:
        peer_certificate: the certificate of the only peer that may use the engine, in PEM.
        log_level: the level of the log of the engine.
        log_format: the form of its lines.
        start: starts the engine. By default the engine is started as on the machine of the control plane.
    """

    def __init__(
        self,
        peer_certificate: str,
        log_level: str,
        log_format: str,
        patience: Patience = PATIENCE,
        start: Callable[[], Awaitable[Started]] | None = None,
    ) -> None:
        self._peer_certificate = peer_certificate
        self._start = start or partial(ForkServer().start_engine, log_level, log_format)
        self._patience = patience
        self._serving: asyncio.Task[str] | None = None
        self._closing = asyncio.Event()

    async def open(self, address: str, ports: Sequence[int] = ANY_PORT) -> Contact:
        """Start the engine, and listen for the peer at an address of this node, on one of these ports.

        Raises:
            ValueError: the certificate of the peer is none.
            NoPortIsFree: others listen on all of these ports.
            OSError: the address cannot be listened at.
        """
        identity = certificates.new_identity()
        context = identity.as_server(self._peer_certificate)
        facts = await asyncio.to_thread(read_facts, address)
        listener = await listen(address, ports)
        port = listener.getsockname()[1]
        try:
            started = await self._start()
        except BaseException:
            listener.close()
            raise
        serving = self._serve(listener, context, started)
        self._serving = asyncio.create_task(serving, name="engine-host")
        return Contact(address, port, identity.certificate, started[0].pid, facts)

    async def checkpoint_seen(self, path: str) -> str | None:
        """The digest of a checkpoint folder as this node sees it; None where this node does not see it."""
        return await asyncio.to_thread(checkpoint_seen, path)

    async def ended(self) -> str:
        """Wait until the engine has ended and nobody listens any more. Returns the reason as a clause."""
        assert self._serving is not None, "the host was not opened"
        return await asyncio.shield(self._serving)

    async def close(self) -> None:
        """End the engine and the connection at once."""
        self._closing.set()
        if self._serving is not None:
            await asyncio.wait([self._serving])

    async def _serve(
        self, listener: socket.socket, context: ssl.SSLContext, started: Started
    ) -> str:
        """Serve one peer to the end of the engine, the peer, or the host. Returns the reason of the end."""
        engine, _, writer = started
        relay = Relay(started)
        peer_listener = PeerListener(
            listener,
            context,
            self._peer_certificate,
            partial(Channel, relay, relay.life, self._patience),
        )
        using = asyncio.create_task(self._use(peer_listener, relay))
        closing = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait([using, closing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            engine.kill()
            writer.close()
            closing.cancel()
            using.cancel()
            await asyncio.wait([using])
            await relay.close()
            await engine.wait()
        if using.cancelled():
            return "the host was closed"
        if (error := using.exception()) is not None:
            log.error("host_failed", exc_info=error)
            return f"the host failed ({type(error).__name__})"
        return using.result()

    async def _use(self, peer_listener: PeerListener, relay: Relay) -> str:
        try:
            async with asyncio.timeout(self._patience.contact):
                channel = await peer_listener.admit()
        except TimeoutError:
            return f"no peer came within {self._patience.contact:g} s"
        log.info("peer_admitted")
        try:
            return await relay.run(channel)
        finally:
            channel.abort("the host has ended")


class Relay:
    """Passes bytes on between one engine and one channel. Satisfies `ChannelEnd`."""

    def __init__(self, started: Started) -> None:
        self._engine, self._reader, self._writer = started
        self._untaken = 0
        self._came = asyncio.Event()
        self._files = NodeFiles()

    def life(self) -> bytes:
        """The payload of a beat."""
        sign = self._engine.sign()
        return LIFE.pack(heartbeat.word(sign.activity, sign.count), sign.is_stopped)

    def take_data(self, data: bytes) -> None:
        # the credit of the sender bounds what the engine has not read yet
        if not self._writer.is_closing():
            self._writer.write(data)
        self._untaken += len(data)
        self._came.set()

    def take_word(self, kind: PartKind, payload: bytes) -> None:
        if kind is PartKind.KILL:
            self._engine.kill()
        elif kind is PartKind.ASK:
            self._files.take_payload(payload)

    def take_loss(self) -> None:
        """Nothing to do: `run` waits for the loss."""

    async def run(self, channel: Channel) -> str:
        """Pass everything on until the engine or the connection ends. Returns the reason of the end."""
        up = asyncio.create_task(self._send_events(channel))
        down = asyncio.create_task(self._grant_room(channel))
        bringing = asyncio.create_task(self._files.run(channel))
        try:
            ends: list[asyncio.Future[Any]] = [up, channel.lost]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if channel.lost.done():
                return channel.lost.result()
            await self._tell_end(channel)
            return self._engine.reason()
        finally:
            tasks = [up, down, bringing]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """End the fetches that still run."""
        await self._files.close()

    async def _send_events(self, channel: Channel) -> None:
        with suppress(ConnectionError):
            while data := await self._reader.read(1 << 16):
                channel.write(data)
                await channel.drain()

    async def _grant_room(self, channel: Channel) -> None:
        """Give the sender room again as the engine reads."""
        with suppress(ConnectionError):
            while await self._came.wait():
                self._came.clear()
                size, self._untaken = self._untaken, 0
                await self._writer.drain()
                channel.took(size)

    async def _tell_end(self, channel: Channel) -> None:
        """Send what is left of an engine that has closed its socket, and its exit code."""
        await self._engine.wait(END_SECONDS)
        self._engine.kill()
        await self._engine.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await channel.flush()
                code = self._engine.exitcode
                channel.say(PartKind.END, EXIT.pack(code or 0))
                channel.close()
                await asyncio.wait([channel.lost])
