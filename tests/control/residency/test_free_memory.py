"""What can still be taken on the devices of the resident model."""

from __future__ import annotations

import psutil
import pytest
from msgspec.structs import replace

from steerserve.control.residency import free_memory
from steerserve.errors import Refusal
from steerserve.rules.residency.gpus import Card
from steerserve.rules.units import MIB
from tests.doubles import World
from tests.scripted_answers import FACTS
from tests.waiting import soon


def card(torch_index: int | None, free_mb: int) -> Card:
    return Card(0, f"GPU-{torch_index}", "a card", 1000, 1000 - free_mb, free_mb, torch_index)


async def on_cards(world: World, *labels: str) -> None:
    """The model lies on these cards; the engine keeps 30 MiB of 50 on the first without using them."""
    await world.loaded()
    world.resident.facts = replace(FACTS, memory_by_device_mb=dict.fromkeys(labels, 7))
    world.launcher.engine.figures = {"cuda:0": (20 * MIB, 50 * MIB)}


async def test_on_the_host_it_is_what_the_system_has(world: World) -> None:
    await world.loaded()
    free = await soon(free_memory.read(world.resident))
    assert free == pytest.approx(psutil.virtual_memory().available / MIB, rel=0.5)


@pytest.mark.parametrize(
    ("labels", "cards", "free"),
    [
        (["cuda:0"], [card(0, 100), card(1, 400)], 130),
        (["cuda:0", "cuda:1"], [card(0, 100), card(1, 400)], 530),
        # a card that the driver does not tell of
        (["cuda:0", "cuda:1"], [card(0, 100)], None),
        (["cuda:0"], [card(None, 100)], None),
        (["cuda:0"], [], None),
    ],
)
async def test_on_cards_it_is_what_they_have_and_what_the_engine_does_not_use(
    world: World, labels: list[str], cards: list[Card], free: int | None
) -> None:
    await on_cards(world, *labels)
    assert await soon(free_memory.read(world.resident, lambda: (cards, None))) == free


async def test_a_driver_or_an_engine_that_does_not_tell_leaves_it_unknown(world: World) -> None:
    await on_cards(world, "cuda:0")

    def fail() -> tuple[list[Card], str | None]:
        raise OSError("no driver")

    assert await soon(free_memory.read(world.resident, fail)) is None
    world.launcher.fail("measure", Refusal("ENGINE_UNAVAILABLE", "it ended"))
    assert await soon(free_memory.read(world.resident, lambda: ([card(0, 9)], None))) is None
