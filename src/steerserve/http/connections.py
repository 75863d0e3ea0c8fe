"""Owner of the open connections: how many there are, which of them wait for a request, and which clients stopped
reading. It knows no protocol; `http/protocol.py` tells it what a connection does."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import sys
import termios
from collections.abc import Iterator
from enum import Enum
from itertools import islice
from typing import Protocol

import structlog

from steerserve.rules.bounds import RESERVED_CONNECTIONS, UNREAD_BYTES
from steerserve.settings import Settings

log = structlog.get_logger(__name__)

FRESH_SECONDS = 0.25
"""How long a new connection has its place for its first request, which may be on its way."""
REPLACED = 8
"""The most connections that enter at once where each closes another one. Both have an open file for a moment."""
WARNING_SECONDS = 60.0
"""The least time between two warnings that all connections are taken."""


class Place(Enum):
    """What a new connection may do."""

    ANY = "every request is served"
    PROBES = "only probes are served"


class Link(Protocol):
    """One connection, as its owner sees it."""

    transport: asyncio.Transport

    @property
    def is_held_up(self) -> bool:
        """Whether the answer cannot go on before the client reads."""
        ...


class Connections:
    """Owner of the open connections of one server.

    Above the limit the connection that waits longest without a request is closed for the new one, unless it came in the
    last FRESH_SECONDS and has made no request yet. Where no connection may be closed, the new one gets a reserved
    place. `limit` is MAX_CONNECTIONS, or fewer where this process may not have so many files open.
    """

    def __init__(self, settings: Settings, limit: int | None = None) -> None:
        self.settings = settings
        self.limit = limit or settings.max_connections
        self._open: dict[asyncio.Transport, Link] = {}
        self._waiting: dict[asyncio.Transport, float] = {}
        """Connections without the whole head of a request, the longest waiting first -> when they may be closed for
        another one."""
        self._stuck: dict[asyncio.Transport, tuple[int, float]] = {}
        """Connections whose client must read -> the bytes that it must read, and the time since it read nothing."""
        self._held_up: dict[asyncio.Transport, None] = {}
        """Connections whose answer cannot go on before the client reads, the longest held up first."""
        self._watching: asyncio.TimerHandle | None = None
        self._warned: float | None = None

    def has_place(self, entering: int, now: float) -> bool:
        """Whether one more connection may be accepted. `entering` connections are accepted and have no place yet."""
        if len(self._open) + entering < self.limit + RESERVED_CONNECTIONS:
            return True
        closable = len(list(islice(self._closable(now), entering + 1)))
        if entering < REPLACED and closable > entering:
            return True
        self.warn(now)
        return False

    def enter(self, link: Link, loop: asyncio.AbstractEventLoop) -> Place:
        """Give a new connection its place."""
        limit = self.limit
        now = loop.time()
        if len(self._open) >= limit:
            self._make_room(now)
        count = len(self._open)
        if count >= limit:
            self.warn(now)
        self._open[link.transport] = link
        self._waiting[link.transport] = now + FRESH_SECONDS
        self._watch(loop)
        return Place.ANY if count < limit else Place.PROBES

    def become(self, link: Link) -> None:
        """Another protocol took over the connection."""
        self._open[link.transport] = link

    def leave(self, transport: asyncio.Transport) -> None:
        for kept in (self._open, self._waiting, self._stuck, self._held_up):
            kept.pop(transport, None)

    def serve(self, transport: asyncio.Transport) -> None:
        """The head of a request is whole."""
        self._waiting.pop(transport, None)

    def wait(self, transport: asyncio.Transport) -> None:
        """The connection has no request any more."""
        if transport in self._open:
            self._waiting[transport] = 0.0

    def hold_up(self, transport: asyncio.Transport) -> None:
        """The answer cannot go on before the client reads. If the clients leave more than UNREAD_BYTES unread, the
        connections that are held up longest are cut."""
        self._held_up[transport] = None
        unread = sum(one.get_write_buffer_size() for one in self._held_up)
        for one in list(self._held_up):
            if unread <= UNREAD_BYTES:
                return
            unread -= one.get_write_buffer_size()
            log.warning("unread_answer_cut", unread_bytes=one.get_write_buffer_size())
            self.leave(one)
            _cut(one)

    def go_on(self, transport: asyncio.Transport) -> None:
        """The client has read."""
        self._held_up.pop(transport, None)

    def warn(self, now: float) -> None:
        """Log that all connections are in use, at most once in WARNING_SECONDS."""
        if self._warned is None or now - self._warned >= WARNING_SECONDS:
            self._warned = now
            log.warning("connections_full", max_connections=self.limit)

    # ------------------------------------------------------------- inside

    def _closable(self, now: float) -> Iterator[asyncio.Transport]:
        """The connections that may be closed, the longest waiting first. One whose last answer is not read to its end
        stays."""
        for transport, closable in self._waiting.items():
            if closable <= now and not transport.get_write_buffer_size():
                yield transport

    def _make_room(self, now: float) -> None:
        transport = next(self._closable(now), None)
        if transport is not None:
            self.leave(transport)
            transport.close()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._watching is None:
            seconds = self.settings.answer_stall_timeout / 4
            self._watching = loop.call_later(seconds, self._cut_stuck, loop)

    def _cut_stuck(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cut the connections whose clients read nothing for too long. A client that reads slowly is not cut."""
        now = loop.time()
        for transport, link in list(self._open.items()):
            size = transport.get_write_buffer_size() and _unread(transport)
            if not size or not (link.is_held_up or transport.is_closing()):
                self._stuck.pop(transport, None)
                continue
            before, since = self._stuck.get(transport, (size + 1, now))
            if size < before:
                self._stuck[transport] = (size, now)
            elif now - since >= self.settings.answer_stall_timeout:
                _cut(transport)
        self._watching = None
        if self._open:
            self._watch(loop)


def _unread(transport: asyncio.Transport) -> int:
    """Bytes that the client has not taken: those in this process, and those that the system holds for the client."""
    try:
        held = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:
        held = bytes(4)
    return transport.get_write_buffer_size() + int.from_bytes(held, sys.byteorder)


def _cut(transport: asyncio.Transport) -> None:
    """End the connection at once. The system drops what the client has not read; otherwise the system would keep these
    bytes for a client that may never read them."""
    transport.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )
    transport.abort()
