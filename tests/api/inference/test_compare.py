"""One prompt at several intensities, side by side, on the demo model."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from steerserve import demo
from tests.service import Running, add_sae

PROMPT = "The children went down to the"
PROOF = demo.proof()
INDEX, STRENGTH = str(PROOF["feature_idx"]), PROOF["strength"]
CALM = {
    "op": "add",
    "vector": {"layer": 2, "data": base64.b64encode(struct.pack("<192f", *[4.0] * 192)).decode()},
    "value": 2,
}
ABLATED = {"op": "ablate", "feature": {"index": 1}}
OWN = {"features": [{"index": 1, "value": 1.0}]}


def compare(live: Running, **body: Any) -> Any:
    return live.data("POST", "/api/compare", {"prompt": PROMPT, "max_tokens": 12, **body})


def refused(live: Running, **body: Any) -> tuple[int, str]:
    asked = {"prompt": PROMPT, "max_tokens": 4, **body}
    status, code, _ = live.error("POST", "/api/compare", asked)
    return status, code


def alone(live: Running, sides: int) -> str:
    """The greedy text under the live values, in a batch of as many rows as the comparison has sides: the number of rows
    changes the last bits of the logits."""
    answer = live.complete([PROMPT] * sides, max_tokens=12, temperature=0)
    return str(answer["choices"][0]["text"])


def test_each_side_is_the_completion_that_its_steering_gives_alone(steered: Running) -> None:
    found = compare(steered, steering={INDEX: STRENGTH}, intensities=[1, 0, 0.5])
    plain = alone(steered, 3)
    texts = []
    for strength in (STRENGTH, STRENGTH / 2):
        steered.data("POST", "/api/saes/steering", {"feature_idx": int(INDEX), "value": strength})
        texts.append(alone(steered, 3))
    assert [side["text"] for side in found["sides"]] == [texts[0], plain, texts[1]]
    assert texts[0] != plain
    (key,) = found["sides"][0]["steering"]
    assert found["sides"][0]["steering"] == {key: {INDEX: STRENGTH}}
    assert found["sides"][1]["steering"] == {}
    assert found["sides"][2]["steering"] == {key: {INDEX: STRENGTH / 2}}
    assert [side["completion_tokens"] for side in found["sides"]] == [12, 12, 12]
    assert {side["finish_reason"] for side in found["sides"]} == {"length"}


def test_each_side_tells_which_steering_it_had(steered: Running) -> None:
    found = compare(steered, steering={INDEX: STRENGTH}, intensities=[1, 0, 0.5], max_tokens=1)
    states = []
    for strength in (STRENGTH, 0.0, STRENGTH / 2):
        own = {"features": [{"index": int(INDEX), "value": strength}]}
        body = {"model": demo.MODEL_NAME, "prompt": PROMPT, "max_tokens": 1, "sae_steering": own}
        answer = steered.post("/v1/completions", body)
        states.append(answer.headers.get("x-service-steering-state"))
    assert [side["steering_state"] for side in found["sides"]] == states
    assert states[1] is None
    assert len(set(states)) == 3


def test_edits_are_compared_at_several_strengths(steered: Running) -> None:
    edits = [{"op": "set", "feature": {"index": int(INDEX)}, "value": STRENGTH}]
    asked = {"interventions": {"edits": edits}}
    plain, half, whole = compare(steered, **asked, intensities=[0, 0.5, 1])["sides"]
    body = {"model": demo.MODEL_NAME, "prompt": PROMPT, "max_tokens": 1, **asked}
    answer = steered.post("/v1/completions", body)
    assert whole["steering_state"] == answer.headers["x-service-steering-state"]
    assert plain["steering_state"] is None
    assert half["steering_state"] not in (None, whole["steering_state"])
    assert whole["text"] != plain["text"]
    assert [side["edits"] for side in (plain, half, whole)] == [[], edits, edits]


def test_features_of_several_saes_are_compared_at_once(steered: Running) -> None:
    saes = [{"sae_id": add_sae(steered, sae), "layer": sae.layer} for sae in demo.saes()[:2]]
    steered.data("POST", "/api/saes/attach-set", {"saes": saes})
    features = [
        {"index": int(INDEX), "value": STRENGTH, **saes[0]},
        {"index": int(INDEX), "value": -4.0, "sae_id": saes[1]["sae_id"]},
    ]
    body = {"sae_steering": {"features": features}, "max_tokens": 1}
    plain, half, whole = compare(steered, **body, intensities=[0, 0.5, 1])["sides"]
    asked = {"model": demo.MODEL_NAME, "prompt": PROMPT, **body}
    alone = steered.post("/v1/completions", asked).headers["x-service-steering-state"]
    unnamed = {"features": [{"index": int(INDEX), "value": 1.0}]}
    ambiguous = refused(steered, sae_steering=unnamed)
    steered.data("POST", f"/api/saes/{saes[1]['sae_id']}/detach")
    keys = [f"{sae['sae_id']}@{sae['layer']}" for sae in saes]
    assert plain["steering"] == {}
    assert half["steering"] == {keys[0]: {INDEX: STRENGTH / 2}, keys[1]: {INDEX: -2.0}}
    assert whole["steering"] == {keys[0]: {INDEX: STRENGTH}, keys[1]: {INDEX: -4.0}}
    assert whole["steering_state"] == alone
    assert ambiguous == (400, "INVALID_PARAMETER")


def test_without_values_the_live_ones_are_compared_and_stay(steered: Running) -> None:
    assert refused(steered) == (422, "VALIDATION_ERROR")
    steered.data("POST", "/api/saes/steering", {"feature_idx": int(INDEX), "value": STRENGTH})
    before = steered.data("GET", "/api/saes/steering")
    found = compare(steered)
    assert [side["intensity"] for side in found["sides"]] == [0.0, 1.0]
    assert found["sides"][1]["text"] == alone(steered, 2) != found["sides"][0]["text"]
    assert steered.data("GET", "/api/saes/steering") == before


def test_the_model_without_steering_needs_no_values(steered: Running) -> None:
    text = alone(steered, 1)
    found = compare(steered, intensities=[0])
    assert [side["text"] for side in found["sides"]] == [text]


def test_a_named_profile_is_compared(steered: Running) -> None:
    body = {"name": "compared", "steering": {INDEX: STRENGTH}}
    made = steered.data("POST", "/api/profiles", body, 201)
    found = compare(steered, profile="compared", intensities=[0, 1, 2])
    assert [list(side["steering"].values()) for side in found["sides"]] == [
        [],
        [{INDEX: STRENGTH}],
        [{INDEX: min(200.0, 2 * STRENGTH)}],
    ]
    assert refused(steered, profile="nobody") == (404, "PROFILE_NOT_FOUND")
    steered.data("DELETE", f"/api/profiles/{made['id']}")


def test_a_conversation_a_seed_and_activations_on_each_side(steered: Running) -> None:
    asked = {
        "prompt": None,
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "steering": {INDEX: STRENGTH},
        "temperature": 1.0,
        "seed": 7,
        "activations": {"features": [int(INDEX)], "positions": "completion"},
    }
    found = compare(steered, **asked)
    assert found == compare(steered, **asked)
    plain, moved = (
        [row["features"][0]["value"] for row in side["sae_activations"]["positions"]]
        for side in found["sides"]
    )
    assert len(plain) == len(moved) == 11  # the last token has none
    assert sum(moved) > sum(plain)


def test_the_features_of_readings_have_their_labels(steered: Running) -> None:
    sae_id = steered.data("GET", "/api/saes/attachment")["sae_id"]
    path = f"/api/saes/{sae_id}/labels"
    steered.data("POST", path, {INDEX: "what moves"})
    other = int(INDEX) + 1
    asked = {"features": [int(INDEX), other], "positions": "completion"}
    found = compare(steered, steering={INDEX: STRENGTH}, activations=asked)
    steered.data("DELETE", path)
    for side in found["sides"]:
        for position in side["sae_activations"]["positions"]:
            named = {one["index"]: one.get("label") for one in position["features"]}
            assert named == {int(INDEX): "what moves", other: None}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"steering": {"99999": 1.0}}, 400, "INVALID_FEATURE_INDEX"),
        ({"steering": {"1": 201}}, 422, "VALIDATION_ERROR"),
        ({"steering": {"1": 1.0}, "sae_id": "sae_none"}, 400, "SAE_NOT_ATTACHED"),
        ({"steering": {"1": 1.0}, "profile": "calm"}, 422, "VALIDATION_ERROR"),
        ({"steering": {"1": 1.0}, "prompt": None}, 422, "VALIDATION_ERROR"),
        ({"steering": {"1": 1.0}, "intensities": [3]}, 422, "VALIDATION_ERROR"),
        ({"steering": {"1": 1.0}, "activations": {"top_k": 1000}}, 400, "SAE_ACTIVATIONS_REFUSED"),
        ({"sae_id": "sae_none"}, 422, "VALIDATION_ERROR"),
        ({"sae_steering": OWN, "steering": {"1": 1.0}}, 422, "VALIDATION_ERROR"),
        ({"sae_steering": OWN | {"mode": "add"}}, 422, "VALIDATION_ERROR"),
        ({"interventions": {"edits": [{"op": "set"}]}}, 422, "INVALID_INTERVENTION"),
    ],
)
def test_a_comparison_that_cannot_be(
    steered: Running, body: dict[str, Any], status: int, code: str
) -> None:
    assert refused(steered, **body) == (status, code)


@pytest.fixture
def kept(shared: Running) -> Iterator[dict[str, str]]:
    """Profiles of the shared service, which has no SAE attached: one of edits of a vector, one of values, one of
    both."""
    fields: dict[str, dict[str, Any]] = {
        "edits": {"edits": [CALM]},
        "values": {"steering": {"1": 1.0}},
        "both": {"steering": {"1": 1.0}, "edits": [CALM]},
    }
    made = {
        name: shared.data("POST", "/api/profiles", {"name": name, **more}, 201)["id"]
        for name, more in fields.items()
    }
    yield made
    for profile_id in made.values():
        shared.data("DELETE", f"/api/profiles/{profile_id}")


def test_without_an_sae_the_plain_model_and_vectors_are_compared(
    shared: Running, kept: dict[str, str]
) -> None:
    (plain,) = compare(shared, intensities=[0])["sides"]
    assert (plain["steering"], plain["edits"], plain["steering_state"]) == ({}, [], None)
    told = {**CALM, "vector": {"layer": 2}}
    found = compare(shared, interventions={"edits": [CALM]})["sides"]
    assert [side["edits"] for side in found] == [[], [told]]
    assert found[0]["text"] == plain["text"] != found[1]["text"]
    assert compare(shared, profile="edits")["sides"] == found
    shared.data("PUT", "/api/interventions", {"edits": [CALM]})
    assert compare(shared)["sides"] == found
    events = streamed(shared)
    assert [side["edits"] for side in events[0][1]["sides"]] == [[], [told]]
    shared.data("DELETE", "/api/interventions")
    assert refused(shared) == (422, "VALIDATION_ERROR")


def test_without_an_sae_values_are_refused(shared: Running, kept: dict[str, str]) -> None:
    for own in (
        {"steering": {"1": 1.0}},
        {"sae_steering": OWN},
        {"interventions": {"edits": [ABLATED]}},
    ):
        assert refused(shared, **own) == (400, "SAE_NOT_ATTACHED")
    for name in ("values", "both"):
        assert refused(shared, profile=name) == (400, "SAE_NOT_ATTACHED")
        activated = shared.error("POST", f"/api/profiles/{kept[name]}/activate")
        assert activated[:2] == (400, "SAE_NOT_ATTACHED")
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    for steered in (
        {"model": demo.MODEL_NAME, "profile": "both"},
        {"model": f"{demo.MODEL_NAME}@both"},
    ):
        status, error = shared.v1_error("/v1/chat/completions", body | steered)
        assert (status, error["code"]) == (400, "sae_not_attached"), error


# ---------------------------------------------------------------- as a stream

Event = tuple[str, Any]


def streamed(live: Running, **body: Any) -> list[Event]:
    asked = {"prompt": PROMPT, "max_tokens": 12, "stream": True, **body}
    answer = live.post("/api/compare", asked)
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = [block.split("\n") for block in answer.text.split("\n\n") if block]
    events = [
        (name.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
        for name, data in blocks
    ]
    described = live.held.description
    for name, data in events:
        assert described.component(f"CompareEvents/properties/{name}", data) == []
    return events


def test_a_stream_has_the_texts_of_the_whole_comparison_each_named_by_its_side(
    steered: Running,
) -> None:
    asked = {"steering": {INDEX: STRENGTH}, "intensities": [1, 0, 0.5]}
    whole = compare(steered, **asked)
    (first, started), *written, done = streamed(steered, **asked)
    assert (first, done) == ("started", ("done", {}))
    for name in ("model", "system_fingerprint", "prompt_tokens"):
        assert started[name] == whole[name]
    assert started["sae"] is None
    assert {name for name, _ in written} == {"text"}
    for number, side in enumerate(whole["sides"]):
        told = started["sides"][number]
        assert told["side"] == number
        assert all(told[name] == side[name] for name in ("intensity", "steering", "steering_state"))
        pieces = [data for _, data in written if data["side"] == number]
        assert "".join(piece["text"] for piece in pieces) == side["text"]
        assert {piece["intensity"] for piece in pieces} == {side["intensity"]}
        assert pieces[-1]["finish_reason"] == side["finish_reason"]
        assert pieces[-1]["completion_tokens"] == side["completion_tokens"]
        assert all("token" not in piece for piece in pieces)


def test_the_activations_of_each_token_come_with_it(steered: Running) -> None:
    asked = {
        "steering": {INDEX: STRENGTH},
        "activations": {"features": [int(INDEX)], "positions": "all"},
    }
    whole = compare(steered, **asked)
    (_, started), *written, _ = streamed(steered, **asked)
    assert started["sae"]["sae_id"] == whole["sides"][0]["sae_activations"]["sae_id"]
    for number, side in enumerate(whole["sides"]):
        mine = [(name, data) for name, data in written if data["side"] == number]
        (_, prompt), *texts = mine
        assert [name for name, _ in mine] == ["prompt"] + ["text"] * 12
        tokens = prompt["tokens"] + [data["token"] for _, data in texts[:-1]]
        assert texts[-1][1]["token"] is None  # no pass reads the last token
        expected = side["sae_activations"]["positions"]
        assert [(t["position"], t["token_id"]) for t in tokens] == [
            (row["position"], row["token_id"]) for row in expected
        ]
        for token, row in zip(tokens, expected, strict=True):
            (one,), (other,) = token["features"], row["features"]
            assert one["index"] == other["index"]
            assert one["value"] == pytest.approx(other["value"], rel=0.05, abs=0.5)
        assert "".join(token["text"] for token in prompt["tokens"]).endswith(PROMPT)
        assert all(data["token"]["text"] == data["text"] for _, data in texts[:-1])


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"steering": {"1": 1.0}, "max_tokens": 100_000}, 400, "CONTEXT_LENGTH_EXCEEDED"),
        ({"steering": {"1": 1.0}, "stream": "yes"}, 422, "VALIDATION_ERROR"),
    ],
)
def test_a_stream_that_cannot_be_is_refused_with_a_status(
    steered: Running, body: dict[str, Any], status: int, code: str
) -> None:
    assert refused(steered, **{"stream": True, **body}) == (status, code)
