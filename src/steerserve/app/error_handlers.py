"""Makes the answers to refusals of this service, to refusals of the framework, and to bugs, each in the form of its
path: `/api` or `/v1`."""

from __future__ import annotations

import re
from difflib import get_close_matches
from json import JSONDecodeError
from typing import Any

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
from steerserve.http.disconnect import answer_nobody
from steerserve.http.guards import BodyRefused
from steerserve.openai import render
from steerserve.rules import field_faults, near_names
from steerserve.rules.steering import documents
from steerserve.settings import Settings

_CODES = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED", 416: "RANGE_NOT_SATISFIABLE"}
"""Status of a refusal in the form of the framework -> the code that is answered."""


_AS_JSON = "the body must be sent with content-type: application/json"


class Refusals:
    """Answers refusals. `routes` are all routes of the service; a 405 names the methods of a path from them."""

    def __init__(self, settings: Settings, metrics: Metrics, routes: list[BaseRoute]) -> None:
        self._settings = settings
        self._metrics = metrics
        self._routes = [route for route in routes if isinstance(route, Route)]
        self._shown = [
            route for route in self._routes if route.include_in_schema and route.path.count("/") > 1
        ]

    def handle(self, app: FastAPI) -> None:
        """Register this object with the framework as the handler of every exception."""
        app.add_exception_handler(Refusal, self._on_refusal)
        app.add_exception_handler(RequestValidationError, self._on_invalid)
        app.add_exception_handler(HTTPException, self._on_http)
        app.add_exception_handler(ClientDisconnect, answer_nobody)
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
        faults = error.errors()
        if faults[0]["loc"] == ("body",) and isinstance(error.body, bytes) and error.body:
            return self.answer(request.scope["path"], documents.malformed(_AS_JSON))
        return self.answer(request.scope["path"], field_faults.refusal(faults))

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
        message, details = str(error.detail), dict[str, Any]()
        methods = sorted(self._methods(request.scope)) if error.status_code == 405 else []
        if code == "METHOD_NOT_ALLOWED":
            message = f"{request.method} is not allowed here; the route takes {', '.join(methods)}"
            details = {"allowed_methods": methods}
        elif code == "NOT_FOUND":
            near = self._nearest(path)
            message = f"no route {path!r}" + (f"; the nearest is {near!r}" if near else "")
            details = {"nearest": near} if near else {}
        response = self.answer(path, Refusal(code, message, **details))
        response.headers.update(error.headers or {})
        if is_ours:
            response.status_code = error.status_code
        if methods:
            response.headers["Allow"] = ", ".join(methods)
        return response

    def _nearest(self, path: str) -> str | None:
        """The route that was meant by a path of no route: without a slash at the end, with one prefix, or the most
        similar one."""
        inner = re.sub(r"^(/(v1|api))+(?=/|$)", "", path.rstrip("/"))
        for meant in (path.rstrip("/"), f"/v1{inner}", f"/api{inner}"):
            if any(route.path_regex.match(meant) for route in self._shown):
                return meant
        named = [route.path for route in self._shown if "{" not in route.path]
        return next(iter(get_close_matches(path[:100], named, 1, near_names.SIMILARITY)), None)

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
