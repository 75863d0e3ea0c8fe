"""Working requests for every route, and the ways to break them."""

from __future__ import annotations

import copy
import gzip
from collections.abc import Callable
from random import Random
from typing import Any
from urllib.parse import quote

from tests.fuzz import values
from tests.fuzz.client import Request
from tests.fuzz.values import Spliced

JSON = "application/json"
MOST_TOKENS = 4
GENERATING = ("/v1/chat/completions", "/v1/completions", "/api/compare")

CHAT = {"model": "{name}", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
TEXT = {"model": "{name}", "prompt": "One day", "max_tokens": 2, "temperature": 0}
SCORE = {"model": "{name}", "prompt": "One day", "max_tokens": 1, "logprobs": 3}
CHAT_FULL = CHAT | {
    "temperature": 0.5,
    "top_p": 0.9,
    "stop": ["."],
    "seed": 7,
    "frequency_penalty": 0.1,
    "presence_penalty": 0.1,
    "profile": "calm",
    "steering_intensity": "max",
}
MEMBER = {"sae_id": "{sae}", "layer": 2}
PROFILE = {
    "name": "p{unique}",
    "description": "fuzzed",
    "steering": {"1": 2.0, "3": -5},
    "sae_id": "{sae}",
    "layer": 2,
    "model_id": "{model}",
    "intensity": 1.0,
}

# (weight, method, path, body): placeholders in braces are filled from what exists (`world.py`)
ROUTES: tuple[tuple[float, str, str, Any], ...] = (
    (6, "POST", "/v1/chat/completions", CHAT),
    (3, "POST", "/v1/chat/completions", CHAT | {"stream": True}),
    (2, "POST", "/v1/chat/completions", CHAT_FULL),
    (1, "POST", "/v1/chat/completions", CHAT | {"extra_messages": [CHAT["messages"]], "seed": 1}),
    (1, "POST", "/v1/chat/completions", CHAT | {"n": 2, "temperature": 1}),
    (
        1,
        "POST",
        "/v1/chat/completions",
        CHAT | {"logprobs": True, "top_logprobs": 2, "max_tokens": 1},
    ),
    (
        1,
        "POST",
        "/v1/chat/completions",
        CHAT | {"chat_template_kwargs": {"enable_thinking": False}},
    ),
    (
        1,
        "POST",
        "/v1/chat/completions",
        CHAT | {"return_sae_activations": {"sae_id": "{sae}", "top_k": 2, "positions": "all"}},
    ),
    (0.3, "POST", "/v1/chat/completions", CHAT | {"response_format": {"type": "json_object"}}),
    (4, "POST", "/v1/completions", TEXT),
    (
        3,
        "POST",
        "/v1/completions",
        TEXT | {"stream": True, "stream_options": {"include_usage": True}},
    ),
    (2, "POST", "/v1/completions", TEXT | {"prompt": ["One day", "The sea"], "seed": 3}),
    (2, "POST", "/v1/completions", SCORE),
    (1, "POST", "/v1/completions", SCORE | {"allowed_token_ids": [1, 2, 3], "echo": True}),
    (2, "POST", "/v1/embeddings", {"model": "{name}", "input": ["One day", "The sea"]}),
    (1, "POST", "/v1/embeddings", {"model": "{name}", "input": "Sea", "encoding_format": "base64"}),
    (1, "GET", "/v1/models", None),
    (1, "GET", "/v1/models/{name}", None),
    (
        2,
        "POST",
        "/api/models",
        {"source": "local", "local_path": "{folder}", "custom_name": "m{unique}"},
    ),
    (
        1,
        "POST",
        "/api/models",
        {"source": "huggingface", "repo_id": "acme/tiny", "quantization": "Q8"},
    ),
    (1, "POST", "/api/models/preview", {"repo_id": "acme/tiny", "revision": "main"}),
    (1, "GET", "/api/models", None),
    (1, "GET", "/api/models/{model}", None),
    (1, "DELETE", "/api/models/{model}", None),
    (0.1, "POST", "/api/models/{model}/load", {"gpu": "auto"}),
    (0.1, "POST", "/api/models/{model}/unload", None),
    (1, "POST", "/api/models/{model}/lock", None),
    (1, "POST", "/api/models/{model}/unlock", None),
    (1, "POST", "/api/models/{model}/cancel", None),
    (
        1,
        "POST",
        "/api/models/{model}/lease",
        {"holder": "fuzz", "reason": "fuzz", "ttl_seconds": 1},
    ),
    (1, "GET", "/api/models/{model}/lease", None),
    (1, "POST", "/api/models/{model}/lease/renew", {"ttl_seconds": 1}),
    (1, "DELETE", "/api/models/{model}/lease", None),
    (1, "GET", "/api/saes", None),
    (1, "POST", "/api/saes/preview", {"repository_id": "acme/sae", "layer": 2, "limit": 5}),
    (1, "POST", "/api/saes/download", {"repository_id": "acme/sae"}),
    (1, "POST", "/api/saes/download", {"local_path": "{sae_folder}"}),
    (1, "GET", "/api/saes/{sae}", None),
    (1, "DELETE", "/api/saes/{sae}", None),
    (1, "POST", "/api/saes/{sae}/cancel", None),
    (1, "GET", "/api/saes/{sae}/compatibility?layer=2", None),
    (1, "POST", "/api/saes/{sae}/attach", {"layer": 2, "dtype": "float32", "check": False}),
    (
        0.3,
        "POST",
        "/api/saes/{sae}/attach",
        {"layer": 2, "overrides": {"activation": "topk", "k": 4}},
    ),
    (0.2, "POST", "/api/saes/{sae}/detach", None),
    (1, "GET", "/api/saes/attachment", None),
    (1, "GET", "/api/saes/attachments", None),
    (1, "POST", "/api/saes/attach-set", {"saes": [MEMBER], "dtype": "float16"}),
    (1, "POST", "/api/saes/monitoring", {"enabled": True, "features": [1, 2]}),
    (1, "GET", "/api/saes/{sae}/labels?limit=5&offset=2&query=sea", None),
    (1, "POST", "/api/saes/{sae}/labels", {"3": "sea", "4": {"label": "boat"}}),
    (0.3, "DELETE", "/api/saes/{sae}/labels", None),
    (1, "POST", "/api/saes/{sae}/features/search", {"query": "sea", "feature_idx": 3, "limit": 4}),
    (1, "GET", "/api/saes/{sae}/features/3", None),
    (1, "GET", "/api/saes/steering?layer=2", None),
    (3, "POST", "/api/saes/steering", {"feature_idx": 3, "value": 2.5}),
    (3, "POST", "/api/saes/steering/batch", {"steering": {"1": 1.0, "2": -1.5}}),
    (1, "POST", "/api/saes/steering/enable", None),
    (1, "POST", "/api/saes/steering/disable", None),
    (1, "DELETE", "/api/saes/steering/3", None),
    (1, "DELETE", "/api/saes/steering", None),
    (1, "GET", "/api/monitoring", None),
    (
        2,
        "POST",
        "/api/monitoring/configure",
        {"enabled": True, "features": [1, 5], "history_size": 9, "top_k": 3},
    ),
    (1, "POST", "/api/monitoring/enable", {"enabled": False}),
    (1, "GET", "/api/monitoring/history?limit=5&request_id=x", None),
    (1, "DELETE", "/api/monitoring/history", None),
    (1, "GET", "/api/monitoring/statistics?features=1,2", None),
    (1, "DELETE", "/api/monitoring/statistics", None),
    (1, "POST", "/api/monitoring/statistics/top", {"k": 3, "metric": "max"}),
    (1, "GET", "/api/profiles", None),
    (3, "POST", "/api/profiles", PROFILE),
    (1, "POST", "/api/profiles/save-current", {"name": "s{unique}", "description": "fuzzed"}),
    (1, "GET", "/api/profiles/active", None),
    (1, "GET", "/api/profiles/{profile}", None),
    (
        2,
        "PATCH",
        "/api/profiles/{profile}",
        {"steering": {"2": 1.0}, "intensity": 0.5, "description": "x"},
    ),
    (0.3, "DELETE", "/api/profiles/{profile}", None),
    (1, "POST", "/api/profiles/{profile}/activate", {"apply_steering": True}),
    (1, "POST", "/api/profiles/{profile}/deactivate?clear_steering=false", None),
    (1, "GET", "/api/profiles/{profile}/export", None),
    (2, "POST", "/api/profiles/import", PROFILE | {"version": "1.0", "extra": [1]}),
    (1, "POST", "/api/profiles/import", {"kind": "cluster", "members": []}),
    (
        0.5,
        "POST",
        "/api/compare",
        {"prompt": "One day", "steering": {"1": 2.0}, "intensities": [0.0, 1.0], "max_tokens": 2},
    ),
    (1, "GET", "/api/health", None),
    (1, "GET", "/api/health/ready", None),
    (1, "GET", "/api/health/detailed", None),
    (1, "GET", "/api/health/gpus", None),
    (1, "GET", "/api/health/inference", None),
    (1, "GET", "/api/health/metrics", None),
    (1, "GET", "/api/health/metrics/prometheus", None),
    (1, "GET", "/api/health/circuits", None),
    (1, "POST", "/api/health/circuits/huggingface/reset", None),
    (1, "GET", "/api/health/version", None),
    (0.2, "GET", "/openapi.json", None),
    (0.2, "GET", "/docs", None),
    (0.2, "GET", "/", None),
)
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
        holder *= draw.choice((2, 20, 130, 2001))
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
        for name in ("max_tokens", "max_completion_tokens"):
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
