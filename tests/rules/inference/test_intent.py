"""What a request wants, as a value."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steerserve.rules.inference.intent import (
    EmbedIntent,
    GenerateIntent,
    Intent,
    SamplingParameters,
    ScoreIntent,
    repetition_penalty,
)

PENALTY = st.floats(-2, 2)
EVERY_KIND: list[Intent] = [
    GenerateIntent(("a",), SamplingParameters(), lease="the-secret"),
    ScoreIntent(("a",), lease="the-secret"),
    EmbedIntent(("a",), lease="the-secret"),
]


@pytest.mark.parametrize(
    ("frequency", "presence", "expected"),
    [(0, 0, 1.0), (2, 2, 2.0), (-2, -2, 0.5), (2, -2, 1.0), (2, 0, 2**0.5), (0, 2, 2**0.5)],
)
def test_penalties_map_to_one_repetition_penalty(
    frequency: float, presence: float, expected: float
) -> None:
    assert repetition_penalty(frequency, presence) == pytest.approx(expected)


@settings(deadline=None, derandomize=True)
@given(PENALTY, PENALTY, PENALTY)
def test_a_larger_penalty_never_repeats_more(low: float, high: float, other: float) -> None:
    low, high = sorted((low, high))
    assert 0.5 <= repetition_penalty(low, other) <= repetition_penalty(high, other) <= 2.0


def test_each_prompt_yields_n_choices() -> None:
    conversation = ({"role": "user", "content": "hi"},)
    assert GenerateIntent(("a", "b", "c"), SamplingParameters(), n=2).choices == 6
    assert GenerateIntent((conversation, conversation), SamplingParameters()).choices == 2


def test_each_prompt_is_scored_and_embedded_once() -> None:
    assert ScoreIntent(("a", "b", "c")).choices == 3
    assert EmbedIntent(("a", "b", "c")).choices == 3


def test_generating_and_scoring_requests_tell_their_seed_alike() -> None:
    assert GenerateIntent(("a",), SamplingParameters(seed=0)).seed == 0
    assert ScoreIntent(("a",), seed=0).seed == 0
    assert GenerateIntent(("a",), SamplingParameters()).seed is None
    assert ScoreIntent(("a",)).seed is None


@pytest.mark.parametrize("intent", EVERY_KIND, ids=lambda intent: type(intent).__name__)
def test_the_lease_is_never_shown(intent: Intent) -> None:
    assert intent.lease == "the-secret"
    assert "secret" not in repr(intent)


@pytest.mark.parametrize("intent", EVERY_KIND, ids=lambda intent: type(intent).__name__)
def test_an_intent_cannot_be_changed_behind_the_door(intent: Intent) -> None:
    with pytest.raises(FrozenInstanceError):
        intent.may_load = False  # type: ignore[misc]
    assert intent.may_load


def test_a_request_that_names_nothing_is_plain() -> None:
    intent = GenerateIntent(("a",), SamplingParameters())
    assert intent.may_load
    assert (intent.ignored, intent.lease) == ((), None)
    assert (intent.profile, intent.intensity, intent.constraint, intent.activations) == (None,) * 4
    assert repetition_penalty(0.0, 0.0) == intent.sampling.repetition_penalty
