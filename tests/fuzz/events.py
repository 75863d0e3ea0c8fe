"""Socket.IO, well and badly spoken, over polling and over WebSocket."""

from __future__ import annotations

import base64
import json
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from random import Random

from tests.fuzz import values
from tests.fuzz.client import Bytes, Client, Request

OPEN = "/socket.io/?EIO=4&transport=polling"
PACKETS = (
    "2",
    "3",
    "40",
    "41",
    '42["system:join"]',
    '42["system:leave"]',
    '42["monitoring:join", {}]',
    '42["none", 1]',
    '420["system:join"]',
    '42["system:join", "' + "x" * 5000 + '"]',
    "42[",
    "42" + "[" * 3000,
    "42{}",
    "42null",
    "42[]",
    "42[1]",
    '42/other,["x"]',
    "40/other,",
    "40" + '{"token": "x"}',
    '451-["x",{"_placeholder":true,"num":0}]',
    '451-["x",{"_placeholder":true,"num":9}]',
    '4599999999-["x"]',
    '450-["x"]',
    '461-1[{"_placeholder":true,"num":0}]',
    "43",
    "430[]",
    "44",
    "49",
    "5",
    "6",
    "0",
    "1",
    "9",
    "",
    "b",
    "bAAAA",
    "b!!!!",
    "4",
    "\x1e",
    "2\x1e2\x1e2",
    "2probe",
    "\U0001f600",
)
QUERIES = (
    "",
    "?EIO=4",
    "?EIO=3&transport=polling",
    "?EIO=4&transport=websocket",
    "?EIO=4&transport=webtransport",
    "?EIO=x&transport=polling",
    "?EIO=4&transport=polling&sid=none",
    "?EIO=4&transport=polling&sid=" + "a" * 3000,
    "?EIO=4&transport=polling&j=0",
    "?EIO=4&transport=polling&j=x",
    "?EIO=4&transport=polling&b64=1",
    "?EIO=4&EIO=4&transport=polling&transport=x",
)
_SWITCHED = b" 101 "


def packet(draw: Random) -> str:
    if draw.random() < 0.8:
        return draw.choice(PACKETS)
    return draw.choice(("4", "42", "40", "45", "2", "")) + values.written(values.anything(draw))


def polled(draw: Random, client: Client) -> Iterator[Request]:
    """Requests of a client that polls. A session is opened first in most cases."""
    target = OPEN
    if draw.random() < 0.3:
        yield Request(
            draw.choice(("GET", "POST", "OPTIONS", "PUT")),
            "/socket.io/" + draw.choice(QUERIES),
            b"2",
            is_poll=True,
        )
        return
    sid = opened(client)
    if sid is not None:
        target += f"&sid={sid}"
    if draw.random() < 0.8:
        yield _post(target, "40")
        yield Request("GET", target)
    for _ in range(draw.choice((1, 3, 8))):
        count = draw.choice((1, 1, 1, 2, 40))
        content = "\x1e".join(packet(draw) for _ in range(count))
        yield _post(target, content)
    if draw.random() < 0.8:
        yield _post(target, "1")


def opened(client: Client) -> str | None:
    """A session that a polling client opened; None if the service opened none."""
    answer = client.send(Request("GET", OPEN))
    if answer.status != 200 or not answer.body.startswith(b"0{"):
        return None
    return str(json.loads(answer.body[1:])["sid"])


def _post(target: str, content: str) -> Request:
    body = content.encode("utf-8", "surrogatepass")
    return Request("POST", target, body, (("Content-Type", "text/plain;charset=UTF-8"),))


def spoken(draw: Random, client: Client) -> tuple[Bytes, str | None]:
    """Frames on one WebSocket, with what was sent and, where the service broke the protocol, how."""
    key = base64.b64encode(draw.randbytes(16)).decode()
    head = (
        "GET /socket.io/?EIO=4&transport=websocket HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
        f"Upgrade: websocket\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()
    frames = frame(draw, b"40") if draw.random() < 0.8 else b""
    frames += b"".join(_any_frame(draw) for _ in range(draw.choice((1, 3, 10))))
    sent = Bytes(head + frames, "frames on a WebSocket", is_whole=True)
    try:
        with client.connect(5.0) as link:
            link.sendall(head)
            answer = link.recv(4096)
            if not answer:
                return sent, None
            if _SWITCHED not in answer.split(b"\r\n")[0]:
                return sent, f"no WebSocket: {answer[:100]!r}"
            link.sendall(frames)
            if draw.random() < 0.5:
                link.sendall(frame(draw, b"\x03\xe8", code=8))
                _drain(link)
    except TimeoutError:
        return sent, "a WebSocket without an answer"
    except OSError:
        pass  # the service may close the connection of a client that breaks the protocol
    return sent, None


def _drain(link: socket.socket) -> None:
    """Read until the service closes. It may also wait for the rest of a frame that claims to be long."""
    link.settimeout(0.2)
    with suppress(TimeoutError):
        while link.recv(1 << 16):
            pass


def frame(draw: Random, content: bytes, *, code: int = 1, first: int = 0x80) -> bytes:
    """A masked frame."""
    mask = draw.randbytes(4)
    masked = bytes(byte ^ mask[place % 4] for place, byte in enumerate(content))
    size = len(content)
    if size < 126:
        head = struct.pack("!BB", first | code, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", first | code, 0xFE, size)
    else:
        head = struct.pack("!BBQ", first | code, 0xFF, size)
    return head + mask + masked


def _any_frame(draw: Random) -> bytes:
    kind = draw.randrange(10)
    if kind < 5:
        return frame(draw, packet(draw).encode("utf-8", "surrogatepass"))
    if kind == 5:
        return frame(draw, draw.randbytes(draw.choice((0, 3, 2000))), code=2)
    if kind == 6:
        return frame(draw, b"x", code=draw.randrange(16), first=draw.choice((0, 0x80, 0xF0)))
    if kind == 7:
        return struct.pack(
            "!BBQ", 0x81, 0xFF, draw.choice((1 << 20, 1 << 40, 1 << 63))
        ) + draw.randbytes(8)
    if kind == 8:
        return b"\x81\x05hello"
    return draw.randbytes(12)
