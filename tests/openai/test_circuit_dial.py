"""What a served circuit means for requests: the header with its rung, the dial, and the text that is written."""

from __future__ import annotations

from typing import Any

import pytest

from steerserve import demo
from tests.circuits import HIGH, LOW, activated, attach, feature, imported
from tests.openai.steering import DIAL, STATE, chat, words
from tests.service import Running

RUNG = "x-service-circuit-rung"
PROOF = demo.proof()


def strong(strength: float = PROOF["strength"]) -> dict[str, Any]:
    """A circuit whose upper feature is the proven one of the demo."""
    members = [
        {"layer": LOW.layer, "feature": feature(1, 0.5)},
        {"layer": HIGH.layer, "feature": feature(PROOF["feature_idx"], strength)},
    ]
    return {"members": members}


@pytest.mark.shows(
    "steering-dial.11",
    "steering-dial.12",
    "steering-dial.13",
    "steering-dial.14",
    "steering-dial.15",
    "steering-dial.16",
)
@pytest.mark.parametrize(
    ("rung", "header"),
    [
        (0, '0; language="associated"'),
        (1, '1; language="suggested (attribution-supported)"'),
        (2, '2; language="causally validated (edge)"'),
        (3, '3; language="faithfulness-tested (circuit)"'),
    ],
)
def test_the_header_has_the_rung_and_its_phrase_while_the_circuit_steers(
    attached: Running, rung: int, header: str
) -> None:
    assert RUNG not in chat(attached).headers
    circuit_id = imported(attached, rung=rung)
    activated(attached, circuit_id, acknowledge_unvalidated=True)
    answer = chat(attached)
    assert answer.headers[RUNG] == header
    assert DIAL not in answer.headers
    attached.data("POST", f"/api/circuits/{circuit_id}/deactivate")
    assert RUNG not in chat(attached).headers


@pytest.mark.shows("steering-dial.11")
def test_a_stream_and_a_text_completion_have_the_header_too(attached: Running) -> None:
    activated(attached, imported(attached))
    assert RUNG in chat(attached, stream=True).headers
    body = {"model": demo.MODEL_NAME, "prompt": "One day", "max_tokens": 1}
    assert RUNG in attached.post("/v1/completions", body).headers


@pytest.mark.parametrize("fields", [{"logprobs": True, "top_logprobs": 2, "max_tokens": 1}])
def test_a_scoring_request_is_not_steered_and_has_no_header(
    attached: Running, fields: dict[str, Any]
) -> None:
    activated(attached, imported(attached))
    assert RUNG not in chat(attached, **fields).headers


@pytest.mark.shows("steering-dial.6")
def test_the_dial_scales_every_layer_of_the_circuit(attached: Running) -> None:
    plain = words(chat(attached))
    activated(attached, imported(attached, **strong(2 * PROOF["strength"])))
    full = chat(attached)
    half = chat(attached, steering_intensity=0.5)
    assert (half.headers[DIAL], half.headers[RUNG]) == ("0.5", full.headers[RUNG])
    assert half.headers[STATE] != full.headers[STATE]
    attached.data("PUT", "/api/circuits/active/intensity", {"intensity": 0.5})
    assert chat(attached).headers[STATE] == half.headers[STATE]
    # the dial is absolute: it does not scale what the operator has scaled already
    again = chat(attached, steering_intensity=0.5)
    assert (words(again), again.headers[STATE]) == (words(half), half.headers[STATE])
    off = chat(attached, steering_intensity="off")
    assert (words(off), off.headers[DIAL]) == (plain, "0")
    assert RUNG not in off.headers


@pytest.mark.shows("steering-dial.6")
@pytest.mark.parametrize(("intensity", "echo"), [("min", "0.2"), (2.0, "1.4"), (0, "0")])
def test_the_dial_is_held_within_the_declared_range(
    attached: Running, intensity: Any, echo: str
) -> None:
    activated(attached, imported(attached))
    assert chat(attached, steering_intensity=intensity).headers[DIAL] == echo


@pytest.mark.shows("steering-dial.11")
def test_a_member_layer_without_its_sae_has_no_header(
    attached: Running, demo_saes: list[str]
) -> None:
    activated(attached, imported(attached))
    assert RUNG in chat(attached).headers
    attached.data("POST", f"/api/saes/{demo_saes[1]}/detach")
    assert RUNG not in chat(attached).headers


@pytest.mark.shows("steering-dial.1", "steering-dial.11")
def test_two_circuits_are_dialed_as_live_values_and_have_no_rung(attached: Running) -> None:
    one = {"edges": []}
    low = [{"layer": LOW.layer, "feature": feature(1)}]
    high = [{"layer": HIGH.layer, "feature": feature(2)}]
    for name, members in (("low", low), ("high", high)):
        circuit_id = imported(attached, name=name, members=members, **one)
        activated(attached, circuit_id, acknowledge_unvalidated=True)
    followed, whole = chat(attached), chat(attached, steering_intensity=1)
    assert followed.headers[STATE] == whole.headers[STATE]
    dialed = chat(attached, steering_intensity=0.5)
    assert dialed.headers[STATE] != followed.headers[STATE]
    assert (whole.headers[DIAL], dialed.headers[DIAL]) == ("1", "0.5")
    for answer in (followed, whole, dialed):
        assert RUNG not in answer.headers
    assert chat(attached, steering_intensity=0).headers[DIAL] == "0"


@pytest.mark.shows("steering-dial.7", "steering-dial.11")
def test_a_slice_is_dialed_as_a_cluster_and_has_no_header(
    unattached: Running, demo_saes: list[str]
) -> None:
    attach(unattached, demo_saes, LOW.layer)
    budget = {"budget": {"intensity": 1.0}}
    answer = activated(unattached, imported(unattached, **budget))
    assert answer["serving_mode"] == "slice_fallback"
    assert RUNG not in chat(unattached).headers
    assert chat(unattached, steering_intensity="min").headers[DIAL] == "0.5"
    assert chat(unattached, steering_intensity="max").headers[DIAL] == "1.5"


def test_a_profile_named_in_the_request_has_no_header(attached: Running) -> None:
    activated(attached, imported(attached))
    attached.data("POST", "/api/profiles", {"name": "calm", "steering": {"5": 1.0}}, 201)
    assert RUNG not in chat(attached, profile="calm").headers
