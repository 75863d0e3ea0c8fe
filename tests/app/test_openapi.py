"""The check that every test of the suite makes of the answers that it gets: it sees what is not as described."""

from __future__ import annotations

from typing import Any

import pytest

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


TEXTS = ("/prometheus", "/runs/export")
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
