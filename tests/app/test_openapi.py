"""The check that every test of the suite makes of the answers that it gets: it sees what is not as described."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from steerserve.app.fields import FieldTexts
from tests.service import Running

HEALTHY = {"version": "1", "app": "steerserve"}


def answer(data: Any) -> dict[str, Any]:
    return {"success": True, "data": data, "error": None}


@pytest.mark.parametrize(
    ("path", "status", "body", "fault"),
    [
        ("/api/health/version", 200, answer(HEALTHY), None),
        ("/api/health/version", 200, answer(HEALTHY | {"more": 1}), "'more' was unexpected"),
        ("/api/health/version", 200, answer({"version": "1"}), '"app" is a required property'),
        ("/api/health/version", 200, answer(HEALTHY | {"app": None}), "is not of type"),
        ("/api/health/version", 200, answer(HEALTHY) | {"success": False}, "true was expected"),
        ("/api/health/version", 201, answer(HEALTHY), "201 is not described"),
        ("/api/nothing", 200, answer(HEALTHY), "the route is not described"),
        ("/api/models/7", 404, answer(HEALTHY), "false was expected"),
        ("/api/clusters/hub/acme/pack/definitions", 200, answer([{}]), "is a required property"),
    ],
)
def test_an_answer_that_is_not_as_described_is_a_fault(
    shared: Running, path: str, status: int, body: Any, fault: str | None
) -> None:
    faults = shared.held.description.faults("GET", path, status, body)
    if fault is None:
        assert faults == []
    else:
        assert fault in "\n".join(faults)


TEXTS = ("/prometheus", "/runs/export", "/files/{name}")
"""Ends of the paths whose answers have no envelope."""


def test_every_answer_of_the_management_is_closed_and_described(shared: Running) -> None:
    described = shared.service.api.openapi()
    schemas = described["components"]["schemas"]
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            if not path.startswith("/api/") or path.endswith(TEXTS):
                continue
            answers = [one for status, one in operation["responses"].items() if status < "300"]
            for one in answers:
                schema = one["content"]["application/json"]["schema"]
                names = [part["$ref"] for part in schema.get("anyOf", [schema])]
                for name in names:
                    parts = schemas[name.rpartition("/")[2]]
                    assert parts["additionalProperties"] is False, f"{method} {path}"
                    assert parts["properties"]["data"] != {"title": "Data"}, f"{method} {path}"


def described_parts(node: Any, where: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field and every parameter in a part of the description, by name."""
    if isinstance(node, list):
        for one in node:
            yield from described_parts(one, where)
    elif isinstance(node, dict):
        for name, field in node.get("properties", {}).items():
            yield f"{node.get('title', where)}.{name}", field
        for parameter in node.get("parameters", ()):
            yield f"{where} {parameter['name']}", parameter
        for key, one in node.items():
            yield from described_parts(one, f"{where} {key}")


def may_be_null(field: dict[str, Any]) -> bool:
    return any(kind.get("type") == "null" for kind in field.get("anyOf", [field]))


def test_each_field_and_parameter_is_described_once(shared: Running) -> None:
    document = shared.service.api.openapi()
    parts = list(described_parts(document))
    assert len(parts) > 3000
    silent = {name for name, part in parts if not part.get("description")}
    assert not silent, "describe them in src/steerserve/app/fields.toml"
    vague = {
        name
        for name, part in parts
        if may_be_null(part) and "null" not in part["description"].lower()
    }
    assert not vague, "say what null means"

    bare = copy.deepcopy(document)
    for _, part in described_parts(bare):
        part.pop("description", None)
    texts = FieldTexts()
    texts.described(bare)
    assert not texts.unused, "delete them from src/steerserve/app/fields.toml"


def test_the_keys_are_described(shared: Running) -> None:
    document = shared.service.api.openapi()
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert document["security"] == [{"key": []}, {}]
    probes = {
        path for path, one in document["paths"].items() if one.get("get", {}).get("security") == []
    }
    assert probes == {"/api/health", "/api/health/ready"}
    assert all(
        "401" in operation["responses"]
        for operations in document["paths"].values()
        for operation in operations.values()
    )
