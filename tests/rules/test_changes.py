"""What the log calls changes, their objects and their results."""

from __future__ import annotations

import pytest

from steerserve.rules import changes


@pytest.mark.parametrize(
    ("status", "code", "result"),
    [
        (200, None, "done"),
        (201, None, "done"),
        (202, None, "begun"),
        (200, "VALIDATION_ERROR", "VALIDATION_ERROR"),
        (409, "MODEL_LOCKED", "MODEL_LOCKED"),
        (499, None, "client_left"),
        (405, None, "405"),
    ],
)
def test_the_result_of_a_change(status: int, code: str | None, result: str) -> None:
    assert changes.result_of(status, code) == result


@pytest.mark.parametrize(
    ("part", "named"),
    [("sae_0123456789ab", "sae_0123456789ab"), (7, "7"), ("a private text", "?"), ("x" * 65, "?")],
)
def test_only_what_looks_like_an_id_is_named(part: object, named: str) -> None:
    assert changes.object_of({"sae_id": part}) == {"sae_id": named}
