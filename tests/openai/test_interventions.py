"""`interventions` over HTTP: the edits that a request brings itself, and the digest of the steering that it had."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest

from steerserve import demo
from tests.openai.conftest import pieces
from tests.openai.steering import (
    CHAT,
    FEATURE,
    STATE,
    TEXT,
    chat,
    clear,
    completion,
    own,
    refused,
    steer,
    words,
)
from tests.service import Running

SOURCES = "x-service-steering-sources"
SET = {"op": "set", "feature": {"index": FEATURE}, "value": 40}
LOUD = {"layer": 2, "data": base64.b64encode(struct.pack("<192f", *192 * [1.0])).decode()}


def edit(op: str, index: int = FEATURE, value: float | None = None) -> dict[str, Any]:
    return {"op": op, "feature": {"index": index}} | ({} if value is None else {"value": value})


def edits(*made: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"interventions": {"edits": list(made), **fields}}


@pytest.mark.parametrize("ask", [chat, completion])
def test_adding_is_what_sae_steering_does(steered: Running, ask: Any) -> None:
    short = ask(steered, sae_steering=own((FEATURE, 40), (7, -5)))
    long = ask(steered, **edits(edit("add", 7, -5), edit("add", value=15), edit("add", value=25)))
    assert words(long) == words(short) != words(ask(steered))
    assert long.headers[STATE] == short.headers[STATE]


def test_edits_that_do_the_same_have_one_text_and_one_digest(steered: Running) -> None:
    answers = [
        chat(steered, **edits(SET, one))
        for one in (edit("ablate", 7), edit("scale", 7, 0), edit("set", 7, 0))
    ]
    assert len({words(answer) for answer in answers}) == 1
    assert len({answer.headers[STATE] for answer in answers}) == 1
    others = [
        chat(steered, **edits(one))
        for one in (
            SET,
            edit("at_least", value=40),
            edit("at_most", value=40),
            edit("scale", value=40),
            edit("add", value=40),
            edit("set", value=20),
        )
    ]
    assert len({answer.headers[STATE] for answer in [*answers, *others]}) == 1 + len(others)


@pytest.mark.parametrize("idle", [edit("scale", value=1), edit("add", value=0), None])
def test_edits_that_do_nothing_leave_the_request_unsteered(
    steered: Running, idle: dict[str, Any] | None
) -> None:
    plain = chat(steered)
    steer(steered, FEATURE, 40)
    answer = chat(steered, **edits(*([idle] if idle else [])))
    clear(steered)
    assert words(answer) == words(plain)
    assert STATE not in answer.headers


def test_a_stream_has_the_text_and_the_headers_of_a_whole_answer(steered: Running) -> None:
    whole = chat(steered, **edits(SET))
    streamed = chat(steered, stream=True, **edits(SET))
    assert "".join(pieces(streamed)) == words(whole) != words(chat(steered))
    assert streamed.headers[STATE] == whole.headers[STATE]


def test_with_the_mode_add_the_live_values_stay_beside_the_edits(steered: Running) -> None:
    steer(steered, 7, -30)
    replaced = chat(steered, **edits(SET))
    added = chat(steered, **edits(SET, mode="add"))
    clear(steered)
    both = chat(steered, **edits(SET, edit("add", 7, -30)))
    assert (words(added), added.headers[STATE]) == (words(both), both.headers[STATE])
    assert replaced.headers[STATE] == chat(steered, **edits(SET)).headers[STATE]
    assert replaced.headers[STATE] != added.headers[STATE]


def test_an_intensity_is_the_strength_of_edits(steered: Running) -> None:
    plain, whole = chat(steered), chat(steered, **edits(SET))
    once = chat(steered, steering_intensity=1, **edits(SET))
    half = chat(steered, steering_intensity=0.5, **edits(SET))
    off = chat(steered, steering_intensity="off", **edits(SET))
    assert (words(once), once.headers[STATE]) == (words(whole), whole.headers[STATE])
    assert half.headers["x-service-steering-intensity"] == "0.5"
    assert half.headers[STATE] != whole.headers[STATE]
    assert words(off) == words(plain)


def test_a_product_that_single_precision_lacks_is_refused_by_its_place(steered: Running) -> None:
    faint = {"layer": 0, "data": base64.b64encode(struct.pack("<192f", *192 * [1e-38])).decode()}
    for name, bias in (("faint", 0.0), ("biased", 1e308)):
        body = {"name": name, "source": "inline", "weights": [faint | {"bias": bias}]}
        steered.data("POST", "/api/probes", body, 201)
    push = {"op": "add", "vector": LOUD, "value": 3e38}
    given = {
        "value": edits(push) | {"steering_intensity": 2},
        "when.above": edits(push | {"when": {"probe": "faint", "above": 3e38}}),
        "when.any[0].below": edits(push | {"when": {"any": [{"probe": "biased", "below": 1}]}}),
    }
    for part, body in given.items():
        status, error = refused(steered, **body)
        assert (status, error["code"]) == (400, "invalid_parameter")
        assert error["param"] == f"interventions.edits[0].{part}"
    for probe in steered.data("GET", "/api/probes")["probes"]:
        steered.data("DELETE", f"/api/probes/{probe['id']}")
    body = {"prompt": "One day", "interventions": {"edits": [push]}, "intensities": [2]}
    status, code, details = steered.error("POST", "/api/compare", body)
    assert (status, code) == (422, "INVALID_INTERVENTION")
    assert details["param"] == "interventions.edits[0].value"


def test_the_sources_are_named_where_the_answer_is_steered(steered: Running) -> None:
    assert SOURCES not in chat(steered).headers
    assert chat(steered, **edits(SET)).headers[SOURCES] == "request"
    steer(steered, 7, -30)
    alone = chat(steered)
    both = chat(steered, **edits(SET, mode="add"))
    clear(steered)
    assert alone.headers[SOURCES] == "live"
    assert both.headers[SOURCES] == "live,request"


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_report_lists_every_edit_in_the_final_object(steered: Running, is_stream: bool) -> None:
    body = {
        "model": demo.MODEL_NAME,
        "prompt": "Once upon a",
        "max_tokens": 3,
        "return_steering_report": True,
        **edits(edit("add", 7, 1), SET),
    }
    if is_stream:
        *_, final, done = steered.stream(TEXT, body)
        assert done == "[DONE]"
    else:
        final = steered.post(TEXT, body).json()
    report = final["steering_report"]
    assert report["state"].startswith("sha256=")
    assert report["changed"] is False
    assert "steering_changed" not in final
    for one in report["edits"]:
        assert sum(last - first + 1 for first, last in one["at"]) == one["acted"]
        assert (one["at"][0][0], one["at"][-1][1]) == (one["first"], one["last"])
    told = [(one["edit"], one["source"], one["op"]) for one in report["edits"]]
    assert told == [(0, "request", "add"), (1, "request", "set")]


def test_a_scoring_request_is_steered_where_it_says_so(steered: Running) -> None:
    fields = {"max_tokens": 1, "temperature": 0, "logprobs": 1}
    plain = completion(steered, **fields)
    status, error = refused(steered, TEXT, **fields, **edits(SET))
    assert (status, error["code"], error["param"]) == (400, "field_not_honoured", "interventions")
    answer = completion(steered, score_steered=True, **fields, **edits(SET))
    assert answer.json()["steered"] is True
    assert "x-service-steering" not in answer.headers
    assert answer.headers[STATE] == completion(steered, max_tokens=1, **edits(SET)).headers[STATE]
    unsteered = completion(steered, score_steered=True, **fields, **edits())
    assert unsteered.json()["steered"] is False
    assert unsteered.json()["choices"] == plain.json()["choices"]
    assert unsteered.headers["x-service-steering"] == "none"


def test_a_model_name_may_carry_a_profile(steered: Running) -> None:
    made = {"name": "calm one", "steering": {"7": -30, str(FEATURE): 40}}
    profile = steered.data("POST", "/api/profiles", made, 201)["id"]
    named = {"model": f"{demo.MODEL_NAME}@calm one"}
    answer = chat(steered, **named)
    by_field = chat(steered, profile="calm one")
    assert words(answer) == words(by_field)
    assert answer.headers[STATE] == by_field.headers[STATE]
    assert answer.headers[SOURCES] == f"profile:{profile}"
    assert answer.json()["model"] == demo.MODEL_NAME
    text = completion(steered, **named)
    assert text.headers[STATE] == answer.headers[STATE]
    scoring = {"max_tokens": 1, "temperature": 0, "logprobs": 1}
    scored = completion(steered, **named, **scoring)
    assert scored.json()["steered"] is True
    assert scored.headers[STATE] == answer.headers[STATE]
    for other in ({"profile": "calm one"}, edits(SET)):
        status, error = refused(steered, CHAT, **named, **other)
        assert (status, error["code"]) == (400, "invalid_parameter")
    embedded = {**named, "input": "One day"}
    status, error = steered.v1_error("/v1/embeddings", embedded)
    assert (status, error["code"], error["param"]) == (400, "field_not_honoured", "model")
    steered.data("DELETE", f"/api/profiles/{profile}")
    status, error = refused(steered, CHAT, **named)
    assert (status, error["code"]) == (404, "model_not_found")
    assert error["message"].endswith("and no profile is named 'calm one'")


# ---------------------------------------------------------------- vectors, positions, conditions


def inline(live: Running, index: int, layer: int = 2) -> dict[str, Any]:
    """A direction as long as the residual stream is wide."""
    width = live.data("GET", "/api/saes")["saes"][0]["d_in"]
    numbers = [1.0 if at == index else 0.0 for at in range(width)]
    data = base64.b64encode(struct.pack(f"<{width}f", *numbers)).decode()
    return {"layer": layer, "data": data}


def test_a_vector_is_the_same_by_its_name_and_inside_the_request(steered: Running) -> None:
    direction = inline(steered, 3)
    body = {"name": "north", "source": "inline", "directions": [direction]}
    stored = steered.http.post("/api/vectors", json=body)
    assert stored.status_code == 201, stored.text
    push = {"op": "add", "value": 60}
    by_name = chat(steered, **edits({**push, "vector": "north"}))
    given = chat(steered, **edits({**push, "vector": direction}))
    steered.data("DELETE", f"/api/vectors/{stored.json()['data']['id']}")
    assert words(by_name) == words(given) != words(chat(steered))
    assert by_name.headers[STATE] == given.headers[STATE]


def test_edits_act_where_their_positions_and_conditions_are(steered: Running) -> None:
    plain = chat(steered)
    push = {"op": "add", "vector": inline(steered, 3), "value": 60}
    never = {"feature": {"index": FEATURE}, "above": 1e6}
    first = {"generated_window": [0, 1]}
    answers = {
        name: chat(steered, return_steering_report=True, **edits({**push, **fields}))
        for name, fields in {
            "everywhere": {},
            "generated": {"positions": "generated"},
            "first": {"positions": first},
            "roles": {"positions": {"roles": ["user"]}},
            "never": {"when": never},
        }.items()
    }
    acted = {
        name: answer.json()["steering_report"]["edits"][0]["acted"]
        for name, answer in answers.items()
    }
    usage = answers["everywhere"].json()["usage"]
    # the last sampled token is read by no pass
    assert acted["everywhere"] == usage["prompt_tokens"] + usage["completion_tokens"] - 1
    assert acted["generated"] == answers["generated"].json()["usage"]["completion_tokens"] - 1
    assert acted["first"] == 1
    assert 0 < acted["roles"] < usage["prompt_tokens"]
    assert acted["never"] == 0
    assert words(answers["never"]) == words(plain)


@pytest.mark.parametrize(
    ("fields", "status", "code", "part"),
    [
        ({"layers": [1]}, 400, "invalid_parameter", "layers"),
        ({"vector": {"layer": 99}}, 409, "vector_mismatch", "vector"),
        ({"positions": {"prompt_positions": [999]}}, 400, "invalid_parameter", "positions"),
    ],
)
def test_a_vector_that_does_not_fit_is_refused(
    steered: Running, fields: dict[str, Any], status: int, code: str, part: str
) -> None:
    direction = inline(steered, 3) | fields.pop("vector", {})
    found, error = refused(steered, **edits({"op": "ablate", "vector": direction, **fields}))
    assert (found, error["code"]) == (status, code)
    assert error["param"].startswith(f"interventions.edits[0].{part}")


LOGPROBS = {"return_logprobs": {"top": 2, "of": ["steered", "plain"]}}


@pytest.mark.parametrize("ask", [chat, completion])
def test_an_answer_has_the_log_probabilities_of_what_it_wrote(steered: Running, ask: Any) -> None:
    told = ask(steered, **edits(SET), **LOGPROBS).json()
    written = told["service"]["logprobs"]
    assert len(written) == told["usage"]["completion_tokens"]
    assert any(one["plain"]["logprob"] < one["plain"]["top"][0]["logprob"] for one in written)
    # the most probable token was written; two may have equal logits
    assert all(one["steered"]["logprob"] == one["steered"]["top"][0]["logprob"] for one in written)
    plain = ask(steered, **edits(), **LOGPROBS).json()["service"]["logprobs"]
    for one in plain:
        assert one["steered"]["logprob"] == pytest.approx(one["plain"]["logprob"], abs=0.05)
