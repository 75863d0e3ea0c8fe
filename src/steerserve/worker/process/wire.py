"""The engine's end of the socket: whole frames in and out."""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import structlog

from steerserve import messages as m
from steerserve.rules.residency.heartbeat import SIGN_SECONDS

log = structlog.get_logger(__name__)


class Wire:
    """Frames over the socket. Sending blocks; receiving blocks only when asked to. `beat` is called every SIGN_SECONDS
    while nothing arrives."""

    def __init__(self, link: socket.socket) -> None:
        self.beat: Callable[[], None] = _nothing
        self._link = link
        self._buffer = bytearray()
        self._arrived: deque[m.Command] = deque()
        self._woken, self._waker = socket.socketpair()
        self.is_closed = False

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._woken.close()
        self._waker.close()

    def wake(self) -> None:
        """End a wait of `receive`; from any thread."""
        self._waker.send(b"!")

    def receive(self, *, wait: bool, seconds: float | None = None) -> Iterator[m.Command]:
        """Every whole command that has arrived. With `wait`, block until something arrives, `wake` is called, or
        `seconds` are over."""
        wait = wait and not self._arrived
        while ready := self._ready(seconds if wait else 0.0):
            wait = False
            if self._woken in ready:
                self._woken.recv(1 << 10)
            if self._link in ready and not self._read():
                break
        while self._arrived:
            yield self._arrived.popleft()

    def pending(self) -> Sequence[m.Command]:
        """The commands that have arrived, and that `receive` has not given yet."""
        while select.select([self._link], [], [], 0.0)[0] and self._read():
            pass
        return self._arrived

    def _read(self) -> bool:
        """Take in what has arrived; False where the socket is closed at the other end."""
        try:
            chunk = self._link.recv(1 << 16)
        except ConnectionResetError:
            chunk = b""
        if not chunk:
            self.is_closed = True
            return False
        self._buffer += chunk
        while len(self._buffer) >= m.LENGTH.size:
            end = m.LENGTH.size + m.LENGTH.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                break
            body = bytes(self._buffer[m.LENGTH.size : end])
            del self._buffer[:end]
            self._arrived.append(m.decode_command(body))
        return True

    def _ready(self, seconds: float | None) -> list[socket.socket]:
        """The sockets at which something has arrived, after at most `seconds`; without `seconds`, once something has
        arrived."""
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            left = SIGN_SECONDS if end is None else max(0.0, end - time.monotonic())
            ready = select.select([self._link, self._woken], [], [], min(left, SIGN_SECONDS))[0]
            if ready or (end is not None and left <= SIGN_SECONDS):
                return ready
            self.beat()

    def send(self, event: m.Event) -> None:
        """Send an event. An event that cannot be encoded, such as one with an integer beyond 64 bits, becomes a
        refusal."""
        try:
            frame = m.frame(event)
        except (OverflowError, TypeError):
            log.exception("event_not_sent", event_type=type(event).__name__)
            if isinstance(event, m.Stepped):
                raise
            frame = m.frame(m.Refused(event.id, "INTERNAL_ERROR", "the engine failed"))
        self._link.sendall(frame)


def _nothing() -> None:
    """The `beat` of a wire that nobody watches."""
