"""One connection between two nodes: the bytes of an engine in both directions, and beats beside them.

A part is a kind, a size and a payload:

- DATA: bytes of the engine's frames. A frame is cut into small parts, so no beat waits for the rest of a large frame.
- CREDIT: how many more bytes of DATA the receiver takes. A sender without credit waits. So each end always reads what
  comes, beats pass an engine that reads nothing, and no end holds more than WINDOW bytes that nobody has taken yet.
- BEAT: a sign that the sender and the network work. The node's beats carry the heartbeat of the engine.
- KILL: the node shall end the engine at once.
- END: the engine has ended, with this exit code. Nothing follows.
- ASK, ANSWER: a part of a message about files on the node, to the host and from it (`words.py`).
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, cast

from steerserve.rules.residency import heartbeat
from steerserve.rules.residency.heartbeat import Sign, Silence

HEADER = struct.Struct(">BH")
LARGEST = (1 << 14) - HEADER.size
"""The most bytes of DATA in one part. The part then fills one TLS record."""

WINDOW = 1 << 20
"""The bytes of DATA that may be under way in one direction."""

UNSENT = 1 << 15
"""The unsent bytes from which on nothing more is given to the system. A beat waits behind no more than these."""

_CREDIT = struct.Struct(">I")


class PartKind(IntEnum):
    """The kinds of parts."""

    DATA = 0
    CREDIT = 1
    BEAT = 2
    KILL = 3
    END = 4
    ASK = 5
    ANSWER = 6


WORDS = frozenset(PartKind) - {PartKind.DATA, PartKind.CREDIT}
"""The kinds of parts that the ends of a channel take themselves."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Times in seconds: between two beats, without a beat until the other end counts as gone, and from the start of a
    host until its peer must have come."""

    beat: float = 0.25
    lost: float = 15.0
    contact: float = 60.0


PATIENCE = Patience()


class ChannelEnd(Protocol):
    """What uses a channel."""

    def take_data(self, data: bytes) -> None:
        """Take bytes of the engine. `Channel.took` gives their room back."""

    def take_word(self, kind: PartKind, payload: bytes) -> None:
        """Take a part that is neither DATA nor CREDIT."""

    def take_loss(self) -> None:
        """The connection has ended."""


class Channel(asyncio.Protocol):
    """One end of the connection. It satisfies `FrameWriter`. `lost` is done when the connection has ended, with the
    reason as a clause.

    Args:
        end: takes what comes.
        beat: the payload of the next beat.
        may_open: asked once about a connection whose other end has a trusted certificate.
    """

    def __init__(
        self,
        end: ChannelEnd,
        beat: Callable[[], bytes],
        patience: Patience,
        may_open: Callable[[asyncio.BaseTransport], bool],
    ) -> None:
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._end = end
        self._beat = beat
        self._patience = patience
        self._may_open = may_open
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._unsent: deque[memoryview] = deque()
        self._unsent_size = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._is_held = False
        self._credit = WINDOW
        self._granted = WINDOW
        self._owed = 0
        self._beats = 0
        self._silence: Silence | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reason: str | None = None

    # ------------------------------------------------------------- sending

    def write(self, data: bytes) -> None:
        """Send bytes of the engine. Does not wait; `drain` does."""
        if self.is_closing():
            return
        self._unsent.append(memoryview(data))
        self._unsent_size += len(data)
        self._push()

    async def drain(self) -> None:
        """Wait until little is unsent.

        Raises:
            ConnectionError: the connection has ended.
        """
        await self._has_room.wait()
        if self.is_closing():
            raise ConnectionResetError("the connection to the other node has ended")

    async def flush(self) -> None:
        """Wait until all bytes of the engine were given to the system, or the connection has ended."""
        while self._unsent_size and not self.lost.done():
            self._has_room.clear()
            await self._has_room.wait()

    def say(self, kind: PartKind, payload: bytes = b"") -> None:
        """Send a part of its own, before any bytes of the engine that wait."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(HEADER.pack(kind, len(payload)) + payload)

    def took(self, size: int) -> None:
        """So many bytes of DATA have been taken further. Their room is given back in large steps."""
        self._owed += size
        if self._owed >= WINDOW // 4:
            self._granted += self._owed
            self.say(PartKind.CREDIT, _CREDIT.pack(self._owed))
            self._owed = 0

    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def close(self) -> None:
        """Close the connection once what was written is sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Cut the connection, for this reason."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------- silence

    @property
    def silent_seconds(self) -> float:
        """For how long nothing has come from the other end. Time in which this process stood still does not count."""
        return 0.0 if self._silence is None else self._silence.seconds

    def _look(self) -> None:
        """Send a beat, and look how long the other end has been silent."""
        loop = asyncio.get_running_loop()
        self._silence = heartbeat.silence(self._silence, Sign(count=self._beats), loop.time())
        if self.silent_seconds >= self._patience.lost:
            self.abort(f"nothing came from the other node for {self.silent_seconds:.0f} s")
            return
        self.say(PartKind.BEAT, self._beat())
        self._timer = loop.call_later(self._patience.beat, self._look)

    # ------------------------------------------------------------- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._may_open(transport):
            self.abort("the other node is not the expected one")
            return
        self._transport.set_write_buffer_limits(high=UNSENT)
        _tune(self._transport.get_extra_info("socket"))
        self._look()

    def pause_writing(self) -> None:
        self._is_held = True

    def resume_writing(self) -> None:
        self._is_held = False
        self._push()

    def data_received(self, data: bytes) -> None:
        if self.is_closing():
            return
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= HEADER.size:
            kind, size = HEADER.unpack_from(self._buffer, start)
            end = start + HEADER.size + size
            if len(self._buffer) < end:
                break
            self._receive(kind, bytes(self._buffer[start + HEADER.size : end]))
            start = end
        del self._buffer[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._unsent.clear()
        self._unsent_size = 0
        self._has_room.set()
        self.lost.set_result(self._reason or "the connection to the other node closed")
        self._end.take_loss()

    # ------------------------------------------------------------- inside

    def _push(self) -> None:
        """Give bytes of the engine to the system, as long as the other end has room and little is unsent."""
        assert self._transport is not None
        while self._unsent and self._credit and not self._is_held:
            head = self._unsent.popleft()
            part = head[: min(LARGEST, self._credit)]
            if len(part) < len(head):
                self._unsent.appendleft(head[len(part) :])
            self._credit -= len(part)
            self._unsent_size -= len(part)
            self._transport.write(HEADER.pack(PartKind.DATA, len(part)) + part)
        if self._unsent_size > UNSENT:
            self._has_room.clear()
        else:
            self._has_room.set()

    def _receive(self, kind: int, payload: bytes) -> None:
        self._beats += 1
        if kind == PartKind.DATA and len(payload) <= self._granted:
            self._granted -= len(payload)
            self._end.take_data(payload)
        elif kind == PartKind.CREDIT and len(payload) == _CREDIT.size:
            self._credit += _CREDIT.unpack(payload)[0]
            self._push()
        elif kind in WORDS:
            self._end.take_word(PartKind(kind), payload)
        else:
            self.abort("the other node sent what no engine link sends")


def _tune(link: socket.socket) -> None:
    """Send each token at once, and keep little unsent in the system, where a beat would wait behind it."""
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)
