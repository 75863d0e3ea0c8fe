"""`replace` in requests, live interventions and profiles: the value that another text has at a site."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from steerserve import demo
from steerserve.rules import bounds
from tests.service import Running

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PROMPT = "The boats came back"
LONG = "The boats came back to the harbour in the rain"
SOURCE = {"text": "A whale swam near", "positions": "last_prompt"}
PUT = {"op": "replace", "layer": 2, "source": SOURCE, "positions": "last_prompt"}


def body(*edits: dict[str, Any], **fields: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": demo.MODEL_NAME, "prompt": PROMPT}
    asked |= {"max_tokens": 8, "temperature": 0, **fields}
    return asked | ({"interventions": {"edits": list(edits)}} if edits else {})


def text(answer: Any) -> str:
    return str(answer.json()["choices"][0]["text"])


def site(steered: Running, layer: int, asked: dict[str, Any]) -> list[list[float]]:
    sites = [{"site": "resid_post", "layers": [layer]}]
    read = {"return_activations_raw": {"sites": sites, "encoding": "list"}}
    (found,) = steered.post(TEXT, asked | read).json()["service"]["activations_raw"]
    values: list[list[float]] = found["data"]
    return values


@pytest.fixture
def plain(steered: Running) -> str:
    return text(steered.post(TEXT, body()))


def test_the_site_has_the_value_of_the_other_text_and_the_answer_follows(
    steered: Running, plain: str
) -> None:
    answer = steered.post(TEXT, body(PUT, return_steering_report=True))
    (entry,) = answer.json()["steering_report"]["edits"]
    assert (entry["op"], entry["acted"], entry["first"]) == ("replace", 1, entry["last"])
    assert text(answer) != plain
    source = body(prompt=SOURCE["text"], max_tokens=1, logprobs=1)
    at = entry["first"]
    assert site(steered, 2, body(PUT))[at] == site(steered, 2, source)[-1]
    assert site(steered, 2, body(PUT))[at - 1] == site(steered, 2, body())[at - 1]


def test_a_vector_is_the_value_itself(steered: Running) -> None:
    numbers = [float(number % 7 - 3) for number in range(192)]
    data = base64.b64encode(struct.pack("<192f", *numbers)).decode()
    put = {"op": "replace", "vector": {"layer": 2, "data": data}, "positions": "last_prompt"}
    last = len(steered.data("POST", "/api/tokenize", {"text": PROMPT})["ids"]) - 1
    assert site(steered, 2, body(put))[last] == numbers
    # half of the way from what stood there
    half = site(steered, 2, body({**put, "value": 0.5}))[last]
    own = site(steered, 2, body())[last]
    middle = [(one + other) / 2 for one, other in zip(numbers, own, strict=True)]
    np.testing.assert_allclose(half, middle, rtol=1e-2, atol=1e-2)


def test_a_comparison_has_it_on_one_side(steered: Running) -> None:
    asked = {"prompt": PROMPT, "max_tokens": 8, "interventions": {"edits": [PUT]}}
    sides = steered.data("POST", "/api/compare", asked)["sides"]
    # in a batch of as many rows, because their number changes the last bits of the logits
    pair = [body(*edits, prompt=[PROMPT] * 2) for edits in ((), (PUT,))]
    assert [side["text"] for side in sides] == [text(steered.post(TEXT, one)) for one in pair]
    assert sides[0]["text"] != sides[1]["text"]


def test_a_text_in_the_place_of_itself_changes_nothing(steered: Running, plain: str) -> None:
    every = {"op": "replace", "layers": {"from": 0, "to": 4}, "source": {"text": PROMPT}}
    window = {"prompt_window": [0, 100]}
    answer = steered.post(TEXT, body({**every, "positions": window}, return_steering_report=True))
    assert text(answer) == plain
    assert answer.json()["steering_report"]["edits"][0]["max_change"] == 0


@pytest.mark.parametrize("site", ["q", "k", "v"])
def test_heads_attend_with_what_another_text_has_there(steered: Running, site: str) -> None:
    """The other heads attend with what is theirs, and so does every head with what is its own already, up to the
    rounding to bfloat16."""
    put = {**PUT, "site": site, "heads": [1], "source": {**SOURCE, "text": "The whales came back"}}
    read = {
        "sites": [{"site": site, "layers": [2]}],
        "positions": "last_prompt",
        "encoding": "list",
    }

    def heads(*edits: dict[str, Any], prompt: str = PROMPT) -> Any:
        asked = body(*edits, prompt=prompt, max_tokens=2, return_activations_raw=read)
        (found,) = steered.post(TEXT, asked).json()["service"]["activations_raw"]
        return np.array(found["data"])[0]

    mixed, own, other = heads(put), heads(), heads(prompt=put["source"]["text"])
    near = partial(np.testing.assert_allclose, rtol=1e-2, atol=1e-2)
    near(mixed[1], other[1])
    near(np.delete(mixed, 1, 0), np.delete(own, 1, 0))
    assert np.abs(own[1] - other[1]).max() > 0.1
    itself = {**put, "source": {**SOURCE, "text": PROMPT}}
    near(heads(itself), own)


def test_a_feature_gets_the_activation_that_it_has_in_the_source(steered: Running) -> None:
    asked = {"features": [7], "positions": "last"}
    source = body(prompt=SOURCE["text"], max_tokens=1, logprobs=1, return_sae_activations=asked)
    (read,) = steered.post(TEXT, source).json()["service"]["sae_activations"]["positions"]
    (feature,) = read["features"]
    put = {"op": "replace", "feature": {"index": 7}, "source": SOURCE}
    fixed = {"op": "set", "feature": {"index": 7}, "value": feature["value"]}
    one, other = steered.post(TEXT, body(put)), steered.post(TEXT, body(fixed))
    assert text(one) == text(other)
    state = "x-service-steering-state"
    assert one.headers[state] == other.headers[state]


def test_a_feature_gets_the_activations_of_several_positions_in_their_order(
    steered: Running,
) -> None:
    """Under a condition, and half of the way, as edits of one position each."""
    at, places = [1, 2, 4], {"prompt_positions": [2, 3, 5]}
    asked = {"top_k": 20, "positions": "prompt"}
    source = body(prompt=SOURCE["text"], max_tokens=1, logprobs=1, return_sae_activations=asked)
    read = steered.post(TEXT, source).json()["service"]["sae_activations"]["positions"]
    active = {one["position"]: {f["index"] for f in one["features"]} for one in read}
    index = min(active[at[2]] - active[at[0]])
    named = {"text": SOURCE["text"], "positions": {"prompt_positions": at}}
    put = {"op": "replace", "feature": {"index": index}, "value": 0.5, "source": named}
    together = body({**put, "positions": places}, prompt=LONG, return_steering_report=True)
    one_by_one = [
        {
            **put,
            "source": {**named, "positions": {"prompt_positions": [one]}},
            "positions": {"prompt_positions": [two]},
        }
        for one, two in zip(at, places["prompt_positions"], strict=True)
    ]
    answers = [steered.post(TEXT, one) for one in (together, body(*one_by_one, prompt=LONG))]
    assert text(answers[0]) == text(answers[1])
    (entry,) = answers[0].json()["steering_report"]["edits"]
    assert entry["evaluated"] == 3
    both = [
        site(steered, 3, body(*edits, prompt=LONG))
        for edits in ([{**put, "positions": places}], one_by_one)
    ]
    assert both[0] == both[1]
    assert both[0][2:6] != site(steered, 3, body(prompt=LONG))[2:6]
    found, error = steered.v1_error(TEXT, body({**put, "positions": "last_prompt"}, prompt=LONG))
    assert (found, error["code"]) == (400, "invalid_parameter")
    assert "the source has 3 positions, and the edit 1" in error["message"]


@pytest.fixture
def intervened(steered: Running) -> Iterator[Running]:
    yield steered
    steered.data("DELETE", "/api/interventions")


def test_live_interventions_and_profiles_replace_for_everyone(
    intervened: Running, plain: str
) -> None:
    expected = text(intervened.post(TEXT, body(PUT)))
    put = intervened.data("PUT", "/api/interventions", {"edits": [PUT]})
    assert put["edits"] == [PUT]
    assert text(intervened.post(TEXT, body())) == expected
    intervened.data("DELETE", "/api/interventions")
    assert text(intervened.post(TEXT, body())) == plain
    saved = intervened.data("POST", "/api/profiles", {"name": "whale", "edits": [PUT]}, 201)
    where = f"/api/profiles/{saved['id']}"
    named, own = ({"profile": "whale"}, {"interventions": {"edits": [PUT]}})
    asked = {"model": demo.MODEL_NAME, "max_tokens": 8, "temperature": 0}
    asked["messages"] = [{"role": "user", "content": PROMPT}]
    by_name, by_edit = (intervened.post(CHAT, asked | more).json() for more in (named, own))
    assert by_name["choices"] == by_edit["choices"]
    intervened.data("POST", f"{where}/activate")
    assert text(intervened.post(TEXT, body())) == expected
    intervened.data("POST", f"{where}/deactivate")
    intervened.data("DELETE", where)


def test_a_source_is_read_without_the_live_steering(intervened: Running) -> None:
    put = {**PUT, "positions": {"prompt_positions": [-1]}}
    expected = site(intervened, 2, body(put))
    live = {"op": "add", "feature": {"index": 7}, "value": 50}
    intervened.data("PUT", "/api/interventions", {"edits": [live]})
    assert site(intervened, 2, body()) != expected
    assert site(intervened, 2, body(put)) == expected


def test_a_conversation_is_a_source(steered: Running) -> None:
    messages = [{"role": "user", "content": "A whale swam near"}]
    put = {**PUT, "source": {"messages": messages, "positions": "last_prompt"}}
    sites = [{"site": "resid_post", "layers": [2]}]
    read = {"sites": sites, "positions": "last_prompt", "encoding": "list"}
    asked = {"model": demo.MODEL_NAME, "messages": messages, "max_tokens": 1}
    answers = [
        steered.post(CHAT, asked | {"return_activations_raw": read}),
        steered.post(TEXT, body(put, return_activations_raw=read)),
    ]
    (own,), (found,) = (one.json()["service"]["activations_raw"] for one in answers)
    assert found["data"] == own["data"]


@pytest.mark.parametrize(
    ("edit", "status", "code", "where"),
    [
        ({**PUT, "layer": 99}, 409, "vector_mismatch", "layers"),
        (
            {**PUT, "source": {**SOURCE, "positions": {"prompt_positions": [99]}}},
            400,
            "invalid_parameter",
            "source.positions.prompt_positions",
        ),
        (
            {**PUT, "source": {**SOURCE, "positions": "generated"}},
            400,
            "invalid_parameter",
            "source.positions",
        ),
        ({**PUT, "source": {"text": SOURCE["text"]}}, 400, "invalid_parameter", "positions"),
        ({**PUT, "heads": [0]}, 400, "invalid_parameter", "heads"),
        ({**PUT, "site": "hook_z", "heads": [99]}, 400, "invalid_parameter", "heads"),
    ],
)
def test_what_cannot_be_replaced_is_refused_by_its_place(
    steered: Running, edit: dict[str, Any], status: int, code: str, where: str
) -> None:
    found, error = steered.v1_error(TEXT, body(edit))
    assert (found, error["code"]) == (status, code)
    assert error["param"] == f"interventions.edits[0].{where}"


def test_too_many_texts_are_refused(steered: Running) -> None:
    edits = [{**PUT, "source": {"text": f"text {number}"}} for number in range(17)]
    status, error = steered.v1_error(TEXT, body(*edits))
    assert (status, error["code"]) == (422, "too_many_edits")
    assert "17 sources of text; at most 16" in error["message"]


def test_texts_of_too_many_tokens_are_refused(
    steered: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["A whale swam near", "The king sat on the throne"]
    edits = [{**PUT, "source": {**SOURCE, "text": one}} for one in texts]
    first, second = (len(steered.data("POST", "/api/tokenize", {"text": t})["ids"]) for t in texts)
    monkeypatch.setattr(bounds, "EDIT_SOURCE_TOKENS", first + second)
    assert steered.post(TEXT, body(*edits)).status_code == 200
    monkeypatch.setattr(bounds, "EDIT_SOURCE_TOKENS", first + second - 1)
    status, error = steered.v1_error(TEXT, body(*edits))
    assert (status, error["code"]) == (422, "too_many_edits")
    assert error["param"] == "interventions.edits[1].source"
    assert f"{first + second} tokens" in error["message"]


def test_a_job_that_places_edits_itself_refuses_a_source(steered: Running) -> None:
    asked = {"edits": [PUT], "prompts": ["The sea"], "strengths": [1]}
    status, code, details = steered.error("POST", "/api/effects", asked)
    assert (status, code, details["param"]) == (422, "INVALID_INTERVENTION", "edits[0].source")
