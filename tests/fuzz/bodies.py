"""Requests with a few things wrong."""

from __future__ import annotations

import copy
import gzip
from collections.abc import Callable
from random import Random
from typing import Any
from urllib.parse import quote

from tests.fuzz import values
from tests.fuzz.client import Request
from tests.fuzz.routes import GENERATING, JSON, MOST_TOKENS, ROUTES
from tests.fuzz.values import Spliced

_WEIGHTS = [route[0] for route in ROUTES]

HEADERS = (
    ("X-Service-Strict", ("true", "1", "false", "maybe", "")),
    ("X-Service-Load-Policy", ("refuse", "REFUSE", "auto", "never", "")),
    ("X-Service-Lease", ("lease_nobody", "", "x" * 5000, "\udcff")),
    ("Authorization", ("Bearer x", "Basic =", "")),
    ("Origin", ("http://evil.example", "null", "http://localhost")),
    (
        "Host",
        (
            "evil.example",
            "127.0.0.1",
            "[::1]",
            "[::1].evil",
            "localhost:99999",
            "",
            "a@b",
            "localhost\udcff",
        ),
    ),
    ("X-Request-Id", ("abc", "a b", "x" * 3000, "\udce9", "{}")),
    ("Accept", ("text/html", "*/*;q=2", "")),
    ("Accept-Encoding", ("gzip", "br, zstd", "identity;q=0")),
    ("Range", ("bytes=0-1,0-1", "bytes=" + "0-," * 500)),
    ("Cookie", ("a=b; " * 50,)),
    ("Expect", ("200-ok",)),
    ("Connection", ("close", "keep-alive", "upgrade")),
    ("Upgrade", ("h2c", "websocket")),
    ("X-Forwarded-For", ("1.2.3.4", "a" * 1000)),
    ("X-HTTP-Method-Override", ("DELETE",)),
)
TYPES = (
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "application/json; charset=utf-16",
    "application/json;" + " a=b;" * 200,
    "application/vnd.api+json",
    "application/x-ndjson",
    "application/octet-stream",
    "",
)
METHODS = ("GET", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "POST", "TRACE", "PROPFIND")


def hostile(draw: Random, world: Any) -> Request:
    """A request for a known route with a few things wrong; one in eight is whole."""
    _, method, path, body = draw.choices(ROUTES, _WEIGHTS)[0]
    filled = world.filled(body, draw)
    headers: list[tuple[str, str]] = []
    content: bytes | None = None
    dice = draw.random()
    target = world.filled(path, draw)
    if filled is not None and dice < 0.65:
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            filled = broken(draw, filled)
    elif dice < 0.88:
        method, target, headers = _around(draw, method, path, target, world)
    if path in GENERATING:
        filled = tamed(filled)
    if filled is not None:
        headers.append(("Content-Type", JSON))
        content = values.written(filled).encode("utf-8", "surrogatepass")
        if draw.random() < 0.15:
            content, headers = _transformed(draw, content, headers)
    return Request(method, target, content, tuple(headers), is_chunked=draw.random() < 0.1)


MOST_PARTS = 600_000
"""The most parts that a body has when one of its lists is repeated: a few more than any route reads."""


def broken(draw: Random, body: Any) -> Any:
    """The body with one thing wrong."""
    made = copy.deepcopy(body)
    nodes = list(_nodes(made))
    if not nodes or draw.random() < 0.03:
        return values.anything(draw)
    holder, key = draw.choice(nodes)
    kind = draw.randrange(10)
    if kind < 5:
        holder[key] = values.anything(draw)
    elif kind == 5:
        del holder[key]
    elif kind == 6 and isinstance(holder, dict):
        holder[draw.choice(NAMES) if draw.random() < 0.7 else values.text(draw)] = values.anything(
            draw
        )
    elif kind == 7:
        holder[key] = [holder[key]]
    elif kind == 8 and isinstance(holder, list):
        most = max(1, MOST_PARTS // len(nodes))
        holder *= min(draw.choice((2, 20, 130, 2001)), most)
    elif isinstance(holder, dict) and "messages" in holder:
        holder["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": values.schema(draw)},
        }
    else:
        holder[key] = None
    return made


def _nodes(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a body that holds a value, as container and key."""
    places: list[tuple[Any, Any]] = []
    pairs = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, part in pairs:
        places.append((value, key))
        places += _nodes(part)
    return places


def _names() -> tuple[str, ...]:
    names = {key for *_, body in ROUTES for _, key in _nodes(body) if isinstance(key, str)}
    return tuple(
        sorted(names | {"tools", "logit_bias", "user", "steering", "dimensions", "suffix"})
    )


NAMES = _names()
"""The names of all fields: a field of one route may be sent to another."""


def tamed(body: Any) -> Any:
    """The body with few tokens to write: what is refused stays as it is, what is served is short."""
    if isinstance(body, dict):
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            asked = body.get(name)
            if isinstance(asked, Spliced) and asked.isdigit() and len(asked) < 5:
                body[name] = MOST_TOKENS
        if "intensities" in body:
            body.setdefault("max_tokens", MOST_TOKENS)
    return body


def _around(
    draw: Random, method: str, path: str, target: str, world: Any
) -> tuple[str, str, list[tuple[str, str]]]:
    """Another method, path, query or header for a request."""
    headers: list[tuple[str, str]] = []
    kind = draw.randrange(6)
    if kind == 0:
        method = draw.choice(METHODS)
    elif kind == 1:
        target = world.filled(path, draw, lambda: _escaped(values.text(draw)))
    elif kind == 2:
        name = draw.choice(
            ("limit", "offset", "layer", "wait", "features", "query", "request_id", "x")
        )
        mark = "&" if "?" in target else "?"
        value = str(draw.choice((values.number, values.text))(draw))
        target += f"{mark}{name}={_escaped(value)}" * draw.choice((1, 1, 2))
    elif kind == 3:
        change: Callable[[str], str] = draw.choice(PATH_CHANGES)
        target = change(target)
    else:
        for name, choices in draw.sample(HEADERS, draw.choice((1, 1, 2, 4))):
            headers.append((name, draw.choice(choices)))
    return method, target, headers


PATH_CHANGES: tuple[Callable[[str], str], ...] = (
    lambda target: target + "/",
    lambda target: "/" + target,
    lambda target: target.upper(),
    lambda target: target.replace("/", "//"),
    lambda target: target + "/..",
    lambda target: target.replace("a", "%61", 1),
    lambda target: target + "%00",
    lambda target: target + "%ff",
    lambda target: target + ";x=1",
    lambda target: target + "?",
    lambda target: "http://localhost" + target,
    lambda target: "/api/" + "x/" * 500,
)


def _escaped(text: str) -> str:
    return quote(text.encode("utf-8", "surrogatepass"), safe="")[:20_000]


def _transformed(
    draw: Random, content: bytes, headers: list[tuple[str, str]]
) -> tuple[bytes, list[tuple[str, str]]]:
    """The body as other bytes, or under another type."""
    kind = draw.randrange(11)
    middle = draw.randrange(len(content) + 1)
    if kind == 0:
        content = content[:middle]
    elif kind == 1:
        content = b"\xef\xbb\xbf" + content
    elif kind == 2:
        content = content.decode("utf-8", "replace").encode("utf-16")
    elif kind == 3:
        content += draw.choice((b"x", b"{}", b"\x00", b",", b"]" * 100))
    elif kind == 4:
        content = content[:middle] + bytes(draw.randrange(256) for _ in range(3)) + content[middle:]
    elif kind == 5:
        content = content.replace(b'"', b"'")
    elif kind == 6:
        content = b"/* x */" + content
    elif kind == 7:
        content = gzip.compress(content)
        headers = [*headers, ("Content-Encoding", "gzip")]
    elif kind == 8:
        content = b" " * draw.choice((10, 70_000)) + content
    elif kind == 9:
        headers = [(n, draw.choice(TYPES) if n == "Content-Type" else v) for n, v in headers]
    else:
        content = b""
    return content, headers
