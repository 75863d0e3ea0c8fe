"""An owner of state in the engine registers once; a crash asks it, and so does the next load, whoever it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from steerserve.control.residency.engine_state import EngineState, Losses, Return, unchanged
from steerserve.control.residency.resident import Resident, Switch
from steerserve.errors import Refusal
from tests.control.conftest import refused
from tests.control.residency.test_restoring import keys, steered
from tests.doubles import World
from tests.waiting import soon


class Sensing(EngineState[str]):
    """A state that this project does not have, registered after all the others."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.armed = "armed"
        self.log: list[str] = []
        self.refusal: Refusal | None = None
        self.losses: Losses[str] = world.conductor.restoring.register(self)

    def lost(self, resident: Resident) -> str | None:
        self.log.append(f"lost at {resident.row.name}")
        before, self.armed = self.armed, ""
        return before or None

    @asynccontextmanager
    async def put_back(self, back: Return, loss: Callable[[], str | None]) -> AsyncIterator[Switch]:
        self.log.append(f"put back beside {[a.key for a in back.attached]}")
        if self.refusal is not None:
            raise self.refusal

        def switch() -> None:
            self.armed = loss() or self.armed

        yield switch

    @asynccontextmanager
    async def part(self, gone: Sequence[str]) -> AsyncIterator[Switch]:
        self.log.append(f"without {list(gone)}")
        yield unchanged


async def test_an_owner_that_registers_has_its_state_back_before_the_model_serves(
    world: World,
) -> None:
    sensing = Sensing(world)
    await steered(world)
    await world.crash()
    assert sensing.armed == ""
    await world.answered()
    assert sensing.armed == "armed"
    assert sensing.log == [
        "put back beside []",
        "without []",
        "lost at a",
        "without ['sae_a@1']",
        "put back beside ['sae_a@1']",
    ]
    assert not sensing.losses


async def test_what_one_owner_cannot_put_back_no_owner_puts_back(world: World) -> None:
    sensing = Sensing(world)
    await steered(world)
    await world.crash()
    sensing.refusal = Refusal("INSUFFICIENT_MEMORY", "no room")
    assert (await refused(world.ask())).code == "INSUFFICIENT_MEMORY"
    assert (sensing.armed, keys(world), world.steering.live.values) == ("", [], {})
    sensing.refusal = None
    await world.answered()
    assert (sensing.armed, keys(world)) == ("armed", ["sae_a@1"])
    assert world.steering.state() == (True, {1: 5.0})


async def test_an_edit_of_a_loss_is_what_comes_back(world: World) -> None:
    sensing = Sensing(world)
    await steered(world)
    await world.crash()
    assert sensing.losses.edit(lambda loss: loss) is False
    assert sensing.losses.edit(lambda loss: f"{loss} less") is True
    await world.answered()
    assert sensing.armed == "armed less"


@pytest.mark.parametrize("how", ["another model is loaded", "its last SAE is detached"])
async def test_what_an_operator_forgets_no_owner_puts_back(world: World, how: str) -> None:
    sensing = Sensing(world)
    await steered(world)
    other = await world.model("b")
    await world.crash()
    if how == "another model is loaded":
        await soon((await world.conductor.load(other)).ready)
    else:
        await world.attachments.detach("sae_a")
    await world.answered()
    assert sensing.armed == ""


async def test_of_what_was_not_lost_nothing_comes_back(world: World) -> None:
    sensing = Sensing(world)
    sensing.armed = ""
    await steered(world)
    await world.crash()
    await world.answered()
    assert (sensing.armed, sensing.losses.items()) == ("", [])
