"""The state of an engine as the control plane sees it."""

from __future__ import annotations

import asyncio

import pytest

from steerserve import messages as m
from steerserve.errors import Refusal
from tests.scripted_engine import Launcher, ScriptedEngine
from tests.waiting import soon, until

SAE = m.PlacedSae("a@0", m.SaeSource("/saes/a", "a"), 0)
STEERING = m.Steering(1, True, {"a@0": {3: 5.0}})
MONITORED = m.Monitored("a@0")


@pytest.fixture
async def engine() -> ScriptedEngine:
    """An engine that has an SAE attached."""
    engine = await Launcher().launch()
    made = await engine.change(lambda state: state.attached(SAE))
    assert list(made) == ["a@0"]
    assert engine.passes.applied == {"a@0": 0}
    return engine


async def test_two_changes_at_once_lose_nothing(engine: ScriptedEngine) -> None:
    gate = engine._launcher.hold("steer")
    steering = asyncio.create_task(engine.change(m.setting(steering=STEERING)))
    await soon(gate.reached.wait())
    monitoring = asyncio.create_task(engine.change(m.setting(monitored=MONITORED)))
    gate.open.set()
    await soon(asyncio.gather(steering, monitoring))
    assert engine.state == m.State((SAE,), STEERING, MONITORED)


async def test_a_change_that_is_refused_changes_nothing(engine: ScriptedEngine) -> None:
    before = engine.state
    engine._launcher.fail("steer", Refusal("INTERNAL_ERROR", "no"))
    with pytest.raises(Refusal, match="no"):
        await engine.change(m.setting(steering=STEERING))
    assert engine.state == before


@pytest.mark.parametrize("is_answered", [False, True])
async def test_a_change_whose_caller_is_cancelled_is_made(
    engine: ScriptedEngine, is_answered: bool
) -> None:
    gate = engine._launcher.hold("steer")
    steering = asyncio.create_task(engine.change(m.setting(steering=STEERING)))
    await soon(gate.reached.wait())
    if is_answered:  # in the turn of the event loop in which the caller is cancelled
        gate.open.set()
    steering.cancel()
    await asyncio.wait([steering])
    assert steering.cancelled()
    gate.open.set()
    await soon(engine.change(m.setting(monitored=MONITORED)))
    assert engine.state == m.State((SAE,), STEERING, MONITORED)


async def test_a_change_that_waits_for_another_is_dropped_with_its_caller(
    engine: ScriptedEngine,
) -> None:
    gate = engine._launcher.hold("steer")
    steering = asyncio.create_task(engine.change(m.setting(steering=STEERING)))
    await soon(gate.reached.wait())
    waiting = asyncio.create_task(engine.change(m.setting(monitored=MONITORED)))
    await until(lambda: bool(engine._changing._waiters))
    waiting.cancel()
    gate.open.set()
    await soon(steering)
    assert engine.state == m.State((SAE,), STEERING)


async def test_the_counts_of_an_sae_end_with_it(engine: ScriptedEngine) -> None:
    engine.tell(applied={"a@0": 7})
    await engine.change(m.setting(steering=STEERING))
    assert engine.passes.applied == {"a@0": 7}
    await engine.change(lambda state: state.detached("a@0"))
    assert engine.passes.applied == {}
