"""Bytes that are almost an HTTP request."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.fuzz.client import Bytes

PATHS = (
    b"/api/health /v1/models /api/models /v1/chat/completions /api/profiles /socket.io/?EIO=4&transport=polling /"
).split()
BODY = b'{"model": "steerserve-demo", "prompt": "One day", "max_tokens": 1}'
JUNK = (b"\x00", b"\r", b"\n", b"\x80", b"\xff", b" ", b"\t", b":", b"\x1b", b"%", b"{")

HEADS = (
    b"X" * 300,
    b": no name",
    b"No colon",
    b"X-Folded: a\r\n  b",
    b"X\x00Y: 1",
    b"X: a\x00b",
    b"X: a\rb",
    b"X : space before the colon",
    b"Content-Length: -1",
    b"Content-Length: 1e3",
    b"Content-Length: 99999999999999999999",
    b"Content-Length: 4\r\nContent-Length: 5",
    b"Content-Length: 0x10",
    b"Content-Length: +5",
    b"Content-Length: 5, 5",
    b"Transfer-Encoding: chunked\r\nContent-Length: 5",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: chunked, chunked",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding: \x0bchunked",
    b"Host: a\r\nHost: b",
    b"Host: \xff\xfe",
    b"Expect: 100-continue",
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 99",
    b"Range: bytes=" + b"0-0," * 2000,
    b"Content-Type: application/json;" + b"a=" * 3000,
    b"Cookie: " + b"a=b;" * 3000,
    b"X: " + b"a" * 40_000,
    b"X: " + b"a" * 200_000,
    b"\r\n".join(b"X-%d: y" % number for number in range(200)),
    b"\r\n".join(b"X-%d: y" % number for number in range(6000)),
)
METHODS = (
    b"GET",
    b"POST",
    b"get",
    b"G\x00T",
    b"PRI",
    b"CONNECT",
    b"X" * 2000,
    b"",
    b"\x16\x03\x01",
    b"HEAD",
    b"DELETE",
)
VERSIONS = (
    b"HTTP/1.1",
    b"HTTP/1.0",
    b"HTTP/2.0",
    b"HTTP/0.9",
    b"HTTP/1.10",
    b"http/1.1",
    b"",
    b"HTTP/1.1 x",
    b"RTSP/1.0",
)
TARGETS = (
    b"*",
    b"http://evil.example/v1/models",
    b"//v1/models",
    b"/v1/../api/models",
    b"/v1/%2e%2e/api/models",
    b"/api/models/%00",
    b"/api/%ff%fe",
    b"/\xff\xfe",
    b"/api/models?" + b"a=b&" * 5000,
    b"/" + b"a" * 70_000,
    b"/v1/models#x",
    b"evil.example:80",
    b"/%",
    b"/%zz",
    b"?",
    b"",
)


def hostile(draw: Random) -> Bytes:
    """Bytes on one connection."""
    make: Callable[[Random], Bytes] = draw.choice(
        (_head, _head, _line, _chunks, _cut, _mutated, _mutated, _pipeline)
    )
    return make(draw)


def _request(
    path: bytes, more: bytes = b"", body: bytes | None = None, method: bytes = b"GET"
) -> bytes:
    length = b"" if body is None else b"Content-Length: %d\r\n" % len(body)
    kind = b"" if body is None else b"Content-Type: application/json\r\n"
    return (
        b"%s %s HTTP/1.1\r\nHost: localhost\r\n%s%s%s\r\n" % (method, path, more, kind, length)
    ) + (body or b"")


def _posted(draw: Random, more: bytes = b"") -> bytes:
    return _request(b"/v1/completions", more, BODY, b"POST")


def _head(draw: Random) -> Bytes:
    """Headers that are wrong, many or long."""
    heads = b"".join(draw.choice(HEADS) + b"\r\n" for _ in range(draw.choice((1, 1, 1, 2, 3))))
    if draw.random() < 0.4:
        return Bytes(_posted(draw, heads), "headers of a POST")
    return Bytes(_request(draw.choice(PATHS), heads), "headers of a GET")


def _line(draw: Random) -> Bytes:
    """A request line that is wrong."""
    method, version = draw.choice(METHODS), draw.choice(VERSIONS)
    target = draw.choice(TARGETS + tuple(PATHS))
    blank = draw.choice((b" ", b" ", b" ", b"\t", b"  ", b"\x0b"))
    line = blank.join((method, target, version))
    return Bytes(
        line + draw.choice((b"\r\n", b"\r\n", b"\n")) + b"Host: localhost\r\n\r\n", "a request line"
    )


def _chunks(draw: Random) -> Bytes:
    """A chunked body with wrong sizes, extensions or trailers."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += b"Transfer-Encoding: chunked\r\n\r\n"
    size = draw.choice(
        (
            b"%x" % len(BODY),
            b"0x10",
            b"-1",
            b"ffffffffffffffffff",
            b"7fffffffffffffff",
            b"",
            b" 5",
            b"%x;%s" % (len(BODY), b"a" * draw.choice((10, 9000, 100_000))),
            b"%x\t" % len(BODY),
            b"zz",
        )
    )
    end = draw.choice(
        (
            b"0\r\n\r\n",
            b"0\r\n" + b"X: y\r\n" * 3000 + b"\r\n",
            b"0\r\nX: " + b"a" * 90_000 + b"\r\n\r\n",
            b"",
            b"0",
        )
    )
    line_end = draw.choice((b"\r\n", b"\r\n", b"\n", b"\r"))
    if draw.random() < 0.1:
        single = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY)
        return Bytes(head + single + b"0\r\n\r\n", "one byte in each chunk", is_whole=True)
    return Bytes(head + size + line_end + BODY + line_end + end, "chunks")


def _cut(draw: Random) -> Bytes:
    """The beginning of a request. The client then waits, or resets the connection."""
    whole = _posted(draw)
    return Bytes(whole[: draw.randrange(len(whole))], "a cut request", is_rude=draw.random() < 0.7)


def _mutated(draw: Random) -> Bytes:
    """A request with some bytes changed, removed, added or repeated."""
    content = bytearray(_posted(draw) if draw.random() < 0.6 else _request(draw.choice(PATHS)))
    for _ in range(draw.choice((1, 1, 2, 5, 20))):
        place = draw.randrange(len(content))
        kind = draw.randrange(4)
        if kind == 0:
            content[place] = draw.randrange(256)
        elif kind == 1:
            del content[place : place + draw.choice((1, 1, 4))]
        elif kind == 2:
            content[place:place] = draw.choice(JUNK) * draw.choice((1, 1, 3, 1000))
        else:
            content[place:place] = content[place : place + 20]
    return Bytes(bytes(content), "changed bytes")


def _pipeline(draw: Random) -> Bytes:
    """Several requests at once. The answer to the first is read; the client leaves before the others."""
    parts = [_request(draw.choice(PATHS)) for _ in range(draw.choice((2, 5, 30)))]
    if draw.random() < 0.3:
        parts.insert(draw.randrange(len(parts)), draw.choice(JUNK) * 5)
        return Bytes(b"".join(parts), "a pipeline with junk")
    return Bytes(b"".join(parts), "a pipeline", is_whole=True)
