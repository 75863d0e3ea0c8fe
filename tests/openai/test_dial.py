"""The steering of one request over HTTP: a saved profile, an intensity, both, or neither."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from steerserve import demo
from tests.near import check_same_chat
from tests.openai.conftest import Zoo, payload, until_idle
from tests.service import Running

CHAT = "/v1/chat/completions"
STEERING = "/api/saes/steering"
DIAL = "x-service-steering-intensity"
STORY = [{"role": "user", "content": "Tell me a story."}]
FEATURE = 500
LOOPING = {"17": 60.0}
"""It makes the model say one word for ever, so that a stream is sure to be long."""

OTHER_LOOP = (3, 60.0)
Profile = Callable[..., str]


def ask(live: Running, **fields: Any) -> httpx2.Response:
    body = {"model": demo.MODEL_NAME, "messages": STORY, "max_tokens": 20, "temperature": 0}
    return live.post(CHAT, body | fields)


def words(answer: httpx2.Response) -> str:
    return str(answer.json()["choices"][0]["message"]["content"])


def text(live: Running, **fields: Any) -> str:
    return words(ask(live, **fields))


def steer(live: Running, value: float, index: int = FEATURE) -> None:
    live.data("POST", STEERING, {"feature_idx": index, "value": value})


def clear(live: Running) -> None:
    live.data("DELETE", STEERING)


def with_live(live: Running, value: float, **fields: Any) -> str:
    """The text while the feature is steered live by this value and by nothing else."""
    steer(live, value)
    found = text(live, **fields)
    clear(live)
    return found


@pytest.fixture
def profile(shared: Running) -> Iterator[Profile]:
    """Saves a profile and gives its name; it is forgotten afterwards."""
    ids: list[str] = []

    def save(steering: dict[str, float], **fields: Any) -> str:
        name = f"profile {len(ids)}"
        body = {"name": name, "steering": steering} | fields
        ids.append(shared.data("POST", "/api/profiles", body, 201)["id"])
        return name

    yield save
    for made in ids:
        shared.data("DELETE", f"/api/profiles/{made}")


# ---------------------------------------------------------------- a profile


@pytest.mark.shows("chat-parameters.14")
def test_a_profiles_text_is_that_of_the_same_values_set_live(
    steered: Running, profile: Profile
) -> None:
    plain = text(steered)
    expected = with_live(steered, 40)
    assert expected != plain
    answer = ask(steered, profile=profile({str(FEATURE): 40}))
    assert words(answer) == expected
    assert answer.headers["x-service-backend"] == "serial"
    assert DIAL not in answer.headers
    assert steered.data("GET", STEERING) == {"enabled": False, "values": {}}
    assert text(steered) == plain


@pytest.mark.shows("chat-parameters.24", "steering-dial.1")
def test_a_profile_replaces_the_live_values_of_its_request_only(
    steered: Running, profile: Profile
) -> None:
    alone = with_live(steered, 40)
    steer(steered, -30, index=7)
    live = text(steered)
    state = steered.data("GET", STEERING)
    assert text(steered, profile=profile({str(FEATURE): 40})) == alone
    assert steered.data("GET", STEERING) == state
    assert text(steered) == live != alone


# ---------------------------------------------------------------- the dial


@pytest.mark.shows("chat-parameters.15", "steering-dial.10")
@pytest.mark.parametrize(
    ("intensity", "value", "echo"),
    [("min", 20, "0.5"), (1, 40, "1"), ("max", 60, "1.5"), (2.0, 80, "2"), (0.25, 10, "0.25")],
)
def test_an_intensity_scales_the_profile_and_is_echoed(
    steered: Running, profile: Profile, intensity: Any, value: float, echo: str
) -> None:
    answer = ask(steered, profile=profile({str(FEATURE): 40}), steering_intensity=intensity)
    assert words(answer) == with_live(steered, value)
    assert answer.headers[DIAL] == echo


@pytest.mark.shows("steering-dial.1")
def test_an_intensity_alone_scales_the_live_values(steered: Running) -> None:
    expected = {value: with_live(steered, value) for value in (20, 40, 60)}
    assert len(set(expected.values())) == 3
    steer(steered, 40)
    for intensity, value, echo in (("min", 20, "0.5"), (1.0, 40, "1"), ("max", 60, "1.5")):
        answer = ask(steered, steering_intensity=intensity)
        assert words(answer) == expected[value]
        assert answer.headers[DIAL] == echo
    assert steered.data("GET", STEERING) == {"enabled": True, "values": {str(FEATURE): 40.0}}


@pytest.mark.shows("chat-parameters.15", "steering-dial.3", "limits.15")
@pytest.mark.parametrize("off", ["off", 0, 0.0])
def test_off_is_the_unsteered_text_byte_for_byte_while_steering_is_live(
    steered: Running, profile: Profile, off: Any
) -> None:
    plain = text(steered)
    steer(steered, 60)
    assert text(steered) != plain
    answer = ask(steered, steering_intensity=off)
    assert words(answer) == plain
    assert answer.headers[DIAL] == "0"
    named = ask(steered, steering_intensity=off, profile=profile({str(FEATURE): 40}))
    assert words(named) == plain
    assert named.headers[DIAL] == "0"


@pytest.mark.shows("steering-dial.8", "limits.1", "steering-errors.9")
def test_a_dialed_value_is_clamped_where_a_live_one_would_be_refused(
    steered: Running, profile: Profile
) -> None:
    assert steered.error("POST", STEERING, {"feature_idx": FEATURE, "value": 300})[0] == 422
    high = profile({str(FEATURE): 150})
    assert text(steered, profile=high, steering_intensity=2) == with_live(steered, 200)
    low = profile({str(FEATURE): -150})
    assert text(steered, profile=low, steering_intensity=2) == with_live(steered, -200)


# ---------------------------------------------------------------- no echo where nothing is dialed


@pytest.mark.shows("chat-parameters.25", "steering-dial.10")
def test_without_an_sae_a_dialed_request_runs_unsteered(shared: Running, profile: Profile) -> None:
    plain = text(shared)
    fits, does_not = profile({str(FEATURE): 80}), profile({"4000": 1}, sae_id="sae_of_another")
    for fields in (
        {"profile": fits},
        {"profile": fits, "steering_intensity": "max"},
        {"profile": does_not, "steering_intensity": 1},
        {"steering_intensity": 1.5},
        {"steering_intensity": "off"},
    ):
        answer = ask(shared, **fields)
        assert words(answer) == plain
        assert DIAL not in answer.headers


@pytest.mark.shows("steering-dial.10")
def test_a_dial_alone_never_turns_on_what_an_operator_turned_off(steered: Running) -> None:
    plain = text(steered)
    steer(steered, 60)
    steered.data("POST", f"{STEERING}/disable")
    for intensity in ("min", 1, "max", "off"):
        answer = ask(steered, steering_intensity=intensity)
        assert words(answer) == plain
        assert DIAL not in answer.headers
    assert steered.data("GET", STEERING) == {"enabled": False, "values": {str(FEATURE): 60.0}}


# ---------------------------------------------------------------- refusals


def refused(live: Running, **fields: Any) -> tuple[int, dict[str, Any]]:
    body = {"model": demo.MODEL_NAME, "messages": STORY, "max_tokens": 2}
    return live.v1_error(CHAT, body | fields)


@pytest.mark.shows("chat-parameters.25", "profile-errors.3")
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_profile_that_does_not_fit_the_attached_sae_is_refused(
    steered: Running, profile: Profile, is_stream: bool
) -> None:
    own = steered.data("GET", "/api/saes/attachment")
    for made in (
        profile({"1": 1, "1024": 1}),
        profile({"1": 1}, sae_id="sae_of_another_model"),
        profile({"1": 1}, sae_id=own["sae_id"], layer=own["layer"] + 1),
    ):
        for fields in ({}, {"steering_intensity": 0.5}):
            status, error = refused(steered, profile=made, stream=is_stream, **fields)
            assert (status, error["code"]) == (400, "profile_incompatible")
            assert error["param"] == "profile"
    fits = profile({"1": 1, "1023": 1}, sae_id=own["sae_id"], layer=own["layer"])
    assert ask(steered, profile=fits, max_tokens=1).status_code == 200


@pytest.mark.shows("chat-parameters.25", "profile-errors.1")
@pytest.mark.parametrize("is_stream", [False, True])
def test_an_unknown_profile_is_refused_before_the_model_is_loaded(
    zoo: Zoo, is_stream: bool
) -> None:
    zoo.empty()
    body = {"model": "tiny", "messages": STORY, "profile": "nobody's", "stream": is_stream}
    for fields in ({}, {"steering_intensity": 1}):
        status, error = zoo.live.v1_error(CHAT, body | fields)
        assert (status, error["code"], error["param"]) == (404, "profile_not_found", "profile")
    assert zoo.resident() is None
    assert zoo.status("tiny") == "ready"


@pytest.mark.shows("chat-parameters.15", "steering-dial.4", "limits.15", "general-errors.11")
@pytest.mark.parametrize(
    "intensity",
    [2.0001, True, "high", []],
)
def test_an_intensity_out_of_range_is_refused_by_its_name(shared: Running, intensity: Any) -> None:
    status, error = refused(shared, steering_intensity=intensity, model="nobody")
    assert (status, error["code"]) == (400, "invalid_parameter")
    assert error["param"] == "steering_intensity"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e400", "-1e400"])
def test_an_intensity_that_is_no_finite_number_is_refused(shared: Running, number: str) -> None:
    body = {"model": demo.MODEL_NAME, "messages": STORY, "steering_intensity": "@"}
    raw = json.dumps(body).replace('"@"', number).encode()
    status, error = shared.v1_error(CHAT, raw)
    assert (status, error["code"]) == (400, "invalid_parameter")


@pytest.mark.parametrize("name", ["", 5])
def test_a_profile_is_named_by_a_text(shared: Running, name: Any) -> None:
    status, error = refused(shared, profile=name)
    assert (status, error["code"], error["param"]) == (400, "invalid_parameter", "profile")


def test_a_refused_dialed_request_leaves_nothing_steered(
    steered: Running, profile: Profile
) -> None:
    plain = text(steered)
    name = profile({str(FEATURE): 80})
    for is_stream in (False, True):
        long = [{"role": "user", "content": "word " * 2000}]
        status, error = refused(steered, profile=name, messages=long, stream=is_stream)
        assert (status, error["code"]) == (400, "context_length_exceeded")
    assert text(steered) == plain


# ---------------------------------------------------------------- others at the same time


def test_requests_of_different_profiles_at_once_are_each_as_alone(
    steered: Running, profile: Profile
) -> None:
    asked = [
        {"profile": profile({str(FEATURE): 40}), "steering_intensity": 1.5},
        {"profile": profile({"90": 50, "7": -20})},
        {"steering_intensity": "off"},
        {},
    ]
    steer(steered, 30, index=200)
    fields = {"temperature": 1.0, "seed": 3, "max_tokens": 24}
    alone = [text(steered, **fields, **one) for one in asked]
    assert len(set(alone)) == 4
    with ThreadPoolExecutor(8) as pool:
        runs = [pool.submit(text, steered, **fields, **one) for one in asked * 2]
        assert [run.result() for run in runs] == alone * 2
    assert steered.data("GET", STEERING) == {"enabled": True, "values": {"200": 30.0}}


def test_greedy_requests_of_different_profiles_share_a_batch_and_are_each_as_alone(
    steered: Running, profile: Profile
) -> None:
    asked = [{"profile": profile(LOOPING)}, {"profile": profile({"3": 60.0})}, {}]
    alone = [text(steered, max_tokens=12, **one) for one in asked]
    assert len(set(alone)) == 3
    with ThreadPoolExecutor(3) as pool:
        *steering, plain = [pool.submit(text, steered, max_tokens=12, **one) for one in asked]
        # these profiles make the model say one word for ever, which rounding does not change
        assert [run.result() for run in steering] == alone[:2]
        check_same_chat(steered, STORY, plain.result(), alone[2])


@pytest.mark.shows("steering-dial.9")
def test_an_operators_change_during_a_dialed_stream_wins(
    steered: Running, profile: Profile
) -> None:
    name = profile(LOOPING)
    alone = text(steered, profile=name, steering_intensity=1, max_tokens=60)
    body = {"model": demo.MODEL_NAME, "messages": STORY, "temperature": 0, "max_tokens": 1000}
    dialed = body | {"profile": name, "steering_intensity": 1, "stream": True}
    before = after = ""
    index, value = OTHER_LOOP
    with steered.http.stream("POST", CHAT, json=dialed) as answer:
        assert answer.headers[DIAL] == "1"
        deltas = (
            payload(line)["choices"][0]["delta"].get("content", "")
            for line in answer.iter_lines()
            if line
        )
        while len(before) < 10:
            before += next(deltas)
        steer(steered, value, index)
        while "he he he" not in after:
            after += next(deltas)
    assert alone.startswith(before)
    assert "he he" not in alone
    until_idle(steered)
    assert steered.data("GET", STEERING) == {"enabled": True, "values": {str(index): value}}
