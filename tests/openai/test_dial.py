"""The steering of one request over HTTP: a saved profile, an intensity, both, or neither."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from steerserve import demo
from tests.openai.conftest import Zoo, pieces, until_idle
from tests.openai.steering import (
    CHAT,
    DIAL,
    FEATURE,
    LOOPING,
    OTHER_LOOP,
    STEERING,
    STORY,
    chat,
    clear,
    refused,
    steer,
    words,
)
from tests.service import Running

Profile = Callable[..., str]


def values(*features: tuple[int, float]) -> dict[str, float]:
    """The values of a profile."""
    return {str(index): value for index, value in features}


def text(live: Running, **fields: Any) -> str:
    return words(chat(live, **fields))


def with_live(live: Running, value: float, **fields: Any) -> str:
    """The text while the feature is steered live by this value and by nothing else."""
    steer(live, FEATURE, value)
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


@pytest.mark.shows("chat-parameters.14", "chat-parameters.24", "steering-dial.1")
def test_a_profiles_text_is_that_of_the_same_values_set_live_without_any_other(
    steered: Running, profile: Profile
) -> None:
    expected = with_live(steered, 40)
    steer(steered, 7, -30)
    live = text(steered)
    state = steered.data("GET", STEERING)
    answer = chat(steered, profile=profile({str(FEATURE): 40}))
    assert words(answer) == expected
    assert answer.headers["x-service-backend"] == "serial"
    assert DIAL not in answer.headers
    assert steered.data("GET", STEERING) == state
    assert text(steered) == live != expected


# ---------------------------------------------------------------- the dial


@pytest.mark.shows("chat-parameters.15", "steering-dial.10")
@pytest.mark.parametrize(
    ("intensity", "value", "echo"),
    [("min", 20, "0.5"), (2.0, 80, "2")],
)
def test_an_intensity_scales_the_profile_and_is_echoed(
    steered: Running, profile: Profile, intensity: Any, value: float, echo: str
) -> None:
    answer = chat(steered, profile=profile({str(FEATURE): 40}), steering_intensity=intensity)
    assert words(answer) == with_live(steered, value)
    assert answer.headers[DIAL] == echo


@pytest.mark.shows("steering-dial.1")
def test_an_intensity_alone_scales_the_live_values(steered: Running) -> None:
    expected = {value: with_live(steered, value) for value in (20, 40, 60)}
    assert len(set(expected.values())) == 3
    steer(steered, FEATURE, 40)
    for intensity, value, echo in (("min", 20, "0.5"), (1.0, 40, "1"), ("max", 60, "1.5")):
        answer = chat(steered, steering_intensity=intensity)
        assert words(answer) == expected[value]
        assert answer.headers[DIAL] == echo
    assert steered.data("GET", STEERING) == {"enabled": True, "values": {str(FEATURE): 40.0}}


@pytest.mark.shows("chat-parameters.15", "steering-dial.3", "limits.15")
def test_off_is_the_unsteered_text_byte_for_byte_while_steering_is_live(
    steered: Running, profile: Profile
) -> None:
    plain = text(steered)
    steer(steered, FEATURE, 60)
    assert text(steered) != plain
    answer = chat(steered, steering_intensity="off")
    assert words(answer) == plain
    assert answer.headers[DIAL] == "0"
    named = chat(steered, steering_intensity="off", profile=profile({str(FEATURE): 40}))
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
    for fields in ({"profile": fits}, {"profile": does_not, "steering_intensity": 1.5}):
        answer = chat(shared, **fields)
        assert words(answer) == plain
        assert DIAL not in answer.headers


# ---------------------------------------------------------------- refusals


@pytest.mark.shows("chat-parameters.25", "profile-errors.3")
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_profile_that_does_not_fit_the_attached_sae_is_refused(
    steered: Running, profile: Profile, is_stream: bool
) -> None:
    status, error = refused(steered, profile=profile({"1": 1, "1024": 1}), stream=is_stream)
    assert (status, error["code"], error["param"]) == (400, "profile_incompatible", "profile")


@pytest.mark.shows("chat-parameters.25", "profile-errors.1")
@pytest.mark.parametrize("is_stream", [False, True])
def test_an_unknown_profile_is_refused_before_the_model_is_loaded(
    zoo: Zoo, is_stream: bool
) -> None:
    zoo.empty()
    body = {"model": "tiny", "messages": STORY, "profile": "nobody's", "stream": is_stream}
    status, error = zoo.live.v1_error(CHAT, body)
    assert (status, error["code"], error["param"]) == (404, "profile_not_found", "profile")
    assert zoo.resident() is None
    assert zoo.status("tiny") == "ready"


@pytest.mark.shows("chat-parameters.15", "steering-dial.4", "limits.15", "general-errors.11")
def test_an_intensity_out_of_range_is_refused_by_its_name(shared: Running) -> None:
    status, error = refused(shared, steering_intensity=2.0001, model="nobody")
    assert (status, error["code"], error["param"]) == (
        400,
        "invalid_parameter",
        "steering_intensity",
    )


# ---------------------------------------------------------------- others at the same time


@pytest.mark.shows("steering-dial.9")
def test_an_operators_change_during_a_dialed_stream_wins(
    steered: Running, profile: Profile
) -> None:
    name = profile(values(LOOPING))
    alone = text(steered, profile=name, steering_intensity=1, max_tokens=60)
    body = {"model": demo.MODEL_NAME, "messages": STORY, "temperature": 0, "max_tokens": 1000}
    dialed = body | {"profile": name, "steering_intensity": 1, "stream": True}
    before = after = ""
    with steered.http.stream("POST", CHAT, json=dialed) as answer:
        assert answer.headers[DIAL] == "1"
        deltas = pieces(answer)
        while len(before) < 10:
            before += next(deltas)
        steer(steered, *OTHER_LOOP)
        while "he he he" not in after:
            after += next(deltas)
    assert alone.startswith(before)
    assert "he he" not in alone
    until_idle(steered)
    assert steered.data("GET", STEERING) == {"enabled": True, "values": values(OTHER_LOOP)}
