"""The routes of the service, and their description."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI
from pydantic import TypeAdapter

from steerserve.api.answers import RefusedAnswer, events
from steerserve.app.fields import FieldTexts
from steerserve.http.guards import PROBES
from steerserve.nouns import registry
from steerserve.openai.answers import FaultBody

REFUSALS = (400, 401, 403, 404, 405, 408, 409, 413, 415, 422, 431, 500, 503, 507)
"""The statuses with which every route may refuse a request."""
_BODIES = {"/api/": RefusedAnswer, "/v1/": FaultBody}
_TEMPLATE = "#/components/schemas/{model}"
_KEY = "key"
_SCHEMES = {
    _KEY: {
        "type": "http",
        "scheme": "bearer",
        "description": "A key of the setting API_KEYS. A service without this setting needs no key.",
    }
}


class DescribedApi(FastAPI):
    """The routes. Their description has the refusals of every route, the payloads of the live events, what each field
    means, and the keys."""

    def add(self, router: APIRouter) -> None:
        """Add the routes of a router. `include_router` would build each of them a second time at the first request, and
        look for the route of every request in one router after the other."""
        self.router.routes += router.routes

    def openapi(self) -> dict[str, object]:
        if self.openapi_schema is None:
            document = super().openapi()
            for path, operations in document["paths"].items():
                refusals = _refusals(path)
                for operation in operations.values():
                    operation["responses"] |= refusals
            schemas = document["components"]["schemas"]
            # the framework describes refusals of its own, which no route answers
            for name in ("HTTPValidationError", "ValidationError"):
                del schemas[name]
            schemas |= _bodies() | events.components(registry.events())
            document["components"]["securitySchemes"] = _SCHEMES
            document["security"] = [{_KEY: []}, {}]
            for path in PROBES:
                for operation in document["paths"][path].values():
                    operation["security"] = []
            self.openapi_schema = FieldTexts().described(document)
        return super().openapi()


def _refusals(path: str) -> dict[str, object]:
    """The refusals of the routes at a path, by their statuses."""
    body = next(body for start, body in _BODIES.items() if path.startswith(start))
    described = {
        "description": "a refusal; `error.code` says which",
        "content": {
            "application/json": {"schema": {"$ref": _TEMPLATE.format(model=body.__name__)}}
        },
    }
    return {str(status): described for status in REFUSALS}


def _bodies() -> dict[str, object]:
    """The schemas of the bodies of refusals, and of their parts."""
    parts: dict[str, object] = {}
    for body in _BODIES.values():
        schema = TypeAdapter(body).json_schema(mode="serialization", ref_template=_TEMPLATE)
        parts |= schema.pop("$defs")
        parts[body.__name__] = schema
    return parts
