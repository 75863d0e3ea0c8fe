"""Checks what clients of live events send, before the Socket.IO library reads it.

The library trusts its clients. A packet that it does not know leaves a polling request without an answer. A packet for
a session that has ended is answered with an untyped 500. A packet that it cannot parse is logged as a fault of the
service. Clients of this service connect, subscribe, answer pings and leave; this layer refuses all other packets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from urllib.parse import parse_qs

import socketio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from steerserve.errors import Refusal

PATH = "/socket.io"
METHODS = ("GET", "OPTIONS", "POST")
LARGEST_BODY = 100_000
"""Bytes of packets in one polling request."""
MOST_PACKETS = 16
"""Packets in one polling request; the library reads no more."""
POLICY_VIOLATION = 1008
"""The code with which a WebSocket is closed."""

_CONNECT = re.compile(r"0(/[^,]{0,100},)?(?P<json>\{.*)?", re.DOTALL)
_EVENT = re.compile(r"2(/[^,]{0,100},)?[0-9]{0,18}(?P<json>\[.*)", re.DOTALL)
_LEAVE = re.compile(r"1(/[^,]{0,100},?)?")
_UPGRADING = frozenset({"2probe", "5"})
"""The packets by which a polling client changes to a WebSocket."""


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
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class LiveDoor:
    """The Socket.IO application behind the checks of its packets. Other requests pass unchanged.

    `answer` makes the response to a refusal from the path and the refusal.
    """

    def __init__(
        self,
        app: ASGIApp,
        server: socketio.AsyncServer,
        answer: Callable[[str, Refusal], Response],
    ) -> None:
        self._app = app
        self._server = server
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or not f"{scope['path']}/".startswith(f"{PATH}/"):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._app(scope, _checked(receive, send), send)
        else:
            await self._poll(scope, receive, send)

    async def _poll(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request of a client that polls."""
        try:
            if scope["method"] not in METHODS:
                raise Refusal("METHOD_NOT_ALLOWED", f"{scope['method']} is not allowed here")
            if scope["method"] == "POST":
                receive = _again(await self._packets(Request(scope, receive)), receive)
        except Refusal as refusal:
            response = self._answer(scope["path"], refusal)
            if refusal.code == "METHOD_NOT_ALLOWED":
                response.headers["Allow"] = ", ".join(METHODS)
            await response(scope, receive, send)
        except ClientDisconnect:
            return
        else:
            await self._app(scope, receive, send)

    async def _packets(self, request: Request) -> bytes:
        """The body of a polling request.

        Raises:
            Refusal: PAYLOAD_TOO_LARGE, and INVALID_PARAMETER for packets that no client may send and for a session that
                has ended.
        """
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > LARGEST_BODY:
                why = f"packets of one request have at most {LARGEST_BODY} bytes"
                raise Refusal("PAYLOAD_TOO_LARGE", why, limit_bytes=LARGEST_BODY)
        try:
            packets = body.decode().split("\x1e")
        except UnicodeDecodeError:
            raise Refusal("INVALID_PARAMETER", "packets are UTF-8") from None
        if len(packets) > MOST_PACKETS:
            raise Refusal("INVALID_PARAMETER", f"one request has at most {MOST_PACKETS} packets")
        for place, packet in enumerate(packets):
            if not is_understood(packet):
                raise Refusal(
                    "INVALID_PARAMETER", f"packet {place + 1} is none that a client sends"
                )
        (sid,) = parse_qs(request.url.query).get("sid", [""])[:1]
        session = self._server.eio.sockets.get(sid)
        if session is None or session.closed:
            raise Refusal("INVALID_PARAMETER", "the session is unknown, or it has ended")
        return body


def _again(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives a body that was read before."""
    parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def given() -> Message:
        return parts.pop() if parts else await receive()

    return given


def _checked(receive: Receive, send: Send) -> Receive:
    """A `receive` of a WebSocket. It closes the connection at the first packet that no client may send."""

    async def checked() -> Message:
        message = await receive()
        if message["type"] != "websocket.receive":
            return message
        packet = message.get("text")
        if packet is not None and (packet in _UPGRADING or is_understood(packet)):
            return message
        await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        return {"type": "websocket.disconnect", "code": POLICY_VIOLATION}

    return checked
