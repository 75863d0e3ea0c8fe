"""Lets one peer in to a host: the first one that proves to have the expected certificate. All others are turned away,
and take no place."""

from __future__ import annotations

import asyncio
import errno
import random
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from steerserve.engines.remote.certificates import is_pinned
from steerserve.engines.remote.channel import Channel

log = structlog.get_logger(__name__)

HANDSHAKE_SECONDS = 5.0
"""Seconds in which a peer must prove who it is."""

HANDSHAKES = 32
"""Connections that may be proving who they are at once. The next one takes the place of the oldest one."""

SHUTDOWN_SECONDS = 2.0
"""Seconds that the polite end of a connection may take."""

ANY_PORT = (0,)
"""Stands for any free port."""

MayOpen = Callable[[asyncio.BaseTransport], bool]


class NoPortIsFree(OSError):
    """All ports of a range are taken. The message is a clause."""


async def listen(address: str, ports: Sequence[int] = ANY_PORT) -> socket.socket:
    """A socket that listens at an address of this node, on one of these ports. A port of 0 means any free port.

    Raises:
        NoPortIsFree: others listen on all of these ports.
        OSError: the address is none, or not one of this node.
    """
    loop = asyncio.get_running_loop()
    family, kind, protocol, _, place = (
        await loop.getaddrinfo(address, 0, type=socket.SOCK_STREAM)
    )[0]
    # hosts that begin together try different ports first
    for port in random.sample(ports, len(ports)):
        listener = socket.socket(family, kind, protocol)
        try:
            # connections that came through a port of a range do not keep the next host from it
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(port != 0))
            listener.bind((place[0], port, *place[2:]))
            listener.listen(HANDSHAKES)
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            listener.setblocking(False)
            return listener
    raise NoPortIsFree(f"no port from {min(ports)} to {max(ports)} is free at {address}")


@dataclass(slots=True, eq=False)
class PeerListener:
    """The place where a host waits for its peer.

    Args:
        listener: closed as soon as the peer is in.
        context: the keys of the host, and the only certificate that is trusted.
        certificate: that certificate.
        make: makes the end of a new connection, which asks the function it gets whether it may open.
    """

    listener: socket.socket
    context: ssl.SSLContext
    certificate: str
    make: Callable[[MayOpen], Channel]
    _greetings: dict[Channel, asyncio.Task[None]] = field(default_factory=dict)
    _peer: Channel | None = None

    async def admit(self) -> Channel:
        """Wait for the peer. Afterwards nobody listens any more."""
        came = asyncio.Event()
        accepting = asyncio.create_task(self._accept(came), name="peer-listener")
        try:
            await came.wait()
            assert self._peer is not None
            return self._peer
        finally:
            accepting.cancel()
            await asyncio.sleep(
                0
            )  # each task has begun, and closes its connection when it is cancelled
            self.listener.close()
            self._turn_away(list(self._greetings))
            await asyncio.gather(accepting, *self._greetings.values(), return_exceptions=True)

    async def _accept(self, came: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                link, _ = await loop.sock_accept(self.listener)
            except OSError:
                log.exception("peer_not_accepted")
                await asyncio.sleep(0.1)  # for instance, too many files are open
                continue
            if len(self._greetings) >= HANDSHAKES:
                self._turn_away(list(self._greetings)[:1])
            channel = self._new(came)
            self._greetings[channel] = asyncio.create_task(self._greet(link, channel))

    def _turn_away(self, channels: list[Channel]) -> None:
        """Cut connections that are proving who they are. To cancel the task of the peer would cut the peer."""
        for channel in channels:
            if channel is not self._peer:
                self._greetings[channel].cancel()

    def _new(self, came: asyncio.Event) -> Channel:
        def may_open(transport: asyncio.BaseTransport) -> bool:
            connection = transport.get_extra_info("ssl_object")
            if self._peer is not None or not is_pinned(connection, self.certificate):
                return False
            self._peer = channel
            came.set()
            return True

        channel = self.make(may_open)
        return channel

    async def _greet(self, link: socket.socket, channel: Channel) -> None:
        """Let a peer prove who it is. `may_open` has decided before this returns."""
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: channel,
                link,
                ssl=self.context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=SHUTDOWN_SECONDS,
            )
        except (OSError, TimeoutError) as error:
            log.warning("peer_refused", reason=str(error) or type(error).__name__)
        finally:
            self._greetings.pop(channel, None)
