"""`sae_steering` over HTTP: a request that brings its own steering, and the digest of the steering that it had."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from steerserve import demo
from tests.openai.conftest import pieces
from tests.openai.steering import (
    CHAT,
    DIAL,
    FEATURE,
    LOOPING,
    OTHER_LOOP,
    STATE,
    STEERING,
    STORY,
    TEXT,
    chat,
    clear,
    completion,
    own,
    refused,
    steer,
    words,
)
from tests.service import Running, add_sae

# ---------------------------------------------------------------- what it does


@pytest.mark.parametrize("ask", [chat, completion])
def test_its_text_is_that_of_the_same_values_set_live(steered: Running, ask: Any) -> None:
    plain = ask(steered)
    steer(steered, FEATURE, 40)
    live = ask(steered)
    clear(steered)
    answer = ask(steered, sae_steering=own((FEATURE, 40)))
    assert words(answer) == words(live) != words(plain)
    assert answer.headers[STATE] == live.headers[STATE]
    assert answer.headers["x-service-backend"] == "serial"
    assert not {DIAL, "x-service-ignored-fields"} & set(answer.headers)
    assert STATE not in plain.headers
    assert steered.data("GET", STEERING) == {"enabled": False, "values": {}}


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_it_streams_the_same_text_with_the_same_headers(steered: Running, path: str) -> None:
    ask = chat if path == CHAT else completion
    fields = {"sae_steering": own((FEATURE, 40))}
    whole = ask(steered, **fields)
    streamed = ask(steered, stream=True, **fields)
    assert streamed.headers[STATE] == whole.headers[STATE]
    assert "".join(pieces(streamed)) == words(whole)


def test_it_replaces_the_live_values_or_is_added_to_them(steered: Running) -> None:
    alone = chat(steered, sae_steering=own((FEATURE, 40)))
    steer(steered, 7, -30)
    live = chat(steered)
    replaced = chat(steered, sae_steering=own((FEATURE, 40)))
    added = chat(steered, sae_steering=own((FEATURE, 40), mode="add"))
    both = chat(steered, sae_steering=own((FEATURE, 40), (7, -30)))
    doubled = chat(steered, sae_steering=own((7, -170.5), mode="add"))
    lowest = chat(steered, sae_steering=own((7, -200)))
    clear(steered)
    assert (words(replaced), replaced.headers[STATE]) == (words(alone), alone.headers[STATE])
    assert (words(added), added.headers[STATE]) == (words(both), both.headers[STATE])
    # a sum is clamped, as the sum over the owners is
    assert doubled.headers[STATE] == lowest.headers[STATE]
    assert len({answer.headers[STATE] for answer in (live, alone, both, lowest)}) == 4


@pytest.mark.parametrize(
    ("intensity", "value", "echo"), [(0.5, 20, "0.5"), (1, 40, "1"), ("max", 60, "1.5")]
)
def test_an_intensity_scales_it_and_is_echoed(
    steered: Running, intensity: Any, value: float, echo: str
) -> None:
    dialed = chat(steered, sae_steering=own((FEATURE, 40)), steering_intensity=intensity)
    plain = chat(steered, sae_steering=own((FEATURE, value)))
    assert dialed.headers[DIAL] == echo
    assert (words(dialed), dialed.headers[STATE]) == (words(plain), plain.headers[STATE])


def test_off_runs_it_unsteered_even_with_an_sae_that_is_not_attached(steered: Running) -> None:
    plain = chat(steered)
    steered_by = own((FEATURE, 40))
    steered_by["features"][0]["sae_id"] = "sae_of_nobody"
    off = chat(steered, sae_steering=steered_by, steering_intensity="off")
    assert words(off) == words(plain)
    assert off.headers[DIAL] == "0"
    assert STATE not in off.headers


def test_every_choice_and_conversation_has_it(steered: Running) -> None:
    alone = words(chat(steered, sae_steering=own(LOOPING)))
    other = [{"role": "user", "content": "Tell me about the sea."}]
    answer = chat(steered, sae_steering=own(LOOPING), extra_messages=[STORY, other])
    first, same, _ = (choice["message"]["content"] for choice in answer.json()["choices"])
    assert first == same == alone


def test_with_two_saes_each_feature_names_its_own(steered: Running) -> None:
    one, two = demo.saes()[:2]
    second = add_sae(steered, two)
    members = [
        {"sae_id": add_sae(steered, one), "layer": one.layer},
        {"sae_id": second, "layer": two.layer},
    ]
    steered.data("POST", "/api/saes/attach-set", {"saes": members})
    features = [
        {"index": FEATURE, "value": 40.0, **members[0]},
        {"index": FEATURE, "value": -20.0, "sae_id": second},
    ]
    answer = chat(steered, sae_steering={"features": features})
    again = chat(steered, sae_steering={"features": features[::-1]})
    first = chat(steered, sae_steering={"features": features[:1]})
    status, error = refused(steered, sae_steering=own((FEATURE, 40)))
    steered.data("POST", f"/api/saes/{second}/detach")
    assert (status, error["code"]) == (400, "invalid_parameter")
    assert error["param"] == "sae_steering.features[0].sae_id"
    assert [entry["sae_id"] for entry in error["details"]["attached"]] == [
        member["sae_id"] for member in members
    ]
    assert answer.headers[STATE] == again.headers[STATE] != first.headers[STATE]
    assert words(answer) == words(again)


# ---------------------------------------------------------------- which steering an answer had


def test_the_digest_is_the_same_whatever_the_values_came_from(steered: Running) -> None:
    made = steered.data("POST", "/api/profiles", {"name": "one", "steering": {"500": 20}}, 201)
    states = [
        chat(steered, sae_steering=own((FEATURE, 20))).headers[STATE],
        chat(steered, profile="one").headers[STATE],
        chat(steered, sae_steering=own((FEATURE, 40)), steering_intensity=0.5).headers[STATE],
        completion(steered, sae_steering=own((FEATURE, 20))).headers[STATE],
    ]
    steered.data("POST", f"/api/profiles/{made['id']}/activate")
    states += [chat(steered).headers[STATE], chat(steered, stream=True).headers[STATE]]
    steer(steered, 7, 1)
    changed = chat(steered).headers[STATE]
    steered.data("POST", f"{STEERING}/disable")
    off = chat(steered).headers
    steered.data("DELETE", f"/api/profiles/{made['id']}")
    clear(steered)
    assert set(states) == {states[0]}
    assert states[0].startswith("sha256=")
    assert len(states[0]) == len("sha256=") + 64
    assert changed != states[0]
    assert STATE not in off


def test_the_digest_can_be_computed_from_what_the_routes_answer(steered: Running) -> None:
    (attached,) = steered.data("GET", "/api/saes/attachments")["entries"]
    sae_id, layer = attached["sae_id"], attached["layer"]
    steered.data("POST", f"/api/saes/{sae_id}/detach")
    scale = {"normalisation": "expected_average_only_in", "norm_factor": 2.0}
    told = {"layer": layer, "overrides": scale}
    steered.data("POST", f"/api/saes/{sae_id}/attach", told)
    answer = chat(steered, sae_steering=own((FEATURE, 40)))
    (attached,) = steered.data("GET", "/api/saes/attachments")["entries"]
    steered.data("POST", f"/api/saes/{sae_id}/detach")
    steered.data("POST", f"/api/saes/{sae_id}/attach", {"layer": layer})

    models = steered.data("GET", "/api/models")
    model = steered.data("GET", f"/api/models/{models['loaded_model_id']}")
    content = steered.data("GET", f"/api/saes/{sae_id}")["content_digest"]
    entry = {
        "sae": {"content_digest": content, **attached["overrides"]},
        "layer": attached["layer"],
        "site": attached["site"],
        "index": FEATURE,
        "value": 40.0,
    }
    document = {"model": {"content_digest": model["content_digest"]}, "steering": [entry]}
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    assert attached["overrides"] == scale
    assert answer.headers[STATE] == f"sha256={hashlib.sha256(text.encode()).hexdigest()}"


def test_scoring_and_embeddings_have_no_digest(steered: Running) -> None:
    steer(steered, FEATURE, 40)
    scored = completion(steered, max_tokens=1, logprobs=1)
    body = {"model": demo.MODEL_NAME, "input": "the sea"}
    embedded = steered.post("/v1/embeddings", body)
    clear(steered)
    for answer in (scored, embedded):
        assert STATE not in answer.headers
        assert answer.headers["x-service-steering"] == "none"


# ---------------------------------------------------------------- others at the same time


def test_requests_with_different_steering_at_once_are_each_as_alone(steered: Running) -> None:
    asked = [{"sae_steering": own((i, i - 280.0))} for i in range(300, 332)]
    fields = {"temperature": 1.0, "seed": 3, "max_tokens": 3}
    alone = [chat(steered, **fields, **one) for one in asked]
    with ThreadPoolExecutor(32) as pool:
        runs = [pool.submit(chat, steered, **fields, **one) for one in asked]
        together = [run.result() for run in runs]
    assert [words(answer) for answer in together] == [words(answer) for answer in alone]
    states = [answer.headers[STATE] for answer in together]
    assert states == [answer.headers[STATE] for answer in alone]
    assert len(set(states)) == 32


@pytest.mark.parametrize("mode", ["replace", "add"])
def test_an_operators_change_during_the_stream_does_not_touch_it(
    steered: Running, mode: str
) -> None:
    asked = {"sae_steering": own(LOOPING, mode=mode), "max_tokens": 150}
    alone = chat(steered, **asked)
    body = {"model": demo.MODEL_NAME, "messages": STORY, "temperature": 0} | asked
    text = ""
    with steered.http.stream("POST", CHAT, json=body | {"stream": True}) as answer:
        for piece in pieces(answer):
            text += piece
            if len(text) > 10 and not steered.data("GET", STEERING)["enabled"]:
                steer(steered, *OTHER_LOOP)
    assert text == words(alone)
    assert answer.headers[STATE] == alone.headers[STATE]
    assert steered.data("GET", STEERING)["values"] == {str(OTHER_LOOP[0]): OTHER_LOOP[1]}
    clear(steered)


def test_changes_that_add_nothing_leave_the_request_its_steering(steered: Running) -> None:
    first, second = demo.saes()[:2]
    other = add_sae(steered, second)
    body = {"model": demo.MODEL_NAME, "messages": STORY, "temperature": 0, "max_tokens": 250}
    asked = body | {"sae_steering": own(LOOPING)}
    alone = words(steered.post(CHAT, asked))
    before = after = ""
    with steered.http.stream("POST", CHAT, json=asked | {"stream": True}) as answer:
        deltas = pieces(answer)
        while len(before) < 10:
            before += next(deltas)
        steered.data("POST", f"{STEERING}/enable")
        steer(steered, FEATURE, 0)
        steered.data("POST", f"{STEERING}/disable")
        members = [
            {"sae_id": add_sae(steered, first), "layer": first.layer},
            {"sae_id": other, "layer": second.layer},
        ]
        steered.data("POST", "/api/saes/attach-set", {"saes": members})
        after = "".join(deltas)
    steered.data("POST", f"/api/saes/{other}/detach")
    assert len(after) > 100
    assert before + after == alone


def test_a_refused_request_leaves_nothing_steered(steered: Running) -> None:
    plain = words(chat(steered))
    long = [{"role": "user", "content": "word " * 2000}]
    for is_stream in (False, True):
        fields = {"messages": long, "stream": is_stream, "sae_steering": own((FEATURE, 80))}
        status, error = refused(steered, **fields)
        assert (status, error["code"]) == (400, "context_length_exceeded")
    assert words(chat(steered)) == plain
