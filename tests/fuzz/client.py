"""Sends bytes to the service and reads its answers strictly: what is not HTTP is a fault of the service."""

from __future__ import annotations

import shlex
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import h11

PATIENCE = 30.0
"""Seconds in which every request is answered."""
POLL_SECONDS = 0.5
GLANCE = 0.1
"""Seconds in which the answer to bytes that may not be a whole request is awaited."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request that is whole: the service must answer it."""

    method: str
    target: str
    body: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()
    is_chunked: bool = False
    is_poll: bool = False
    """The answer may come late, when there is something to tell. The client waits for a moment only."""

    def as_bytes(self) -> bytes:
        names = {name.lower() for name, _ in self.headers}
        lines = [f"{self.method} {self.target} HTTP/1.1"]
        if "host" not in names:
            lines.append("Host: localhost")
        lines += [f"{name}: {value}" for name, value in self.headers]
        body = self.body or b""
        if self.is_chunked and body:
            lines.append("Transfer-Encoding: chunked")
            middle = len(body) // 2
            parts = [part for part in (body[:middle], body[middle:]) if part]
            body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        elif self.body is not None and "content-length" not in names:
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body

    def as_curl(self, url: str) -> str:
        """The command that repeats the request. A body that is not text is written as an escaped string of bash."""
        words = ["curl", "-i", "--path-as-is", "-X", self.method]
        words += [part for name, value in self.headers for part in ("-H", f"{name}: {value}")]
        command = " ".join(shlex.quote(word) for word in words)
        if self.body is not None:
            command += f" --data-binary {_quoted(self.body)}"
        return f"{command} {shlex.quote(url + self.target)}"


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes that may be a request. `is_whole` says that the service must answer or close the connection."""

    content: bytes
    note: str
    is_whole: bool = False
    is_rude: bool = False
    """The client resets the connection instead of waiting."""

    def as_curl(self, url: str) -> str:
        """The command that sends the bytes again."""
        host, port = urlsplit(url).hostname, urlsplit(url).port
        return f"printf '%b' {_quoted(self.content)} | nc -w 2 {host} {port}  # {self.note}"


@dataclass(slots=True)
class Answer:
    """What came back. `fault` says why the bytes were not an answer in HTTP; status 0 means that none came."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = 0.0
    fault: str | None = None
    is_ended: bool = False
    """The end of the body arrived: its Content-Length is reached, or its last chunk came."""


class Client:
    """One kept connection of one thread."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self.url = url
        self._address = (parts.hostname, parts.port)
        self._link: socket.socket | None = None

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def connect(self, seconds: float = PATIENCE) -> socket.socket:
        """A fresh connection, which the caller closes."""
        link = socket.create_connection(self._address, timeout=seconds)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return link

    def send(self, request: Request) -> Answer:
        """The answer to a whole request."""
        is_kept = self._link is not None
        answer = self._exchange(request)
        if is_kept and answer.status == 0 and answer.fault == _CLOSED:
            # the service may close a kept connection at the moment at which a request is sent
            answer = self._exchange(request)
        if request.is_poll and answer.fault == _LATE:
            answer.fault = None
        return answer

    def send_bytes(self, sent: Bytes) -> Answer:
        """What is answered to bytes on a connection of their own."""
        since = time.monotonic()
        patience = PATIENCE if sent.is_whole else GLANCE
        try:
            link = self.connect(patience)
        except OSError as error:
            return Answer(fault=f"no connection: {error}")
        with link:
            with suppress(OSError):  # the service may refuse a beginning without reading its rest
                link.sendall(sent.content)
            if sent.is_rude:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return Answer()
            answer = _read(link, sent.content[:4])
        answer.seconds = time.monotonic() - since
        if answer.status == 0 and (answer.fault == _CLOSED or not sent.is_whole):
            answer.fault = None
        return answer

    def _exchange(self, request: Request) -> Answer:
        since = time.monotonic()
        try:
            link = self._link = self._link or self.connect()
            link.settimeout(POLL_SECONDS if request.is_poll else PATIENCE)
        except OSError as error:
            return Answer(fault=f"no connection: {error}")
        with suppress(OSError):  # an answer may have been sent before the connection was closed
            link.sendall(request.as_bytes())
        answer = _read(link, request.method.encode())
        answer.seconds = time.monotonic() - since
        is_over = answer.fault is not None
        if is_over or answer.headers.get("connection", "").lower() == "close":
            self.close()
        return answer


_LATE = "no answer in time"
_CLOSED = "the connection was closed without an answer"


def _read(link: socket.socket, method: bytes) -> Answer:
    """Read one answer."""
    answer = Answer()
    parser = h11.Connection(h11.CLIENT)
    asked = b"HEAD" if method[:4].upper() == b"HEAD" else b"GET"
    parser.send(h11.Request(method=asked, target=b"/", headers=[(b"host", b"localhost")]))
    parser.send(h11.EndOfMessage())
    parts: list[bytes] = []
    while not answer.is_ended and answer.fault is None:
        try:
            event = parser.next_event()
        except h11.RemoteProtocolError as error:
            is_silent = answer.status == 0 and parser.trailing_data == (b"", True)
            answer.fault = _CLOSED if is_silent else f"not HTTP: {error}"
            break
        if event is h11.NEED_DATA:
            try:
                parser.receive_data(link.recv(1 << 18))
            except TimeoutError:
                answer.fault = _LATE
            except OSError:
                answer.fault = _CLOSED if answer.status == 0 else "the answer was cut off"
        elif isinstance(event, h11.Response):
            link.settimeout(PATIENCE)  # an answer that has begun is waited for
            answer.status = event.status_code
            answer.headers = {
                name.decode(): value.decode("latin-1") for name, value in event.headers
            }
        elif isinstance(event, h11.Data):
            parts.append(bytes(event.data))
        elif isinstance(event, h11.EndOfMessage):
            answer.is_ended = True
        elif isinstance(event, h11.ConnectionClosed):
            answer.fault = _CLOSED if answer.status == 0 else "the answer was cut off"
        elif not isinstance(event, h11.InformationalResponse):
            # the parser has paused for good
            answer.fault = f"not HTTP: {event}"
    answer.body = b"".join(parts)
    return answer


def _quoted(content: bytes) -> str:
    """Bytes as a word of bash."""
    if content.isascii() and content.decode().isprintable():
        return shlex.quote(content.decode())
    shown = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b"'\\" else f"\\x{byte:02x}"
        for byte in content
    )
    return f"$'{shown}'"
