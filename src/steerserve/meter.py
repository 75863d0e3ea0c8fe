"""The outermost layer: every request is counted and timed, also those that no route answered.

Probes of health and the live events' connections are left out: they say nothing of the load.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from steerserve.control.metrics import Metrics

UNCOUNTED = ("/api/health", "/socket.io")
UNKNOWN = "unknown"
"""The route of a path that the application does not have."""


class Meter:
    """Plain ASGI: what passes through is looked at and never touched."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_counted(scope["path"]):
            await self._app(scope, receive, send)
            return
        metrics, seen = self._metrics, _Seen()

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                seen.start(message)
            await send(message)

        began = metrics.clock()
        metrics.active.inc()
        try:
            await self._app(scope, receive, watched)
        finally:
            metrics.active.dec()
            seconds = metrics.clock() - began
            route = getattr(scope.get("route"), "path", UNKNOWN)
            metrics.answered(route, seen.status, seconds, is_stream=seen.is_stream)


class _Seen:
    """The beginning of an answer; without one the client had left."""

    def __init__(self) -> None:
        self.status = 499
        self.is_stream = False

    def start(self, message: Message) -> None:
        self.status = message["status"]
        for name, value in message.get("headers", ()):
            if name.lower() == b"content-type":
                self.is_stream = value.startswith(b"text/event-stream")


def is_counted(path: str) -> bool:
    return not path.startswith(UNCOUNTED)
