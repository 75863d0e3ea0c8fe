"""HEAD: every route that answers GET answers HEAD too, with the same status and headers and without the body."""

from __future__ import annotations

from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadRequests:
    """Passes a HEAD request on as GET, and leaves out the body of its answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("method") != "HEAD":
            await self._app(scope, receive, send)
            return

        def without_body(message: Message) -> Awaitable[None]:
            is_body = message["type"] == "http.response.body"
            return send({**message, "body": b""} if is_body else message)

        await self._app({**scope, "method": "GET"}, receive, without_body)
