"""The methods of the client, compared with the description of the API."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from steerserve.client import client, nouns
from steerserve.client.calls import Noun, Route
from tests.service import Running

LEFT_OUT = {
    ("POST", "/api/saes/monitoring"): "another name of /api/monitoring/configure",
}
"""Routes that no method reaches, and why."""
NOT_ARGUMENTS = {
    ("POST", "/api/compare"): {"stream"},
    # a script that waits for a service asks with the status code
    ("GET", "/api/health/ready"): {"for"},
    # `features.promoting` sends them
    ("POST", "/api/saes/{sae_id}/features/search"): {"wait"},
}
"""Fields and parameters that are no arguments."""
MADE = {"intensities": (0.0, 1.0)}
"""Defaults that the description does not tell, because the service makes them for each request."""

ROUTES: dict[tuple[str, str], Route[Any, Any]] = {
    (one.verb, one.path): one
    for noun in [*vars(nouns).values(), client.Service]
    if inspect.isclass(noun) and issubclass(noun, Noun)
    for one in vars(noun).values()
    if isinstance(one, Route)
}


@pytest.fixture(scope="module")
def described(shared: Running) -> dict[tuple[str, str], dict[str, Any]]:
    document: Any = shared.service.api.openapi()
    schemas = document["components"]["schemas"]
    found = {}
    for path, operations in document["paths"].items():
        for verb, operation in operations.items():
            if path.startswith("/api/"):
                found[verb.upper(), path] = operation | {"fields": _fields(operation, schemas)}
    return found


def _fields(operation: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any] | None:
    """The fields of a body with their schemas; None for a body that is a document."""
    content = operation.get("requestBody", {}).get("content", {})
    if not content:
        return {}
    schema = content["application/json"]["schema"]
    for one in schema.get("anyOf", [schema]):
        if "$ref" in one:
            return dict(schemas[one["$ref"].rpartition("/")[2]]["properties"])
    return dict(schema["properties"]) if schema.get("additionalProperties") is False else None


def test_every_route_has_a_method(described: dict[tuple[str, str], Any]) -> None:
    assert set(ROUTES) == set(described) - set(LEFT_OUT)


@pytest.mark.parametrize("key", sorted(ROUTES), ids=" ".join)
def test_a_method_has_the_parameters_and_defaults_of_its_route(
    described: dict[tuple[str, str], Any], key: tuple[str, str]
) -> None:
    method, operation = ROUTES[key], described[key]
    taken = inspect.signature(method.function).parameters
    by_place: dict[str, dict[str, Any]] = {"path": {}, "query": {}, "header": {}}
    for parameter in operation.get("parameters", []):
        by_place[parameter["in"]][parameter["name"]] = parameter["schema"]
    assert set(method.named) == set(by_place["path"])
    left_out = NOT_ARGUMENTS.get(key, set())
    assert set(method.query) == set(by_place["query"]) - left_out
    assert ("lease" in taken) == ("X-Service-Lease" in by_place["header"])
    fields = operation["fields"]
    if fields is None:
        assert method.fields == ["document"]
        return
    assert set(method.fields) == set(fields) - left_out
    for name, schema in {**by_place["query"], **fields}.items():
        if name in taken and taken[name].default is not inspect.Parameter.empty:
            assert taken[name].default == schema.get("default", MADE.get(name)), name
