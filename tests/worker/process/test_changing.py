"""An engine process comes from one state to another, wholly or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from steerserve import messages as m
from steerserve.rules.residency.heartbeat import Activity
from steerserve.worker.process.commands import Commands
from steerserve.worker.process.loading import LoadedModel
from steerserve.worker.rows.steering import RowSteering
from tests.refusals import refusal_of
from tests.worker.conftest import Folder
from tests.worker.saes import arrays, config_v6, source, write

KEYS = ("one@0", "two@1")
CLUSTER = m.ArmedCluster("c", "C", "two@1", [m.ClusterMember(1, 0.0)], 1, 20, 16)
CIRCUIT = m.ArmedCircuit("d", "D", [m.CircuitFeature("one@0", 0, 3, 1.0)], [], 8, 20, 16)


@pytest.fixture
def commands(folder: Folder) -> Commands:
    """An engine that holds the llama checkpoint."""
    commands = Commands(lambda _: None, lambda: None)
    commands.obey(m.Load(1, str(folder("llama")), "FP16", False, 1, 8, 16))
    return commands


@pytest.fixture
def full(tmp_path: Path) -> m.State:
    """A state with all parts."""
    saes = []
    for layer, key in enumerate(KEYS):
        path = write(tmp_path / key, config_v6("standard", d_in=32), arrays("standard", d_in=32))
        saes.append(m.PlacedSae(key, source(path), layer, check=False))
    steering = m.Steering(3, True, {"one@0": {1: 5.0}})
    return m.State(tuple(saes), steering, m.Monitored("one@0"), CLUSTER, (CIRCUIT,))


def loaded(commands: Commands) -> LoadedModel:
    assert isinstance(commands.loaded, LoadedModel)
    return commands.loaded


def hooks(commands: Commands) -> int:
    return sum(len(module._forward_hooks) for module in loaded(commands).model.model.modules())


def held(commands: Commands) -> tuple[object, ...]:
    """What shapes the passes of the engine."""
    model = loaded(commands)
    target = model.monitor._target
    return (
        hooks(commands),
        model.saes.numbers,
        model.saes.signature(RowSteering(m.Follow()), 1),
        target and (target.key, target.number),
        model.sensing._cluster,
        tuple(model.sensing._circuits),
    )


def apply(commands: Commands, state: m.State) -> dict[str, m.Attached]:
    answer = commands.obey(m.Apply(2, state))
    assert isinstance(answer, m.Applied)
    return answer.facts


def test_one_command_brings_all_parts_and_takes_them_away(
    commands: Commands, full: m.State
) -> None:
    nothing = held(commands)
    assert list(apply(commands, full)) == list(KEYS)
    assert hooks(commands) == 2
    assert list(loaded(commands).saes.applied) == list(KEYS)
    assert held(commands)[3:] == (("one@0", 1), CLUSTER, (CIRCUIT,))
    assert list(apply(commands, full)) == list(KEYS)
    left = full.detached("one@0")
    assert list(apply(commands, left)) == ["two@1"]
    assert hooks(commands) == 1
    assert held(commands)[3:] == (None, CLUSTER, ())
    assert apply(commands, m.State()) == {}
    assert held(commands) == nothing


def test_a_refusal_leaves_the_engine_as_it_was(commands: Commands, full: m.State) -> None:
    one, two = full.saes
    begun = m.State((one,), full.steering, m.Monitored("one@0"), circuits=(CIRCUIT,))
    apply(commands, begun)
    before = held(commands)
    damaged = structs.replace(two, key="three@1", source=source("/nowhere"))
    member = m.ClusterMember(10_000, 0.0)
    for state, code in (
        (m.State((two, damaged)), "SAE_LOAD_FAILED"),
        (m.State((structs.replace(one, layer=1),)), "SAE_ALREADY_ATTACHED"),
        (m.State((two,), monitored=m.Monitored("two@1", [10_000])), "INVALID_FEATURE_INDEX"),
        (m.State((two,), monitored=m.Monitored("three@2")), "SAE_NOT_ATTACHED"),
        (
            m.State((two,), cluster=structs.replace(CLUSTER, members=[member])),
            "INVALID_FEATURE_INDEX",
        ),
    ):
        assert refusal_of(apply, commands, state).code == code
        assert held(commands) == before
        assert commands.state == begun
    assert list(apply(commands, full)) == list(KEYS)


def test_only_a_command_that_attaches_has_the_time_of_an_attach(
    commands: Commands, full: m.State
) -> None:
    attaching = m.Apply(2, full)
    assert commands.activity(attaching) is Activity.SAE
    commands.obey(attaching)
    assert commands.activity(attaching) is Activity.COMMAND
    assert commands.activity(m.Apply(3, m.State())) is Activity.COMMAND
