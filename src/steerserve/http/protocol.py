"""How the service speaks with a client on one connection, and what a client may do there before the application sees
its request.

`configuration` makes the web server. `HttpLink` bounds the head of a request in bytes and in time; `http/live_link.py`
has the connections of clients of live events. A request that breaks a limit is answered by the application: the refusal
is in `scope["state"]["refusal"]`, and `http/guards.py` answers it in the form of the path.

`http/guards.py` bounds the body of a request, because it knows whether the application waits for the body. A body that
still arrives after the answer is bounded here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import httptools
import uvicorn
from uvicorn._types import ASGI3Application, ASGIApplication, HTTPScope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from steerserve.errors import Refusal
from steerserve.http.connections import Connections, Place
from steerserve.http.guards import PROBES
from steerserve.http.live_link import WebSocketLink
from steerserve.rules.bounds import (
    HEAD_BYTES,
    IGNORED_BODIES,
    KEEP_ALIVE_SECONDS,
    LIVE_MESSAGE_BYTES,
    PIPELINED_REQUESTS,
)

FRAMING = 16
"""What each byte of a chunked body may cost beside itself, in bytes."""
SLICE = 4096
"""Bytes that the parser gets at once. The limits are checked between two slices."""
LINGER_SECONDS = 2.0
"""Time that a client has to read a refusal before its connection is cut."""
CLOSE_SECONDS = 2
"""Time that open connections have after the last request was answered, when the service stops."""


def configuration(
    application: ASGIApplication | str, connections: Connections, **options: Any
) -> uvicorn.Config:
    """The configuration of the web server of the application."""
    return uvicorn.Config(
        application,
        http=cast("type[asyncio.Protocol]", partial(HttpLink, connections)),
        ws=cast("type[asyncio.Protocol]", partial(WebSocketLink, connections)),
        ws_max_size=LIVE_MESSAGE_BYTES,
        ws_per_message_deflate=False,
        log_config=None,
        lifespan="on",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=CLOSE_SECONDS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        **options,
    )


class HttpLink(HttpToolsProtocol):
    """A connection that speaks HTTP.

    A clock runs while the service waits for the client: until the head of a request is whole, and, after the answer,
    until the body is whole. It does not run while an answer is made or sent.
    """

    def __init__(self, connections: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._connections = connections
        self._settings = connections.settings
        self._place = Place.ANY
        self._clock: asyncio.TimerHandle | None = None
        self._beside_body = 0
        """Bytes of the request so far that do not belong to its body."""
        self._body = 0
        """Bytes of its body so far."""
        self._is_arriving = False
        """Whether a request has begun and is not whole."""
        self._has_head = False
        """Whether the head of that request is whole."""
        self._answering: RequestResponseCycle | None = None
        """The request whose answer is made or sent."""
        self._is_over = False
        """Whether further bytes of the client are ignored."""

    @property
    def is_held_up(self) -> bool:
        return self.flow is not None and self.flow.write_paused

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._place = self._connections.enter(self, self.loop)
        self._wait(self._settings.request_headers_timeout, self._on_late_head)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._connections.leave(self.transport)
        self.pipeline.clear()
        if self._answering is not None:
            # the request may have others behind it, and then the base class does not know it
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._connections.hold_up(self.transport)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._connections.go_on(self.transport)

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), SLICE):
            if self._is_over or self.transport.is_closing():
                return
            self._parse(data[start : start + SLICE])

    def _parse(self, part: bytes) -> None:
        self._beside_body += len(part)
        try:
            self.parser.feed_data(part)
        except httptools.HttpParserUpgrade:
            if self._should_upgrade():
                self._upgrade()
            else:
                # the parser reads no body behind such headers, and would take the body for the next request
                self._is_over = True
                self.cycle.keep_alive = False
            return
        except httptools.HttpParserError:
            self._refuse(Refusal("MALFORMED_REQUEST", "the request is not valid HTTP"))
            return
        if self._beside_body > HEAD_BYTES + FRAMING * self._body:
            message = (
                f"the head of a request is at most {HEAD_BYTES} bytes, and so are its trailers"
            )
            self._refuse(Refusal("HEADERS_TOO_LARGE", message, limit_bytes=HEAD_BYTES))
        elif len(self.pipeline) > PIPELINED_REQUESTS:
            message = f"at most {PIPELINED_REQUESTS} requests may wait on one connection"
            self._refuse(Refusal("MALFORMED_REQUEST", message))

    def _should_upgrade(self) -> bool:
        """Whether the request asks for a WebSocket. Only a GET can: another method would wait for an answer in vain."""
        return self.parser.get_method() == b"GET" and super()._should_upgrade()

    def _upgrade(self) -> None:
        if self._place is Place.PROBES:
            self._refuse(self._full())
            return
        self._is_over = True
        self._stop_waiting()
        self._unset_keepalive_if_required()
        self.handle_websocket_upgrade()

    # ------------------------------------------------------------- what the parser tells

    def on_message_begin(self) -> None:
        self._unset_keepalive_if_required()
        if self._clock is None:
            self._wait(self._settings.request_headers_timeout, self._on_late_head)
        self._is_arriving, self._has_head = True, False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        # a trailer must not become a header after the headers were checked
        if not self._has_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._has_head = True
        self._stop_waiting()
        self._connections.serve(self.transport)
        is_reserved = self._place is Place.PROBES
        if is_reserved and self.url.partition(b"?")[0].decode("latin-1") not in PROBES:
            self.scope["state"]["refusal"] = self._full()
        super().on_headers_complete()
        if is_reserved and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._beside_body -= len(body)
        self._body += len(body)
        super().on_body(body)
        if (
            self.cycle.response_complete
            and self._body > IGNORED_BODIES * self._settings.max_body_bytes
        ):
            self._linger()

    def on_message_complete(self) -> None:
        self._is_arriving = False
        self._beside_body = self._body = 0
        super().on_message_complete()
        if self.parser.should_upgrade() and self._should_upgrade():
            return
        if self.cycle.response_complete and not self.pipeline:
            self._rest()

    # ------------------------------------------------------------- what an answer tells

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        if self._is_over:
            self._linger()
            return
        has_next = bool(self.pipeline)
        super().on_response_complete()
        if self.transport.is_closing() or has_next:
            return
        if not self._is_arriving:
            self._rest()
            return
        self._unset_keepalive_if_required()
        if self._has_head:
            self._wait(self._settings.request_body_timeout, self._linger)

    def _rest(self) -> None:
        """The last request and its answer are whole."""
        self._stop_waiting()
        self._connections.wait(self.transport)
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    # ------------------------------------------------------------- the clock

    def _wait(self, seconds: float, late: Callable[[], None]) -> None:
        self._stop_waiting()
        self._clock = self.loop.call_later(seconds, late)

    def _stop_waiting(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _on_late_head(self) -> None:
        seconds = self._settings.request_headers_timeout
        if self.flow.read_paused:
            self._wait(seconds, self._on_late_head)
        elif not self._is_arriving:
            self.transport.close()
        else:
            message = f"the headers of the request did not arrive within {seconds:g} s"
            self._refuse(Refusal("REQUEST_TIMEOUT", message))

    # ------------------------------------------------------------- refusals

    def _full(self) -> Refusal:
        limit = self._connections.limit
        message = f"all {limit} connections of the service are in use (MAX_CONNECTIONS)"
        return Refusal("TOO_MANY_CONNECTIONS", message, limit=limit)

    def _refuse(self, refusal: Refusal) -> None:
        """Ignore what else the client sends, answer with the refusal, and close the connection. If another answer is
        under way, the connection is closed after that answer instead."""
        self._is_over = True
        self._stop_waiting()
        self._unset_keepalive_if_required()
        self._connections.serve(self.transport)
        running = self.cycle is not None and not self.cycle.response_complete
        if running and (self.pipeline or not self._has_head or self.cycle.response_started):
            self.pipeline.clear()
            return
        if running:
            # the application gets no more of the body of the refused request, and its answer goes nowhere
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.cycle = self._cycle(refusal)
        self._start_asgi_task(self.cycle, self.app)

    def _cycle(self, refusal: Refusal) -> RequestResponseCycle:
        """An exchange whose request is the part that arrived, and whose answer is the refusal."""
        path = self.url.partition(b"?")[0].decode("latin-1") if self._is_arriving else "/"
        scope: HTTPScope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme or "http",
            "root_path": self.root_path,
            "method": self.parser.get_method().decode("ascii"),
            "path": path,
            "raw_path": path.encode("latin-1"),
            "query_string": b"",
            "headers": [],
            "state": self.app_state | {"refusal": refusal},
        }
        cycle = RequestResponseCycle(
            scope=scope,
            transport=cast("asyncio.Transport", _Lingering(self.transport, self._linger)),
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=False,
            on_response=self.on_response_complete,
        )
        cycle.more_body = False
        return cycle

    def _linger(self) -> None:
        """End the connection so that the client can read the answer first: an end at once, while the client still
        sends, would destroy the answer on its way."""
        self._is_over = True
        if not self.transport.is_closing():
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self._wait(LINGER_SECONDS, self.transport.abort)


class _Lingering:
    """The transport of a refused request. Closing it leaves the client the time to read."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close
