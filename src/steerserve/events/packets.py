"""Checks what clients of live events send, before the Socket.IO library reads it.

The library trusts its clients. A packet that it does not know leaves a polling request without an answer. A packet for
a session that has ended is answered with an untyped 500. A packet that it cannot parse is logged as a fault of the
service. Clients of this service connect, subscribe, answer pings and leave; this layer refuses all other packets.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import parse_qs

import socketio
from engineio import json as library_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from steerserve.errors import Refusal
from steerserve.rules.bounds import LIVE_POLL_BYTES, LIVE_POLL_PACKETS, LIVE_QUERY_BYTES

PATH = "/socket.io"
METHODS = ("GET", "OPTIONS", "POST")
CLOSE = "1"
"""The packet that ends a session."""
POLICY_VIOLATION = 1008
"""The code with which a WebSocket is closed."""

_CONNECT = re.compile(r"0(/[^,]{0,100},)?(?P<json>\{.*)?", re.DOTALL)
_EVENT = re.compile(r"2(/[^,]{0,100},)?[0-9]{0,18}(?P<json>\[.*)", re.DOTALL)
_LEAVE = re.compile(r"1(/[^,]{0,100},?)?")
_UPGRADING = frozenset({"2probe", "5"})
"""The packets by which a polling client changes to a WebSocket."""
_READ = frozenset({b"host", b"connection", b"upgrade", b"accept-encoding"})
"""Headers that the library reads. The library keeps the headers of a client as long as the session lasts."""


def is_understood(packet: str) -> bool:
    """Whether a packet is one that a client may send: it closes the session, answers a ping, connects, sends an event,
    or disconnects. Packets with binary attachments are none of these."""
    if not packet.startswith("4"):
        return packet in ("1", "3")
    message = packet[1:]
    if _LEAVE.fullmatch(message):
        return True
    connecting, event = _CONNECT.fullmatch(message), _EVENT.fullmatch(message)
    if connecting is not None:
        return connecting["json"] is None or isinstance(_parsed(connecting["json"]), dict)
    content = _parsed(event["json"]) if event is not None else None
    return isinstance(content, list) and bool(content) and isinstance(content[0], str)


def _parsed(text: str) -> object:
    """The value as the library reads it, which refuses long numbers; None where it cannot."""
    try:
        return library_json.loads(text)
    except (ValueError, RecursionError):
        return None


class CheckedPackets:
    """The Socket.IO application behind the checks of its packets. Other requests pass unchanged.

    `answer` makes the response to a refusal from the path and the refusal. `most` is the largest number of sessions.
    """

    def __init__(
        self,
        app: ASGIApp,
        server: socketio.AsyncServer,
        answer: Callable[[str, Refusal], Response],
        most: int,
    ) -> None:
        self._app = app
        self._server = server
        self._answer = answer
        self._most = most
        self._polling: set[str] = set()
        """The sessions for which a request waits for events."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or not f"{scope['path']}/".startswith(f"{PATH}/"):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            self._session(scope)
            await self._app(_narrowed(scope, 0), _checked(receive, send), send)
        else:
            await self._poll(scope, receive, send)

    async def _poll(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request of a client that polls."""
        try:
            if scope["method"] not in METHODS:
                raise Refusal("METHOD_NOT_ALLOWED", f"{scope['method']} is not allowed here")
            sid = self._session(scope)
            # the library cannot serve a client that left before its request was read
            body = await _body(Request(scope, receive))
            if scope["method"] == "POST":
                self._check(body, sid)
            receive = _again(body, receive)
        except Refusal as refusal:
            response = self._answer(scope["path"], refusal)
            if refusal.code == "METHOD_NOT_ALLOWED":
                response.headers["Allow"] = ", ".join(METHODS)
            await response(scope, receive, send)
        except ClientDisconnect:
            return
        else:
            waits = {sid} if sid and scope["method"] == "GET" else set()
            self._polling |= waits
            try:
                await self._app(_narrowed(scope, len(body)), receive, send)
            finally:
                self._polling -= waits

    def _session(self, scope: Scope) -> str:
        """The session that the address names; an empty text where the request opens one.

        Raises:
            Refusal: TOO_MANY_CONNECTIONS for one session too many, and INVALID_PARAMETER for an address that clients do
                not use, and for a second request that waits for events.
        """
        raw = scope["query_string"]
        if len(raw) > LIVE_QUERY_BYTES:
            raise Refusal("INVALID_PARAMETER", f"the query has at most {LIVE_QUERY_BYTES} bytes")
        query = parse_qs(raw.decode("latin-1"))
        if "j" in query:
            raise Refusal("INVALID_PARAMETER", "the service does not answer scripts (JSONP)")
        sid: str = query.get("sid", [""])[0]
        if not sid and len(self._server.eio.sockets) >= self._most and not self._end_a_guest():
            message = f"{self._most} clients of live events are connected (MAX_LIVE_CLIENTS)"
            raise Refusal("TOO_MANY_CONNECTIONS", message, limit=self._most)
        if sid in self._polling and scope.get("method") == "GET":
            message = "another request of this session waits for events"
            raise Refusal("INVALID_PARAMETER", message)
        return sid

    def _end_a_guest(self) -> bool:
        """End the oldest session whose client polls and has not joined, and say whether there was one. Otherwise, a
        client that opens sessions and goes away would keep others out."""
        for sid, session in self._server.eio.sockets.items():
            has_joined = self._server.manager.sid_from_eio_sid(sid, "/") is not None
            if not has_joined and session.connected and not session.upgraded:
                session.closing = session.closed = True
                session.queue.put_nowait(None)  # ends a request that waits for events
                del self._server.eio.sockets[sid]
                self._server.environ.pop(sid, None)
                return True
        return False

    def _check(self, body: bytes, sid: str) -> None:
        """Check the packets of a polling request.

        Raises:
            Refusal: INVALID_PARAMETER for packets that no client may send and for a session that has ended.
        """
        try:
            packets = body.decode().split("\x1e")
        except UnicodeDecodeError:
            raise Refusal("INVALID_PARAMETER", "packets are UTF-8") from None
        if len(packets) > LIVE_POLL_PACKETS:
            raise Refusal(
                "INVALID_PARAMETER", f"one request has at most {LIVE_POLL_PACKETS} packets"
            )
        for place, packet in enumerate(packets):
            if not is_understood(packet):
                raise Refusal(
                    "INVALID_PARAMETER", f"packet {place + 1} is none that a client sends"
                )
        if CLOSE in packets[:-1]:
            raise Refusal("INVALID_PARAMETER", "a packet comes after the end of the session")
        session = self._server.eio.sockets.get(sid)
        if session is None or session.closed:
            raise Refusal("INVALID_PARAMETER", "the session is unknown, or it has ended")


async def _body(request: Request) -> bytes:
    """The body of a polling request.

    Raises:
        Refusal: PAYLOAD_TOO_LARGE.
    """
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LIVE_POLL_BYTES:
            why = f"packets of one request have at most {LIVE_POLL_BYTES} bytes"
            raise Refusal("PAYLOAD_TOO_LARGE", why, limit_bytes=LIVE_POLL_BYTES)
    return body


def _again(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives a body that was read before."""
    parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def given() -> Message:
        return parts.pop() if parts else await receive()

    return given


def _narrowed(scope: Scope, body_bytes: int) -> Scope:
    """The request with the headers that the library reads."""
    headers = [(name, value) for name, value in scope["headers"] if name in _READ]
    return {**scope, "headers": [*headers, (b"content-length", b"%d" % body_bytes)]}


def _checked(receive: Receive, send: Send) -> Receive:
    """A `receive` of a WebSocket. It closes the connection at the first packet that no client may send, and at a packet
    after the one that ends the session."""
    has_ended = False

    async def checked() -> Message:
        nonlocal has_ended
        message = await receive()
        if message["type"] != "websocket.receive":
            return message
        packet = message.get("text")
        was_ended, has_ended = has_ended, packet == CLOSE
        if packet is not None and not was_ended and (packet in _UPGRADING or is_understood(packet)):
            return message
        await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        return {"type": "websocket.disconnect", "code": POLICY_VIOLATION}

    return checked
