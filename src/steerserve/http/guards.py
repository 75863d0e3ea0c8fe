"""The checks that stand before every route: foreign hosts, foreign web pages, keys, bodies that are too large.

Every answer passes here too, and a 503 without a valid Retry-After gets one. The checks are plain ASGI, so that they do
not change or delay streams.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
from collections.abc import Awaitable, Callable, Sequence

from pydantic import SecretStr
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars

from steerserve.errors import Refusal
from steerserve.http.bodies import Bodies
from steerserve.rules import clients, json_size
from steerserve.rules.bodies import Body
from steerserve.rules.bounds import FORM_BYTES, MANAGEMENT_BODY_VALUES
from steerserve.rules.text import shown
from steerserve.rules.units import MIB
from steerserve.settings import Settings
from steerserve.settings.checks import is_address

Answer = Callable[[str, Refusal], Response]
"""Makes the response to a refusal from the path of its request and the refusal."""

Defaulted = Callable[[str], None]
"""Logs that an answer to a path got the fallback of Retry-After."""

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
KEY_CHARACTERS = 8
"""The log names a key by so many characters of its digest."""
PROBES = frozenset({"/api/health", "/api/health/ready"})
"""The routes that need no key, and no free connection."""
_PAGE = frozenset({"/", "/ui", "/favicon.ico", "/docs"})
"""What a browser opens by a link, without a key: the web page, and the page about the API, to which it links."""
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^\[\]:@/?#\s]*)(?::[0-9]{0,5})?")
_OWN_COUNT = ("/labels", "/import", "/vectors")
"""Ends of the paths whose bodies may have many values, or files. These routes read their bodies beside the event
loop."""
FILES = "/v1/files"
"""The route that takes files."""
_BEGINNING = 4
"""The bytes at the beginning of a JSON text that tell its encoding."""
_DENIAL = "websocket.http.response"
"""The ASGI extension by which a WebSocket is refused with an ordinary response."""


class Guards:
    """Refuses a request before any route sees it."""

    def __init__(
        self, app: ASGIApp, settings: Settings, answer: Answer, defaulted: Defaulted
    ) -> None:
        self._app = app
        self._settings = settings
        self._answer = answer
        self._defaulted = defaulted
        self._hosts = _LOCAL_NAMES | {
            name.lower() for name in (settings.host, *settings.allowed_hosts)
        }
        # each client has half, in which the largest body has room
        largest = _most_bytes(FILES, settings)
        self._bodies = Bodies(max(settings.request_bodies_mb * MIB, 2 * largest))
        self._keys: list[bytes] = []
        self.replace_keys(settings.api_keys)

    def replace_keys(self, keys: Sequence[SecretStr]) -> bool:
        """Let these keys open the service, and no others. Returns whether a key of before opens it no more."""
        before = self._keys
        self._keys = [_digest(key.get_secret_value().encode()) for key in keys]
        return not set(before) <= set(self._keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = (
            scope.get("state", {}).get("refusal")  # of `http/protocol.py`
            or self._foreign_host(headers)
            or self._foreign_page(scope, headers)
            or self._keyless(scope, headers)
            or self._too_large(scope["path"], headers)
            or _compressed(headers)
        )
        if refusal is None:
            client = self._client(scope, headers)
            limited = _Limited(receive, scope["path"], client, self._settings, self._bodies)
            taken = limited if scope["type"] == "http" else receive
            try:
                await self._app(scope, taken, self._completed(scope, send))
                return
            except Refusal as error:
                # of live events; routes answer their refusals themselves
                refusal = error
            except BodyRefused as error:
                refusal = error.refusal
            finally:
                limited.forget()
        await self._refuse(refusal, scope, receive, send)

    def _client(self, scope: Scope, headers: Headers) -> str:
        address = scope["client"][0] if scope.get("client") else None
        return clients.client(address, headers.get("authorization"), has_keys=bool(self._keys))

    async def _refuse(self, refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket" and _DENIAL not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008, "reason": refusal.message})
            return
        response = self._answer(scope["path"], refusal)
        if refusal.code == "UNAUTHORIZED":
            response.headers["WWW-Authenticate"] = "Bearer"
        if refusal.code == "REQUEST_TIMEOUT":
            response.headers["Connection"] = "close"
        await response(scope, receive, self._completed(scope, send))

    def _foreign_host(self, headers: Headers) -> Refusal | None:
        """Refuse several Host headers, and one that may be the name of a foreign web page.

        An attacker can point the name of a web page at this machine (DNS rebinding); requests of that page then have
        the name as Host. While HOST is a loopback address, only the names of this machine and ALLOWED_HOSTS are
        accepted. Otherwise a request of a browser may also name an address or a name without dots, because no attacker
        can register these.
        """
        hosts = headers.getlist("host")
        if len(hosts) > 1:
            # what stands before the service may have checked another one than the service would
            return Refusal(
                "MALFORMED_REQUEST", f"a request has one Host header, and this one has {len(hosts)}"
            )
        host = hosts[0] if hosts else ""
        name = _name(host)
        if name in self._hosts:
            return None
        if name is not None and not self._settings.is_loopback:
            is_browser = (
                "origin" in headers
                or "sec-fetch-site" in headers
                # a page that reads over plain HTTP sends neither of the two
                or headers.get("user-agent", "").startswith("Mozilla/")
            )
            if not is_browser or is_address(name) or (name and "." not in name):
                return None
        return Refusal(
            "FORBIDDEN_ORIGIN",
            f"the Host header {host[:100]!r} is not a name of this machine; add the name to ALLOWED_HOSTS to accept it",
        )

    def _foreign_page(self, scope: Scope, headers: Headers) -> Refusal | None:
        """Refuse a request from a web page of another origin, unless CORS_ORIGINS names the origin. Reads other than of
        live events pass, because the browser itself keeps such a page from reading their answers."""
        origin = headers.get("origin")
        is_read = scope.get("method") in _SAFE and not scope["path"].startswith("/socket.io")
        allowed = self._settings.cors_origins
        if origin is None or is_read or "*" in allowed or origin in allowed:
            return None
        if origin.partition("://")[2] == headers.get("host", ""):
            return None
        return Refusal(
            "FORBIDDEN_ORIGIN",
            f"the web page {origin[:100]!r} may not drive this service; set CORS_ORIGINS to allow it",
        )

    def _keyless(self, scope: Scope, headers: Headers) -> Refusal | None:
        """Refuse a request without one of the keys of API_KEYS, if there are any. Probes need no key,
        nor do the files of the web page, because a browser cannot send one with them. The question of a browser whether
        it may send a request (CORS preflight) needs no key for the same reason."""
        is_preflight = (
            scope.get("method") == "OPTIONS" and "access-control-request-method" in headers
        )
        is_open = scope["path"] in PROBES or _is_page(scope)
        if not self._keys or is_open or is_preflight:
            return None
        scheme, _, key = headers.get("authorization", "").partition(" ")
        digest = _digest(key.strip().encode("latin-1", "replace"))
        # every key is compared, so that the time of the check does not show which key is similar
        matches = [hmac.compare_digest(digest, known) for known in self._keys]
        if scheme.lower() == "bearer" and any(matches):
            bind_contextvars(key=digest.hex()[:KEY_CHARACTERS])
            return None
        why = "the service needs a key: send it as `Authorization: Bearer <key>`"
        if scheme.lower() == "bearer" and key.strip():
            why = "the key that was sent is not among the keys of the service"
        return Refusal("UNAUTHORIZED", why)

    def _too_large(self, path: str, headers: Headers) -> Refusal | None:
        length = headers.get("content-length", "")
        limit = _most_bytes(path, self._settings)
        is_number = length.isascii() and length.isdigit()
        if not is_number or int(length[:20]) <= limit:
            return None
        return too_large(limit)

    def _completed(self, scope: Scope, send: Send) -> Send:
        """A `send` that adds the headers that every answer has."""

        def completed(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if scope["path"].startswith("/v1"):
                    headers.setdefault("X-Service-Backend", "serial")
                    headers["X-Service-Batch"] = "extra_messages"
                if message["status"] == 503 and not _is_time(headers.get("retry-after", "")):
                    self._defaulted(scope["path"])
                    headers["Retry-After"] = str(self._settings.retry_after_fallback_s)
            return send(message)

        return completed


def _compressed(headers: Headers) -> Refusal | None:
    """Refuse a compressed body, which no route can read."""
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return None
    why = f"the body is compressed with {shown(encoding)!r}; send it without Content-Encoding"
    return Refusal("VALIDATION_ERROR", why, param="Content-Encoding")


def _is_page(scope: Scope) -> bool:
    """Whether a request reads a file of the web page. The files hold nothing of the service's state."""
    path = scope["path"]
    return scope.get("method") in _SAFE and (path in _PAGE or path.startswith("/ui/"))


def too_large(limit: int) -> Refusal:
    return Refusal("PAYLOAD_TOO_LARGE", f"the body is larger than {limit} bytes", limit_bytes=limit)


class BodyRefused(HTTPException):
    """The body of a request is too large or too slow, or has no room. The framework answers this exception on its
    routes, and `Guards` elsewhere. No reader of a body catches it."""

    def __init__(self, status: int, refusal: Refusal) -> None:
        super().__init__(status, headers={"Connection": "close"} if status == 408 else None)
        self.refusal = refusal


class _Limited:
    """A `receive` that bounds the bytes of the body, the time of waiting for them, on most routes its commas and
    opening brackets, and the bytes of all bodies together. A body in UTF-16 or UTF-32 is refused, because every check
    of a body reads UTF-8."""

    def __init__(
        self,
        receive: Receive,
        path: str,
        client: str,
        settings: Settings,
        bodies: Bodies,
    ) -> None:
        self._receive = receive
        self._settings = settings
        self._most_bytes = self._bytes_left = _most_bytes(path, settings)
        self._seconds_left = settings.request_body_timeout
        self._is_whole = False
        self._marks_left = _marks_of(path)
        self._beginning = b""
        self._bodies = bodies
        self._body = Body(client, asyncio.get_running_loop().time())
        self._waiting: asyncio.Timeout | None = None
        self._is_given_up = False

    async def __call__(self) -> Message:
        message = await (self._receive() if self._is_whole else self._receive_in_time())
        if message["type"] == "http.request":
            self._is_whole = not message.get("more_body", False)
            self._check(message.get("body", b""))
        else:
            self._is_whole = True
        return message

    def forget(self) -> None:
        """The request is over."""
        self._bodies.forget(self._body)

    def _give_up(self) -> None:
        self._is_given_up = True
        if self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())

    def _check(self, part: bytes) -> None:
        """Check the next part of the body.

        Raises:
            BodyRefused: PAYLOAD_TOO_LARGE, UNSUPPORTED_ENCODING, TOO_MANY_BODIES.
        """
        self._bytes_left -= len(part)
        if self._bytes_left < 0:
            raise BodyRefused(413, too_large(self._most_bytes))
        self._bodies.grow(self._body, len(part), self._give_up, is_whole=self._is_whole)
        if self._is_given_up:
            raise BodyRefused(503, self._bodies.refusal())
        if len(self._beginning) < _BEGINNING:
            self._beginning += part[: _BEGINNING - len(self._beginning)]
            encoding = json.detect_encoding(self._beginning)
            is_known = self._is_whole or len(self._beginning) == _BEGINNING
            if is_known and not encoding.startswith("utf-8"):
                why = f"the body is {encoding}; send it as UTF-8"
                raise BodyRefused(415, Refusal("UNSUPPORTED_ENCODING", why))
        if self._marks_left is not None:
            self._marks_left -= json_size.marks(part)
            if self._marks_left < 0:
                why = f"the body has more than {MANAGEMENT_BODY_VALUES} commas and opening brackets"
                raise BodyRefused(413, Refusal("PAYLOAD_TOO_LARGE", why))

    async def _receive_in_time(self) -> Message:
        loop = asyncio.get_running_loop()
        since = loop.time()
        try:
            async with asyncio.timeout(self._seconds_left) as self._waiting:
                return await self._receive()
        except TimeoutError:
            if self._is_given_up:
                raise BodyRefused(503, self._bodies.refusal()) from None
            seconds = self._settings.request_body_timeout
            message = f"the body did not arrive within {seconds:g} s"
            raise BodyRefused(408, Refusal("REQUEST_TIMEOUT", message)) from None
        finally:
            self._waiting = None
            self._seconds_left -= loop.time() - since


def _most_bytes(path: str, settings: Settings) -> int:
    """The largest body of a request to a path, in bytes. A file may be larger than other bodies."""
    if path != FILES:
        return settings.max_body_bytes
    return max(settings.max_body_bytes, settings.batch_file_mb * MIB + FORM_BYTES)


def _marks_of(path: str) -> int | None:
    """The commas and opening brackets that the body of a request may have; None where its route counts by itself."""
    is_bounded = path.startswith("/api/") and not path.endswith(_OWN_COUNT)
    return MANAGEMENT_BODY_VALUES if is_bounded else None


def _digest(key: bytes) -> bytes:
    """The digest by which keys are compared. All digests have one length, so that the time of a comparison does not
    show the length of a key."""
    return hashlib.sha256(key).digest()


def _is_time(text: str) -> bool:
    """Whether a Retry-After is whole seconds, at least one."""
    return text.isascii() and text.isdigit() and int(text[:20]) >= 1


def _name(host: str) -> str | None:
    """The host name of a Host header, without its port. None: the header has not the form of a host and a port."""
    match = _HOST.fullmatch(host)
    return match and match["name"].lower()
