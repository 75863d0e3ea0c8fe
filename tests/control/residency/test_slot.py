"""The place for one model, and who waits behind it."""

from __future__ import annotations

from steerserve.control.residency.occupant import Occupant
from steerserve.control.residency.slot import Slot
from tests.doubles import World


async def test_who_has_gone_already_takes_the_place_from_nobody(world: World) -> None:
    row = await world.model()
    first, second, third = Occupant(row), Occupant(row), Occupant(row)
    slot = Slot()
    assert slot.enter(first) is None
    assert slot.enter(second) is first
    slot.leave(first)
    assert (slot.resident, slot.next) == (second, None)
    assert slot.enter(third) is second
    slot.leave(first)
    assert (slot.resident, slot.next) == (second, third)
    slot.leave(third)
    assert (slot.resident, slot.next) == (second, None)


async def test_who_comes_for_a_model_goes_before_who_leaves(world: World) -> None:
    a, b = Occupant(await world.model("a")), Occupant(await world.model("b"))
    slot = Slot()
    assert slot.coming(a.row.id) is None
    slot.enter(a)
    slot.enter(b)
    again = Occupant(a.row)
    assert (slot.coming(a.row.id), slot.coming(b.row.id)) == (a, b)
    slot.leave(b)
    slot.enter(again)
    assert slot.coming(a.row.id) is again
