"""Inputs of batches, and refusals of lines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from steerserve.errors import Refusal
from steerserve.rules.inference import batches
from steerserve.rules.inference.batches import FAULTS_MAXIMUM, InputCheck
from tests.memory import stays_below
from tests.refusals import refusal_of

URL = "/v1/completions"


def line(custom_id: str = "a", **changes: Any) -> bytes:
    body = {"model": "tiny", "prompt": "x"}
    sent = {"custom_id": custom_id, "method": "POST", "url": URL, "body": body}
    return json.dumps(sent | changes).encode()


def checked(*lines: bytes, most: int = 1000) -> InputCheck:
    check = InputCheck(URL, most, 100)
    check.check_lines(enumerate(lines))
    return check


def test_a_line_is_read_with_its_body_as_it_was_sent() -> None:
    text = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"n":  1.0}}'
    read = batches.read_line(3, text)
    assert (read.number, read.custom_id, read.body) == (3, "a", b'{"n":  1.0}')


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        (b"[]", "invalid_request", None),
        (b"{", "invalid_json_line", None),
        (b"\xff", "invalid_json_line", None),
        (line(custom_id="x" * 513), "invalid_custom_id", "custom_id"),
        (line(method="PUT"), "invalid_method", "method"),
        (line(url="/v1/embeddings"), "mismatched_url", "url"),
        (line(body=[]), "invalid_request", "body"),
        (line(body={"prompt": "x"}), "missing_required_parameter", "body.model"),
        (line(body={"model": "tiny", "stream": True}), "invalid_request", "body.stream"),
        (line(body={"model": "tiny", "extra_body": {}}), "invalid_request", "body.extra_body"),
        (line(body={"model": "tiny", "prompt": "x" * 100}), "body_too_large", "body"),
        (line(sae_steering={"features": []}), "invalid_request", "sae_steering"),
        (line()[:-1] + b', "custom_id": "b"}', "invalid_request", None),
        (line().replace(b'"x"', b'"x", "seed": 1, "seed": 2'), "invalid_request", None),
        (
            line(body={"model": "tiny", "interventons": {}}),
            "unused_fields_refused",
            "body.interventons",
        ),
    ],
)
def test_a_wrong_line_is_named(text: bytes, code: str, param: str | None) -> None:
    (fault,) = checked(text).faults()
    assert (fault.code, fault.line, fault.param) == (code, 1, param)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (line(body={"x": [[]] * 100_001}), "has more than 200000 values"),
        (line(body={"x": [""] * 200_001}), "has more than 200000 values"),
        (line(note="x" * 8_010_000), "is larger than 8000000 bytes"),
    ],
    ids=("lists", "texts", "bytes"),
)
def test_a_line_is_measured_before_its_values_are_read(text: bytes, why: str) -> None:
    check = InputCheck(URL, 1, 8_000_000)
    check.check_lines([(0, text)])
    # a value of its own takes at least 50 bytes
    assert stays_below(
        3 * len(text) + 16 * 400_000,
        lambda: InputCheck(URL, 1, 8_000_000).check_lines([(0, text)]),
    )
    (fault,) = check.faults()
    assert (fault.code, fault.param) == ("body_too_large", "body")
    assert why in fault.message


@pytest.mark.parametrize(
    ("is_strict", "faults"),
    [(None, ["body.sae_stering"]), (True, ["body.user"]), (False, [])],
)
def test_unused_fields_of_a_line_are_refused_as_the_batch_says(
    is_strict: bool | None, faults: list[str]
) -> None:
    check = InputCheck(URL, 1, 1000, is_strict)
    body = {"model": "m", "prompt": "x", "user": "u", "sae_stering": {}, "echo": None}
    check.check_lines([(0, line(body=body, note=None))])
    assert [fault.param for fault in check.faults()] == faults


def test_the_faults_that_are_not_listed_are_counted() -> None:
    *listed, more = checked(*[b"{"] * (FAULTS_MAXIMUM + 7)).faults()
    assert len(listed) == FAULTS_MAXIMUM
    assert more.message.startswith("7 further")


def test_an_input_has_a_bound() -> None:
    assert checked(line("a"), line("b"), most=2).faults() == ()
    assert [one.code for one in checked(line("a"), line("b"), most=1).faults()] == [
        "too_many_lines"
    ]


def test_steering_in_a_line_is_seen() -> None:
    assert not checked(line()).is_steered
    assert checked(line(body={"model": "m", "interventions": {}})).is_steered


@pytest.mark.parametrize(
    ("code", "passes", "may_be_of_line"),
    [
        ("QUEUE_FULL", True, False),
        ("MODEL_NOT_RESIDENT", True, False),
        ("ENGINE_UNAVAILABLE", False, True),
        ("INVALID_PARAMETER", False, False),
    ],
)
def test_which_refusals_pass(code: str, passes: bool, may_be_of_line: bool) -> None:
    refusal = Refusal(code, "")
    assert batches.is_passing(refusal) is passes
    assert batches.is_perhaps_of_line(refusal) is may_be_of_line


def test_a_batch_that_is_over_cannot_be_cancelled() -> None:
    batches.may_cancel("batch_1", "in_progress")
    batches.may_cancel("batch_1", "cancelling")
    refusal = refusal_of(batches.may_cancel, "batch_1", "completed")
    assert refusal.code == "BATCH_OVER"
