"""Makes the answers to refusals of this service, to refusals of the framework, and to bugs, each in the form of its
path: `/api` or `/v1`."""

from __future__ import annotations

from json import JSONDecodeError

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from steerserve.api import envelope
from steerserve.app.meter import is_counted
from steerserve.control import retry
from steerserve.control.metrics import Metrics
from steerserve.errors import Refusal
from steerserve.http.guards import BodyRefused
from steerserve.openai import render
from steerserve.rules import field_faults
from steerserve.rules.steering import documents
from steerserve.settings import Settings

_CODES = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}
"""Status of a refusal by the framework itself -> the code that is answered."""


class Refusals:
    """Answers refusals. `routes` are all routes of the service; a 405 names the methods of a path from them."""

    def __init__(self, settings: Settings, metrics: Metrics, routes: list[BaseRoute]) -> None:
        self._settings = settings
        self._metrics = metrics
        self._routes = [route for route in routes if isinstance(route, Route)]

    def handle(self, app: FastAPI) -> None:
        """Register this object with the framework as the handler of every exception."""
        app.add_exception_handler(Refusal, self._on_refusal)
        app.add_exception_handler(RequestValidationError, self._on_invalid)
        app.add_exception_handler(HTTPException, self._on_http)
        app.add_exception_handler(ClientDisconnect, _on_client_gone)
        app.add_exception_handler(Exception, self._on_bug)

    def answer(self, path: str, refusal: Refusal) -> Response:
        """The response to a refusal, in the form of the path: `/api` or `/v1`."""
        row = refusal.row
        if is_counted(path):
            self._metrics.failed(refusal.code)
        if path.startswith("/v1"):
            response = Response(render.error_bytes(refusal), row.v1, media_type="application/json")
        else:
            response = envelope.failure(refusal)
        if refusal.is_final and response.status_code >= 400:
            response.headers["x-should-retry"] = "false"
        after = retry.seconds(
            self._settings, refusal, response.status_code, self._metrics.defaulted
        )
        if after is not None:
            response.headers["Retry-After"] = str(after)
        return response

    async def _on_refusal(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, Refusal)
        return self.answer(request.scope["path"], error)

    async def _on_invalid(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        if isinstance(error.__cause__, JSONDecodeError):
            return self.answer(request.scope["path"], documents.not_json(error.__cause__))
        return self.answer(request.scope["path"], field_faults.refusal(error.errors()))

    async def _on_http(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request.scope["path"]
        if isinstance(error, BodyRefused):
            response = self.answer(path, error.refusal)
            response.headers.update(error.headers or {})
            return response
        if isinstance(error.__cause__, ValueError | RecursionError):  # raised while parsing a body
            return self.answer(path, documents.not_json(error.__cause__))
        is_ours = error.status_code >= 500
        code = "INTERNAL_ERROR" if is_ours else _CODES.get(error.status_code, "VALIDATION_ERROR")
        message = {
            "NOT_FOUND": f"no route {path!r}",
            "METHOD_NOT_ALLOWED": f"{request.method} is not allowed here",
        }.get(code, str(error.detail))
        response = self.answer(path, Refusal(code, message))
        response.headers.update(error.headers or {})
        if is_ours:
            response.status_code = error.status_code
        if error.status_code == 405:
            response.headers["Allow"] = ", ".join(sorted(self._methods(request.scope)))
        return response

    def _methods(self, scope: Scope) -> set[str]:
        """The methods of all routes with the path of a request. The framework names those of the first route only."""
        path = next((r.path for r in self._routes if r.matches(scope)[0] is not Match.NONE), None)
        same = [r for r in self._routes if r.path == path]
        shown = [r for r in same if r.include_in_schema] or same
        methods = {method for r in shown for method in r.methods or ()}
        return methods | ({"HEAD"} if "GET" in methods else set())

    async def _on_bug(self, request: Request, _: Exception) -> Response:
        refusal = Refusal("INTERNAL_ERROR", "an error inside the service; its log says more")
        return self.answer(request.scope["path"], refusal)


async def _on_client_gone(_: Request, __: Exception) -> Response:
    """A client that leaves while it sends its body cannot read an answer, so the answer is empty."""
    return Response(status_code=499)
