"""The outermost layer of the application: it gives every request an id, counts it, measures it, and logs it in one
line.

Requests without a route are counted and logged too. Probes of health, connections of live events and the files of the
web page are not counted, because they do not show the load. A probe that succeeds is logged at the level debug, as is a
refusal of a full queue, of which the log has one line a minute; live events are not logged. A request that changes
something leaves a second line, which names the change and its object.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from steerserve.control.health.turns import UNKNOWN_ROUTE, LoopWatch
from steerserve.control.metrics import CURRENT, Metrics, RequestRecord
from steerserve.nouns import registry
from steerserve.rules import changes, clients

log = structlog.get_logger(__name__)
change_log = structlog.get_logger("steerserve.changes")

HEALTH = "/api/health"
LIVE_EVENTS = "/socket.io"
WEB_PAGE = "/ui"

REQUEST_ID = "X-Request-Id"
BACKGROUND = "X-Service-Background"
"""The header of a request that a page sends by itself, such as a search while somebody types."""
_TAKEN = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
"""An id that a client may give its request."""


class Meter:
    """A plain ASGI layer. It does not change requests, and adds two headers to answers.

    Args:
        watch: names long turns of the event loop by the requests that it hears of here.
        has_keys: whether clients are told apart by their keys. A request with another key is refused.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, watch: LoopWatch, *, has_keys: bool = False
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._watch = watch
        self._has_keys = has_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(LIVE_EVENTS):
            await self._app(scope, receive, send)
            return
        self._watch.serves(scope)
        headers = Headers(scope=scope)
        request_id, client = request_id_of(headers), (scope.get("client") or ("unknown",))[0]
        record = RequestRecord(
            in_background=BACKGROUND in headers,
            request_id=request_id,
            client=clients.client(client, headers.get("authorization"), has_keys=self._has_keys),
        )
        token = CURRENT.set(record)
        try:
            # every line that the request causes says who sent it; `Guards` adds the digest of the key
            with bound_contextvars(request_id=request_id, client=client):
                await self._serve(scope, receive, send, request_id, record)
        finally:
            CURRENT.reset(token)

    async def _serve(
        self, scope: Scope, receive: Receive, send: Send, request_id: str, record: RequestRecord
    ) -> None:
        metrics, seen, counted = self._metrics, _Seen(), is_counted(scope["path"])
        began = metrics.clock()

        def watched(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                seen.start(message)
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = request_id
                if not seen.is_stream:
                    headers["Server-Timing"] = _timing(record, metrics.clock() - began)
            return send(message)

        if counted:
            metrics.active.inc()
        try:
            await self._app(scope, receive, watched)
        finally:
            seconds = metrics.clock() - began
            route = getattr(scope.get("route"), "path", UNKNOWN_ROUTE)
            if counted:
                metrics.active.dec()
                metrics.answered(route, seen.status, seconds, is_stream=seen.is_stream)
            line = _line(record, seconds, seen)
            is_probe = not counted and seen.status < 400
            say = log.debug if is_probe or record.code == "QUEUE_FULL" else log.info
            say("request", request_id=request_id, method=scope["method"], route=route, **line)
            _log_change(scope, route, record, seen.status)


class _Seen:
    """The status of an answer, and whether the answer is a stream. The status is 499 if the client left before the
    answer."""

    def __init__(self) -> None:
        self.status = 499
        self.is_stream = False

    def start(self, message: Message) -> None:
        self.status = message["status"]
        for name, value in message.get("headers", ()):
            if name.lower() == b"content-type":
                self.is_stream = value.startswith(b"text/event-stream")


def _log_change(scope: Scope, route: str, record: RequestRecord, status: int) -> None:
    action = registry.actions().get((scope["method"], route))
    if action is None:
        return
    named = changes.object_of(scope.get("path_params", {})) | record.object
    change_log.info("change", action=action, result=changes.result_of(status, record.code), **named)


def is_counted(path: str) -> bool:
    return not path.startswith((HEALTH, LIVE_EVENTS)) and not is_page(path)


def is_page(path: str) -> bool:
    """Whether a path is of the web page, whose files a browser reads by itself."""
    return path == WEB_PAGE or path.startswith(f"{WEB_PAGE}/")


def request_id_of(headers: Headers) -> str:
    """The id that the client gave its request, or a new one where the client gave none or a bad one."""
    wanted = headers.get(REQUEST_ID, "")
    return wanted if _TAKEN.fullmatch(wanted) else f"req_{secrets.token_hex(12)}"


def _timing(record: RequestRecord, seconds: float) -> str:
    """The phases of a request as a `Server-Timing` header, in milliseconds."""
    phases = record.timing.phases() if record.timing else {}
    phases["total"] = round(seconds * 1000, 3)
    return ", ".join(f"{name};dur={milliseconds}" for name, milliseconds in phases.items())


def _line(record: RequestRecord, seconds: float, seen: _Seen) -> dict[str, object]:
    """The facts of a request for the access log, except its id and its route. No fact repeats a text of the client."""
    line: dict[str, object] = {"status": seen.status, "stream": seen.is_stream}
    line |= {"ms": round(seconds * 1000, 3), "model": record.model, "code": record.code}
    if record.timing is not None:
        line |= {f"{name}_ms": value for name, value in record.timing.phases().items()}
        line["prompt_tokens"] = record.timing.prompt_tokens
        line["completion_tokens"] = record.timing.completion_tokens
    return {name: value for name, value in line.items() if value is not None}
