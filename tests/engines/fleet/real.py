"""Fleets of real engines with the demo model, and how an answer tells under which steering it was written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from steerserve import demo
from steerserve import messages as m
from steerserve.engines.checkpoint.client import Launcher
from steerserve.engines.checkpoint.prompts import TokensGiven
from steerserve.engines.fleet.fleet import Fleet
from steerserve.messages.engine import Engine
from steerserve.rules.residency.heartbeat import Bounds
from tests import asking

FIELDS: dict[str, Any] = {
    "path": str(demo.MODEL_DIR),
    "quantization": "FP16",
    "trust_remote_code": False,
    "threads": 1,
    "kv_cache_mb": 8,
    "min_context": 16,
}
SAE = demo.saes()[0]
KEY = f"{SAE.name}@{SAE.layer}"
SOURCE = m.SaeSource(str(SAE.path), SAE.name)
PLACED = m.PlacedSae(KEY, SOURCE, SAE.layer, None, False)
PROMPT = "One morning the"
FEATURES = (0, 3, 9, 12, 18, 21, 24, 27, 30, 33, 48, 57, 60, 81, 84, 93, 105, 135, 138)
"""Features that each make the model write another token after the prompt, when they are steered with STRENGTH."""
STRENGTH = 60.0
ONE_TOKEN = m.Sampling(temperature=0.0, max_tokens=1)


@asynccontextmanager
async def serving(count: int, **more: Any) -> AsyncIterator[Fleet]:
    """A fleet that has loaded the demo model and attached its SAE."""
    launcher = Launcher("CRITICAL", "json")
    given = {
        "least": 1,
        "drain_seconds": 20.0,
        "wait_seconds": 60.0,
        "pause": lambda _: 0.0,
        **more,
    }
    fleet = Fleet(
        lambda _: launcher.launch(TokensGiven()),
        launcher.prompts(),
        count=count,
        slots=4,
        bounds=Bounds(60.0, 60.0),
        **given,
    )
    try:
        await fleet.load(lambda _: None, **FIELDS)
        await fleet.change(lambda state: state.attached(PLACED))
        yield fleet
    finally:
        await fleet.stop()


async def steer(fleet: Engine, epoch: int) -> None:
    """Steer so that answers tell the epoch."""
    feature = FEATURES[epoch % len(FEATURES)]
    await fleet.change(m.setting(steering=m.Steering(epoch, True, {KEY: {feature: STRENGTH}})))


async def answer(fleet: Engine, sampling: m.Sampling = ONE_TOKEN, text: str = PROMPT) -> str:
    """The text that the fleet writes under the live steering."""
    stream = fleet.run(asking.generate(0, [m.Text(text)], sampling, m.Follow()))
    return "".join([event.text async for event in stream if isinstance(event, m.Piece)])


async def words(fleet: Engine) -> dict[str, int]:
    """What each of the steered features makes the model write -> its place in FEATURES."""
    made: dict[str, int] = {}
    for place in range(len(FEATURES)):
        await steer(fleet, place)
        made[await answer(fleet)] = place
    assert len(made) == len(FEATURES)
    return made
