"""Every command has its method."""

from __future__ import annotations

from typing import get_args

import pytest

from steerserve import messages as m
from steerserve.rules.inference.stepping import CudaGraphs, Decoding
from steerserve.worker.process.commands import BEGINNINGS, METHODS, Commands
from steerserve.worker.process.loading import LoadedModel
from tests import asking
from tests.refusals import refusal_of
from tests.worker.conftest import Folder


def test_every_command_has_a_method_and_every_method_a_command() -> None:
    assert set(METHODS) == set(get_args(m.Command))
    assert set(BEGINNINGS) == set(get_args(m.Goal))


@pytest.mark.parametrize(
    "command",
    [
        m.Apply(1, m.State(steering=m.Steering(1, True, {}))),
        m.Apply(1, m.State(monitored=m.Monitored("sae@0"))),
        m.ReadStatistics(1),
        asking.generate(1, [m.Tokens([1])], m.Sampling(), m.Follow()),
        asking.score(1, [m.Tokens([1])], top=5),
        asking.read(1, [m.Tokens([1])], m.Embed()),
    ],
    ids=lambda command: type(getattr(command, "goal", command)).__name__,
)
def test_a_command_that_needs_a_model_is_refused_without_one(command: m.Command) -> None:
    refusal = refusal_of(lambda: Commands(lambda _: None, lambda: None).obey(command))
    assert refusal.code == "MODEL_NOT_LOADED"


@pytest.mark.parametrize(("asked", "decoding"), [("off", "called"), ("on", "static")])
def test_the_facts_of_a_model_say_how_decode_passes_are_run(
    folder: Folder, asked: str, decoding: str
) -> None:
    sent: list[m.Event] = []
    commands = Commands(sent.append, lambda: None)
    path = str(folder("llama"))
    loaded = commands.obey(m.Load(1, path, "FP16", False, 1, 64, 16, cuda_graphs=asked))
    assert isinstance(loaded, m.Loaded)
    assert loaded.cuda_graphs is not None
    assert loaded.cuda_graphs.decoding == decoding
    assert m.decode_event(m.frame(loaded)[m.LENGTH.size :]) == loaded
    model = commands.loaded
    assert isinstance(model, LoadedModel)
    assert (model.graphs is None) is (asked == "off")
    if model.graphs is not None:
        state = CudaGraphs(Decoding.CALLED, "broken")
        model.graphs.on_change(state)
        assert sent[-1] == m.GraphsChanged(state)


def test_an_engine_without_a_model_comes_into_the_empty_state_and_has_nothing_to_cancel() -> None:
    commands = Commands(lambda _: None, lambda: None)
    assert commands.obey(m.Apply(1, m.State())) == m.Applied(1, {})
    assert commands.obey(m.Cancel(2)) is None
    assert commands.obey(m.Measure(3)) == m.Measured(3, {})
