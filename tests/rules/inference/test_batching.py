"""Which requests run without a slot where continuous batching is enabled."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from steerserve.rules.inference import batching
from steerserve.rules.inference.activations import Activations
from steerserve.rules.inference.batching import BATCHED, SERIAL, Fixed
from steerserve.rules.inference.intent import (
    EmbedIntent,
    GenerateIntent,
    Intent,
    OutputConstraint,
    SamplingParameters,
    ScoreIntent,
    WrittenLogprobs,
    repetition_penalty,
)
from steerserve.rules.inference.runs import Run
from steerserve.rules.steering.request import RequestSteering, SteeredFeature
from tests import recorded

FIXED = Fixed(temperature=0.7, top_p=0.95)
SAMPLING = SamplingParameters(temperature=0.7, top_p=0.95)
PLAIN = GenerateIntent(("a",), SAMPLING)
RUN = msgspec.convert(recorded.RUN, Run)
CONVERSATION = ({"role": "user", "content": "hi"},)


def sampled(**changes: object) -> GenerateIntent:
    return replace(PLAIN, sampling=replace(SAMPLING, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "intent",
    [
        PLAIN,
        replace(PLAIN, is_stream=True),
        replace(PLAIN, prompts=("a", "b")),
        replace(PLAIN, prompts=(CONVERSATION, CONVERSATION)),
        replace(PLAIN, has_special=False),
        replace(PLAIN, may_load=False, lease="x", ignored=("user",)),
        sampled(max_tokens=5),
        sampled(stops=("x",)),
    ],
    ids=[
        "a text",
        "a stream",
        "several prompts",
        "several conversations",
        "without special tokens",
        "with headers",
        "a length",
        "stop strings",
    ],
)
def test_a_request_of_the_fixed_sampling_parameters_runs_without_a_slot(
    intent: GenerateIntent,
) -> None:
    assert batching.backend(intent, FIXED) == BATCHED


@pytest.mark.shows("request-activations.11", "continuous-batching.1")
@pytest.mark.parametrize(
    "intent",
    [
        sampled(temperature=0.0),
        sampled(temperature=0.7000001),
        sampled(temperature=1.0),
        sampled(top_p=1.0),
        sampled(top_p=0.0),
        sampled(repetition_penalty=repetition_penalty(0.1, 0)),
        sampled(repetition_penalty=repetition_penalty(0, 0.1)),
        sampled(repetition_penalty=repetition_penalty(-2, 0)),
        sampled(seed=7),
        sampled(seed=0),
        replace(PLAIN, n=2),
        replace(PLAIN, profile="calm"),
        replace(PLAIN, intensity=1.0),
        replace(PLAIN, intensity=0.0),
        replace(PLAIN, intensity="max"),
        replace(PLAIN, steering=RequestSteering((SteeredFeature(4, 2.0),))),
        replace(PLAIN, activations=Activations()),
        replace(PLAIN, constraint=OutputConstraint()),
        replace(PLAIN, logprobs=WrittenLogprobs(1, True, False)),
        replace(PLAIN, readings=("calm",)),
        replace(PLAIN, replayed=RUN),
    ],
    ids=[
        "greedy",
        "another temperature",
        "the protocol's temperature",
        "another top_p",
        "top_p 0",
        "a frequency penalty",
        "a presence penalty",
        "a negative penalty",
        "a seed",
        "the seed 0",
        "two choices",
        "a profile",
        "an intensity",
        "steering off",
        "an intensity by word",
        "steering of its own",
        "activations",
        "a response format",
        "log-probabilities of its tokens",
        "readings of probes",
        "a recorded answer made again",
    ],
)
def test_each_departure_alone_takes_a_slot(intent: GenerateIntent) -> None:
    assert batching.backend(intent, FIXED) == SERIAL


@pytest.mark.parametrize("intent", [ScoreIntent(("a",), 0.7), EmbedIntent(("a",))])
def test_scoring_and_embeddings_take_a_slot(intent: Intent) -> None:
    assert batching.backend(intent, FIXED) == SERIAL


@pytest.mark.parametrize("intent", [PLAIN, ScoreIntent(("a",), 0.7), EmbedIntent(("a",))])
def test_everything_takes_a_slot_where_continuous_batching_is_off(intent: Intent) -> None:
    assert batching.backend(intent, None) == SERIAL


def test_the_fixed_parameters_are_the_servers_not_the_protocols() -> None:
    greedy = Fixed(temperature=0.0, top_p=1.0)
    assert (
        batching.backend(GenerateIntent(("a",), SamplingParameters(temperature=0)), greedy)
        == BATCHED
    )
    assert batching.backend(GenerateIntent(("a",), SamplingParameters()), greedy) == SERIAL


def test_the_backends_are_called_as_the_header_says_them() -> None:
    assert (SERIAL, BATCHED) == ("serial", "cbm")
