"""The state of an engine as the control plane sees it."""

from __future__ import annotations

import asyncio

import pytest

from steerserve import messages as m
from steerserve.errors import Refusal
from tests.doubles import Launcher, ScriptedEngine, soon

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


async def test_a_change_that_is_refused_or_given_up_changes_nothing(engine: ScriptedEngine) -> None:
    before = engine.state
    engine._launcher.fail("steer", Refusal("INTERNAL_ERROR", "no"))
    with pytest.raises(Refusal, match="no"):
        await engine.change(m.setting(steering=STEERING))
    assert engine.state == before
    gate = engine._launcher.hold("steer")
    steering = asyncio.create_task(engine.change(m.setting(steering=STEERING)))
    await soon(gate.reached.wait())
    steering.cancel()
    await asyncio.wait([steering])
    await soon(engine.change(m.setting(monitored=MONITORED)))
    assert engine.state == m.State((SAE,), monitored=MONITORED)


async def test_the_counts_of_an_sae_end_with_it(engine: ScriptedEngine) -> None:
    engine.tell(applied={"a@0": 7})
    await engine.change(m.setting(steering=STEERING))
    assert engine.passes.applied == {"a@0": 7}
    await engine.change(lambda state: state.detached("a@0"))
    assert engine.passes.applied == {}
