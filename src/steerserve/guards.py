"""What stands before every route: foreign web pages, foreign hosts, bodies that are too large, 503s without a time.

Plain ASGI, so that streams pass through untouched.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from steerserve.errors import Refusal
from steerserve.settings import Settings

log = structlog.get_logger(__name__)

Answer = Callable[[str, Refusal], Response]
"""A refusal as the response of the door that the path belongs to."""

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Guards:
    """Refuses before any route is reached."""

    def __init__(self, app: ASGIApp, settings: Settings, answer: Answer) -> None:
        self._app = app
        self._settings = settings
        self._answer = answer
        self._hosts = _LOCAL_NAMES | {settings.host} | set(settings.allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._foreign(scope, headers) or self._too_large(headers)
        if refusal is None:
            limited = _Limited(receive, self._settings.max_body_bytes)
            await self._app(scope, limited, self._completed(scope, send))
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": refusal.message})
            return
        response = self._answer(scope["path"], refusal)
        await response(scope, receive, self._completed(scope, send))

    def _foreign(self, scope: Scope, headers: Headers) -> Refusal | None:
        host = headers.get("host", "")
        if self._settings.is_loopback and _name(host) not in self._hosts:
            return Refusal(
                "FORBIDDEN_ORIGIN",
                f"the Host header {host[:100]!r} is not this machine; set ALLOWED_HOSTS to accept it",
            )
        origin = headers.get("origin")
        is_read = scope.get("method") in _SAFE and not scope["path"].startswith("/socket.io")
        allowed = self._settings.cors_origins
        if origin is None or is_read or "*" in allowed or origin in allowed:
            return None
        if origin.partition("://")[2] == host:
            return None
        return Refusal(
            "FORBIDDEN_ORIGIN",
            f"the web page {origin[:100]!r} may not drive this service; set CORS_ORIGINS to allow it",
        )

    def _too_large(self, headers: Headers) -> Refusal | None:
        length = headers.get("content-length", "")
        limit = self._settings.max_body_bytes
        is_number = length.isascii() and length.isdigit()
        return _too_large(limit) if is_number and int(length[:20]) > limit else None

    def _completed(self, scope: Scope, send: Send) -> Send:
        """A `send` that adds the headers every answer of its kind carries."""

        async def completed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if scope["path"].startswith("/v1"):
                    headers.setdefault("X-Service-Backend", "serial")
                    headers["X-Service-Batch"] = "extra_messages"
                if message["status"] == 503 and not _is_time(headers.get("retry-after", "")):
                    log.warning("retry_after_defaulted", path=scope["path"])
                    headers["Retry-After"] = str(self._settings.retry_after_fallback_s)
            await send(message)

        return completed


class _Limited:
    """A `receive` that counts the body's bytes. Past the limit it raises what every reader of a body lets through."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._left = limit

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                raise HTTPException(413)
        return message


def _too_large(limit: int) -> Refusal:
    return Refusal("PAYLOAD_TOO_LARGE", f"the body is larger than {limit} bytes", limit_bytes=limit)


def _is_time(text: str) -> bool:
    """Whether a Retry-After is whole seconds, at least one."""
    return text.isascii() and text.isdigit() and int(text[:20]) >= 1


def _name(host: str) -> str:
    """The host name of a Host header, without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()
