"""`interventions` over HTTP: the edits that a request brings itself, and the digest of the steering that it had."""

from __future__ import annotations

from typing import Any

import pytest

from steerserve import demo
from tests.openai.conftest import Zoo, payload
from tests.openai.test_sae_steering import (
    CHAT,
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

FEATURE = 500
SET = {"op": "set", "feature": {"index": FEATURE}, "value": 40}


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
    text = ""
    for line in streamed.iter_lines():
        if line and payload(line) != "[DONE]":
            text += payload(line)["choices"][0]["delta"].get("content", "")
    assert text == words(whole) != words(chat(steered))
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


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("given", "code", "param"),
    [
        (edits(edit("add", value=200.5)), "invalid_parameter", "edits[0].value"),
        (edits(SET, edit("set", value=10_001)), "invalid_parameter", "edits[1].value"),
        (edits(edit("set")), "invalid_parameter", "edits[0].value"),
        (edits(edit("ablate", value=1)), "invalid_parameter", "edits[0].value"),
        (edits(edit("clamp", value=1)), "invalid_parameter", "edits[0].op"),
        (edits(SET | {"positions": "prompt"}), "invalid_parameter", "edits[0].positions"),
        (edits({"op": "ablate"}), "invalid_parameter", "edits[0].feature"),
        (edits(edit("ablate", -1)), "invalid_parameter", "edits[0].feature.index"),
        (edits(SET, edit("ablate", 1024)), "invalid_feature_index", "edits[1].feature.index"),
        (
            edits({"op": "ablate", "feature": {"index": 1, "sae_id": "sae_of_nobody"}}),
            "sae_not_attached",
            "edits[0].feature",
        ),
        (edits(*2 * [edit("add", value=150)]), "invalid_parameter", "edits[1].value"),
        (edits(SET, mode="plus"), "invalid_parameter", "mode"),
        (edits(SET, preserve_norm=True), "invalid_parameter", "preserve_norm"),
    ],
)
def test_a_wrong_edit_is_refused_by_its_place(
    steered: Running, path: str, given: dict[str, Any], code: str, param: str
) -> None:
    status, error = refused(steered, path, **given)
    assert (status, error["code"], error["param"]) == (400, code, f"interventions.{param}")


@pytest.mark.parametrize("many", [65 * [edit("add", value=0.1)], 17 * [edit("ablate")]])
def test_too_many_edits_are_refused(steered: Running, many: list[dict[str, Any]]) -> None:
    status, error = refused(steered, **edits(*many))
    assert (status, error["code"], error["param"]) == (422, "too_many_edits", "interventions.edits")


def test_steering_in_two_forms_is_refused(steered: Running) -> None:
    for other in ({"sae_steering": own((1, 1))}, {"profile": "calm"}):
        status, error = refused(steered, **edits(SET), **other)
        assert (status, error["code"], error["param"]) == (
            400,
            "invalid_parameter",
            "interventions",
        )


def test_scoring_embeddings_and_gguf_models_refuse_edits(steered: Running, zoo: Zoo) -> None:
    status, error = refused(steered, TEXT, **edits(SET), max_tokens=1, logprobs=1)
    assert (status, error["code"], error["param"]) == (400, "field_not_honoured", "interventions")
    body = {"model": demo.MODEL_NAME, "input": "a", **edits(SET)}
    assert steered.v1_error("/v1/embeddings", body)[1]["code"] == "field_not_honoured"
