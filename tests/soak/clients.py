"""Clients on bare sockets, which can leave anywhere or stop reading, and the requests that they make."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx2

from tests.soak.watching import PATIENCE

SHORT = {"model": "red", "prompt": "the boats", "max_tokens": 12, "temperature": 0}
LONG = {"model": "red", "prompt": ["the boats"] * 32, "max_tokens": 240, "temperature": 0}
"""Takes the engine about half a second."""


def text_of(http: httpx2.Client, **fields: Any) -> str:
    """What the model says to SHORT."""
    answer = http.post("/v1/completions", json=SHORT | fields)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def connect(url: str, room: int | None = None) -> socket.socket:
    """A connection; `room` is the size in bytes of what it takes without being read."""
    host, port = url.removeprefix("http://").split(":")
    link = socket.socket()
    if room is not None:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    link.settimeout(PATIENCE)
    link.connect((host, int(port)))
    return link


@contextmanager
def connections(url: str, count: int, room: int | None = None) -> Iterator[list[socket.socket]]:
    with ExitStack() as opened:
        yield [opened.enter_context(connect(url, room)) for _ in range(count)]


def send(link: socket.socket, body: dict[str, Any], share: float = 1.0) -> None:
    """A request, or only this share of its body."""
    content = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    link.sendall(head.encode() + content[: int(len(content) * share)])


def read_events(link: socket.socket, count: int) -> None:
    """Read until so many events came."""
    read = b""
    while read.count(b"data: ") < count:
        more = link.recv(4096)
        assert more, read
        read += more


def leave(link: socket.socket, *, is_rude: bool) -> None:
    """Close; a rude client resets the connection."""
    if is_rude:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    link.close()
