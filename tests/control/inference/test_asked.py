"""What a client asks for, and which requests run without a slot where continuous batching is enabled."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from msgspec import structs

from steerserve import messages as m
from steerserve.control.inference.asked import (
    BATCHED,
    SERIAL,
    Asked,
    AskedSteering,
    Fixed,
    choose_backend,
)
from steerserve.nouns.runs.rules import Run
from steerserve.parts.activations.form import Activations
from steerserve.parts.response_format.form import AskedFormat
from steerserve.parts.steering_report.form import PlannedReport
from steerserve.rules.inference.prompts import repetition_penalty
from steerserve.rules.steering.request import RequestSteering, SteeredFeature
from tests import asking, recorded

FIXED = Fixed(temperature=0.7, top_p=0.95)
SAMPLING = m.Sampling(temperature=0.7, top_p=0.95)
PLAIN = asking.to_write("a", sampling=SAMPLING)
RUN = msgspec.convert(recorded.RUN, Run)
CHAT = m.Chat([{"role": "user", "content": "hi"}])
SCORED = Asked(request=m.Request(goal=m.Score(temperature=0.7), prompts=[m.Text("a")]))
EMBEDDED = Asked(request=m.Request(goal=m.Embed(), prompts=[m.Text("a")]))


def sampled(**changes: object) -> Asked:
    return PLAIN.with_goal(sampling=structs.replace(SAMPLING, **changes))


def steered(**fields: object) -> Asked:
    return replace(PLAIN, steering=AskedSteering(**fields))  # type: ignore[arg-type]


def prompted(*prompts: m.Prompt) -> Asked:
    return replace(PLAIN, request=structs.replace(PLAIN.request, prompts=prompts))


FIXED_SAMPLING = {
    "a text": PLAIN,
    "a stream": replace(PLAIN, is_stream=True),
    "several prompts": prompted(m.Text("a"), m.Text("b")),
    "several conversations": prompted(CHAT, CHAT),
    "without special tokens": prompted(m.Text("a", special=False)),
    "with headers": replace(PLAIN, may_load=False, lease="x", ignored=("user",)),
    "a length": sampled(max_tokens=5),
    "stop strings": sampled(stops=["x"]),
    "a report of the steering": replace(PLAIN, parts={"steering_report": PlannedReport()}),
}


@pytest.mark.parametrize("kind", FIXED_SAMPLING)
def test_a_request_of_the_fixed_sampling_parameters_runs_without_a_slot(kind: str) -> None:
    assert choose_backend(FIXED_SAMPLING[kind], FIXED) == BATCHED


DEPARTURES = {
    "greedy": sampled(temperature=0.0),
    "another temperature": sampled(temperature=0.7000001),
    "the protocol's temperature": sampled(temperature=1.0),
    "another top_p": sampled(top_p=1.0),
    "top_p 0": sampled(top_p=0.0),
    "a frequency penalty": sampled(repetition_penalty=repetition_penalty(0.1, 0)),
    "a presence penalty": sampled(repetition_penalty=repetition_penalty(0, 0.1)),
    "a negative penalty": sampled(repetition_penalty=repetition_penalty(-2, 0)),
    "a seed": sampled(seed=7),
    "the seed 0": sampled(seed=0),
    "two choices": PLAIN.with_goal(n=2),
    "a profile": steered(profile="calm"),
    "an intensity": steered(intensity=1.0),
    "steering off": steered(intensity=0.0),
    "an intensity by word": steered(intensity="max"),
    "steering of its own": steered(own=RequestSteering((SteeredFeature(4, 2.0),))),
    "activations": replace(PLAIN, parts={"activations": Activations()}),
    "a response format": replace(PLAIN, parts={"response_format": AskedFormat()}),
    "readings of probes": replace(PLAIN, parts={"readings": ("calm",)}),
    "a recorded answer made again": steered(replayed=RUN),
}


@pytest.mark.shows("request-activations.11", "continuous-batching.1")
@pytest.mark.parametrize("kind", DEPARTURES)
def test_each_departure_alone_takes_a_slot(kind: str) -> None:
    assert choose_backend(DEPARTURES[kind], FIXED) == SERIAL


@pytest.mark.parametrize("asked", [SCORED, EMBEDDED])
def test_scoring_and_embeddings_take_a_slot(asked: Asked) -> None:
    assert choose_backend(asked, FIXED) == SERIAL


@pytest.mark.parametrize("asked", [PLAIN, SCORED, EMBEDDED])
def test_everything_takes_a_slot_where_continuous_batching_is_off(asked: Asked) -> None:
    assert choose_backend(asked, None) == SERIAL


def test_the_fixed_parameters_are_the_servers_not_the_protocols() -> None:
    greedy = Fixed(temperature=0.0, top_p=1.0)
    assert choose_backend(asking.to_write(sampling=m.Sampling(temperature=0)), greedy) == BATCHED
    assert choose_backend(asking.to_write(), greedy) == SERIAL


def test_the_backends_are_called_as_the_header_says_them() -> None:
    assert (SERIAL, BATCHED) == ("serial", "cbm")


def test_each_prompt_has_its_choices() -> None:
    assert asking.to_write("a", "b", "c", n=2).choices == 6
    assert SCORED.choices == EMBEDDED.choices == 1


def test_writing_and_scoring_requests_tell_their_seed_alike() -> None:
    assert sampled(seed=0).seed == replace(SCORED, scored_seed=0).seed == 0
    assert PLAIN.seed is SCORED.seed is None


@pytest.mark.parametrize("asked", [PLAIN, SCORED, EMBEDDED])
def test_the_lease_is_never_shown(asked: Asked) -> None:
    assert "secret" not in repr(replace(asked, lease="the-secret"))
