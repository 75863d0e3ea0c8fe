"""Refuses what a route of `/api` does not read: unknown query parameters, a body where it takes none, and a key that
stands twice in one object. What a route reads is taken from its own description, so that no route checks it itself. On
`/v1` unknown query parameters are listed instead, as unused fields are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import suppress

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.datastructures import MutableHeaders, QueryParams
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from steerserve.errors import Refusal
from steerserve.rules import near_names
from steerserve.rules.inference import fields
from steerserve.rules.steering import documents
from steerserve.rules.text import shown

AT_ONCE = 1 << 16
"""The largest JSON, in bytes, that is parsed on the event loop; larger JSON is parsed in a thread."""
NAMED_MAXIMUM = 20
"""The most unknown parameters that a refusal names."""
_ANY_QUERY = ("/api/health", "/api/health/ready", "/api/health/metrics/prometheus")
"""Routes that probes and scrapers ask, some of which add parameters of their own."""
_OF_CLIENTS = {"/api/circuits": "promoted"}
"""Path -> a parameter that clients send although the route has no use for it."""
WAIT = "wait"
_MAY_WAIT = (
    *("/api/attribution", "/api/captures", "/api/corpora", "/api/effects", "/api/features/"),
    "/api/jobs",
    *("/api/lens", "/api/monitoring/statistics/top", "/api/probes/train", "/api/vectors/train"),
    *("/api/runs/{request_id}/replay", "/api/saes/{sae_id}/features", "/api/saes/{sae_id}/labels/"),
)
"""Beginnings of the paths where `wait` is known, also where the answer is there at once."""


def limit_inputs(route: APIRoute, header_bytes: int) -> None:
    """Let a route refuse what it does not read, or list it. `header_bytes` bounds the header with the list."""
    if route.path.startswith("/v1/"):
        route.app = _Listing(route, header_bytes)
    elif (
        route.path.startswith("/api/") and route.path not in _ANY_QUERY and route.include_in_schema
    ):
        route.app = _Refusing(route)


class _Listing:
    """Lists unknown query parameters in the header of an answer that does not list them itself."""

    def __init__(self, route: APIRoute, header_bytes: int) -> None:
        self._app = route.app
        self._known = frozenset(_parameters(route.dependant))
        self._header_bytes = header_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named = dict.fromkeys(QueryParams(scope["query_string"]))
        unknown = fields.query_locations(name for name in named if name not in self._known)

        def listing(message: Message) -> Awaitable[None]:
            if unknown and message["type"] == "http.response.start":
                told = fields.header_value(unknown, self._header_bytes)
                MutableHeaders(scope=message).setdefault("X-Service-Ignored-Fields", told)
            return send(message)

        await self._app(scope, receive, listing)


class _Refusing:
    """Refuses unknown query parameters, bodies that the route does not take, and keys that stand twice."""

    def __init__(self, route: APIRoute) -> None:
        self._app = route.app
        self._named = f"{min(route.methods or ())} {route.path}"
        self._known = list(_parameters(route.dependant))
        if WAIT not in self._known and route.path.startswith(_MAY_WAIT):
            self._known.append(WAIT)
        if route.path in _OF_CLIENTS:
            self._known.append(_OF_CLIENTS[route.path])
        self._is_parsed = route.body_field is not None
        # other routes with a body read and check it themselves
        self._has_body = self._is_parsed or "requestBody" in (route.openapi_extra or {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._check_query(QueryParams(scope["query_string"]))
        if self._is_parsed or not self._has_body:
            body = await Request(scope, receive).body()
            receive = _replayed(body, receive)
            if not self._has_body:
                self._refuse_body(body)
            elif len(body) > AT_ONCE:
                await asyncio.to_thread(documents.check_once, body)
            else:
                documents.check_once(body)
        await self._app(scope, receive, send)

    def _check_query(self, query: QueryParams) -> None:
        unknown = [name for name in query if name not in self._known][:NAMED_MAXIMUM]
        if unknown:
            hints = [near_names.hint(name, self._known, "parameter") for name in unknown]
            whys = [f"unknown parameter; {hint}" for hint in hints]
            raise _refused([["query", shown(name)] for name in unknown], whys)

    def _refuse_body(self, body: bytes) -> None:
        """Raises:
        Refusal: VALIDATION_ERROR for a body that has anything in it.
        """
        if body.strip() in (b"", b"{}", b"null"):
            return
        sent: object = None
        with suppress(ValueError, RecursionError):
            sent = json.loads(body)
        if sent == {}:
            return
        why = f"{self._named} takes no body"
        names = list(sent)[:NAMED_MAXIMUM] if isinstance(sent, dict) else []
        if not names:
            raise _refused([["body"]], [why])
        whys = [
            f"{why}; {name} is a parameter of its query" if name in self._known else why
            for name in names
        ]
        raise _refused([["body", shown(name)] for name in names], whys)


def _parameters(dependant: Dependant) -> Iterator[str]:
    """The query parameters of a route."""
    yield from (parameter.alias for parameter in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _parameters(inner)


def _refused(places: Sequence[list[str]], whys: Sequence[str]) -> Refusal:
    """VALIDATION_ERROR with the first reason in its message, and all in its details."""
    errors = [{"loc": place, "msg": why} for place, why in zip(places, whys, strict=True)]
    return Refusal("VALIDATION_ERROR", f"{'.'.join(places[0])}: {whys[0]}", errors=errors)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives a body that was read, and then what comes after it."""
    parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return parts.pop() if parts else await receive()

    return replayed
