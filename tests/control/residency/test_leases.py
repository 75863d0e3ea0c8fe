"""Leases of the resident model: what they stand against, who lifts them, and every way in which they end."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from steerserve import messages as m
from steerserve.control.residency import leases as leases_module
from steerserve.control.residency.events import LeaseChanged
from steerserve.database.catalog import ModelRow
from steerserve.errors import Refusal
from steerserve.files import local
from steerserve.logs.setup import lease_ref
from steerserve.rules.residency.lease import Terms, digest_of
from tests import asking
from tests.control.conftest import Make, refused
from tests.doubles import World
from tests.refusals import refusal_of
from tests.waiting import PATIENCE, plain, soon, until

TERMS = Terms("nightly", "evaluation", 60)
WRONG = "lease_of_somebody_else"


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def world(make: Make, clock: Clock) -> AsyncIterator[World]:
    async with make(now=clock) as made:
        yield made


class Said:
    """A log that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def info(self, event: str, **values: Any) -> None:
        self.lines.append(("info", event, values))

    def warning(self, event: str, **values: Any) -> None:
        self.lines.append(("warning", event, values))

    def told(self, event: str) -> list[dict[str, Any]]:
        return [values for _, name, values in self.lines if name == event]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    log = Said()
    monkeypatch.setattr(leases_module, "log", log)
    return log


async def leased(world: World, name: str = "a") -> tuple[ModelRow, str]:
    """A resident model that is leased, and the lease's id."""
    row = await world.loaded(name)
    return row, world.conductor.lease(row, TERMS).lease_id


async def ask(world: World, model: str, lease: str | None = None, *, may_load: bool = True) -> str:
    asked = asking.to_write(lease=lease, may_load=may_load)
    async with world.opened(asked, model) as run:
        return "".join([e.text async for e in run.events if isinstance(e, m.Piece)])


async def served(world: World, model: str, lease: str | None = None) -> None:
    asked = world.begin(ask(world, model, lease))
    (await world.launcher.stream()).complete("served")
    assert await soon(asked) == "served"


def end_reason(world: World, row: ModelRow) -> str | None:
    ended = world.conductor.leases.last_ended(row.id)
    return ended.end_reason if ended is not None else None


def granting(world: World, row: ModelRow) -> Refusal:
    return refusal_of(world.conductor.lease, row, TERMS)


# ---------------------------------------------------------------------- granting


@pytest.mark.shows("queue-block.16")
async def test_a_granted_lease_is_told_without_its_id(world: World) -> None:
    row, lease_id = await leased(world)
    status = world.conductor.leases.status()
    assert plain(status) == {
        "model_id": row.id,
        "model_name": "a",
        "holder": "nightly",
        "reason": "evaluation",
        "acquired_at": "2026-03-01T12:00:00Z",
        "renewed_at": None,
        "expires_at": "2026-03-01T12:01:00Z",
        "ttl_seconds": 60,
        "seconds_remaining": 60,
    }
    assert (await world.vitals.detailed()).lease == status
    assert world.conductor.leases.status(row.id) == status
    assert world.conductor.leases.status(row.id + 1) is None
    assert lease_id.startswith("lease_")


@pytest.mark.shows("models.31", "models.37", "states.16")
async def test_only_the_resident_loaded_model_is_leased(world: World) -> None:
    row, other = await world.model("a"), await world.model("b")
    assert granting(world, row).code == "MODEL_NOT_RESIDENT"
    resident, gate = await world.reaching("load", world.conductor.load(row))
    assert granting(world, row).code == "MODEL_BUSY"
    gate.open.set()
    await soon(resident.ready)
    refusal = granting(world, other)
    assert (refusal.code, refusal.details["resident_model"]) == ("MODEL_NOT_RESIDENT", "a")
    holder, stream = await world.in_flight("a")
    unloading = await world.unloading(world.conductor.unload(row.id))
    refusal = granting(world, row)
    assert (refusal.code, refusal.details["unloading"]) == ("MODEL_BUSY", True)
    stream.complete()
    await soon(holder)
    await soon(unloading)


# ---------------------------------------------------------------------- what it stands against


async def test_a_lease_blocks_swaps_and_not_use(world: World) -> None:
    row, _ = await leased(world)
    other = await world.model("b")
    await served(world, "a")
    refusal = await refused(ask(world, "b"))
    assert (refusal.code, refusal.details["operation"]) == ("MODEL_LEASED", "swap")
    assert refusal.details["target_model_id"] == other.id
    for lease in (None, WRONG):
        for work, operation in (
            (world.conductor.load(other, lease), "load"),
            (world.conductor.unload(row.id, lease), "unload"),
        ):
            refusal = await refused(work)
            assert (refusal.code, refusal.details["operation"]) == ("MODEL_LEASED", operation)
        assert (await refused(ask(world, "b", lease))).code == "MODEL_LEASED"
    assert world.launcher.log.count("stop") == 0
    assert world.resident.row.id == row.id
    await served(world, "a")


@pytest.mark.parametrize("way", ["unload", "load", "swap"])
async def test_the_holder_may_unload_the_model_and_the_lease_ends(world: World, way: str) -> None:
    row, lease_id = await leased(world)
    other = await world.model("b")
    if way == "unload":
        await soon(world.conductor.unload(row.id, lease_id))
    elif way == "load":
        await soon((await world.conductor.load(other, lease_id)).ready)
    else:
        await served(world, "b", lease_id)
    assert end_reason(world, row) == "model_unloaded"
    assert world.conductor.leases.status() is None
    refusal = refusal_of(world.conductor.leases.renew, row.id, lease_id, 60)
    assert refusal.details["end_reason"] == "model_unloaded"


async def test_while_the_holders_swap_waits_the_lease_lives_and_newcomers_are_busy(
    world: World,
) -> None:
    row, lease_id = await leased(world)
    await world.model("b")
    holder, stream = await world.in_flight("a")
    swapping = await world.unloading(ask(world, "b", lease_id))
    assert world.conductor.leases.status(row.id) is not None
    assert (await refused(ask(world, "a", lease_id))).code == "MODEL_BUSY"
    stream.complete()
    await soon(holder)
    (await world.launcher.stream()).complete("served")
    assert await soon(swapping) == "served"
    assert world.conductor.leases.status() is None


async def test_a_lease_taken_while_a_load_is_being_checked_stands_against_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = await world.loaded("a")
    other = await world.model("b")
    read, go_on = local.read_model, threading.Event()
    checking: list[Path] = []

    def held(path: Path) -> local.ModelFolder:
        checking.append(path)
        assert go_on.wait(PATIENCE)
        return read(path)

    monkeypatch.setattr(local, "read_model", held)
    asked = [world.begin(ask(world, "b")), world.begin(world.conductor.load(other))]
    await until(lambda: len(checking) == 2)
    world.conductor.lease(row, TERMS)
    go_on.set()
    for work in asked:
        assert (await refused(work)).code == "MODEL_LEASED"
    assert world.resident.row.name == "a"


# ---------------------------------------------------------------------- how it ends


@pytest.mark.shows("lease-record.9", "states.19", "model-errors.11")
async def test_a_lease_expires_when_somebody_looks_after_its_time(
    world: World, clock: Clock, said: Said
) -> None:
    row, lease_id = await leased(world)
    await world.model("b")
    clock.pass_(59.5)
    status = world.conductor.leases.status()
    assert status is not None
    assert status.seconds_remaining == 1
    assert (await refused(ask(world, "b"))).code == "MODEL_LEASED"
    clock.pass_(0.5)
    assert said.told("lease_ended") == []
    assert (await world.vitals.detailed()).lease is None
    assert end_reason(world, row) == "expired"
    await served(world, "b")
    refusal = refusal_of(world.conductor.leases.release, row.id, lease_id)
    assert refusal.details["end_reason"] == "expired"
    assert [line["end_reason"] for line in said.told("lease_ended")] == ["expired"]


class SetClock(Clock):
    """A clock whose time of day can be set while the seconds pass."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0.0

    def seconds(self) -> float:
        return self.passed

    def pass_(self, seconds: float) -> None:
        super().pass_(seconds)
        self.passed += seconds


@pytest.mark.parametrize("hours", [-30_000, 1])
async def test_a_lease_lasts_its_seconds_when_somebody_sets_the_clock(
    make: Make, said: Said, hours: int
) -> None:
    clock = SetClock()
    async with make(now=clock, seconds=clock.seconds) as world:
        row, lease_id = await leased(world)
        clock.pass_(20)
        clock.now += timedelta(hours=hours)
        status = world.conductor.leases.status()
        assert status is not None
        assert status.seconds_remaining == 40
        assert status.expires_at == clock.now + timedelta(seconds=40)
        assert status.acquired_at == clock.now - timedelta(seconds=20)
        assert said.told("clock_set") == [{"seconds": hours * 3600.0}]
        renewed = world.conductor.leases.renew(row.id, lease_id, 30)
        assert renewed.expires_at == clock.now + timedelta(seconds=30)
        clock.now -= timedelta(hours=hours)
        clock.pass_(29.5)
        assert world.conductor.leases.status() is not None
        clock.pass_(0.5)
        assert world.conductor.leases.status() is None
        ended = world.conductor.leases.last_ended(row.id)
        assert ended is not None
        assert (ended.end_reason, ended.ended_at) == ("expired", clock.now)
        clock.now += timedelta(hours=hours)
        assert world.conductor.leases.last_ended(row.id).ended_at == clock.now


async def test_small_corrections_of_the_clock_move_no_lease(make: Make, said: Said) -> None:
    clock = SetClock()
    async with make(now=clock, seconds=clock.seconds) as world:
        row, _ = await leased(world)
        expires_at = world.conductor.leases.status().expires_at
        clock.now += timedelta(seconds=0.4)
        assert world.conductor.leases.status(row.id).expires_at == expires_at
        assert said.told("clock_set") == []


@pytest.mark.shows("states.20")
async def test_a_lease_of_a_model_whose_engine_dies_ends(world: World) -> None:
    row, _ = await leased(world)
    await world.crash()
    assert end_reason(world, row) == "model_unloaded"
    await served(world, "a")
    assert world.conductor.leases.status() is None


async def test_a_holders_swap_whose_load_fails_has_ended_the_lease(world: World) -> None:
    row, lease_id = await leased(world)
    await world.model("b")
    world.launcher.fail("load", Refusal("INSUFFICIENT_MEMORY", "the weights do not fit"))
    assert (await refused(ask(world, "b", lease_id))).code == "MODEL_LOAD_FAILED"
    assert end_reason(world, row) == "model_unloaded"


async def test_a_holders_swap_that_is_refused_beforehand_keeps_the_lease(world: World) -> None:
    row, lease_id = await leased(world)
    await world.model("b", quantization="Q2")
    assert (await refused(ask(world, "b", lease_id))).code == "UNSUPPORTED_QUANTIZATION"
    assert world.conductor.leases.status(row.id) is not None


@pytest.mark.shows("lease-record.9", "states.21", "model-errors.11")
async def test_a_stop_of_the_service_ends_the_lease(world: World) -> None:
    row, lease_id = await leased(world)
    await soon(world.conductor.close())
    assert end_reason(world, row) == "restart"
    refusal = refusal_of(world.conductor.leases.renew, row.id, lease_id, 60)
    assert refusal.details["end_reason"] == "restart"


@pytest.mark.shows("states.21", "model-errors.10")
async def test_a_restart_forgets_every_lease(make: Make) -> None:
    async with make() as first:
        row, lease_id = await leased(first)
    async with make() as second:
        assert second.conductor.leases.last_ended(row.id) is None
        refusal = refusal_of(second.conductor.leases.renew, row.id, lease_id, 60)
        assert refusal.code == "LEASE_NOT_FOUND"


async def test_ended_leases_are_remembered_up_to_the_setting(make: Make) -> None:
    async with make(lease_ended_memory=2) as world:
        row = await world.loaded()
        ids = [world.conductor.lease(row, TERMS).lease_id]
        for _ in range(3):
            world.conductor.leases.release(row.id, ids[-1])
            ids.append(world.conductor.lease(row, TERMS).lease_id)
        codes = []
        for lease_id in ids[:3]:
            refusal = refusal_of(world.conductor.leases.release, row.id, lease_id)
            codes.append(refusal.code)
        assert codes == ["LEASE_NOT_FOUND", "LEASE_EXPIRED", "LEASE_EXPIRED"]


# ---------------------------------------------------------------------- the log


@pytest.mark.shows("lease-record.10", "models.24")
async def test_a_wrong_id_that_was_not_needed_is_ignored_and_logged_by_its_reference(
    world: World, said: Said
) -> None:
    row = await world.model("a")
    other = await world.model("b")
    ref = {"lease_ref": lease_ref(digest_of(WRONG))}
    await served(world, "a", WRONG)
    await soon((await world.conductor.load(other, WRONG)).ready)
    await soon(world.conductor.unload(other.id, WRONG))
    assert said.lines == [("warning", "lease_id_ignored", ref)] * 3
    assert len(ref["lease_ref"]) == 8
    said.lines.clear()
    await soon((await world.conductor.load(row)).ready)
    lease_id = world.conductor.lease(row, TERMS).lease_id
    await served(world, "a", lease_id)
    await served(world, "a")
    assert said.told("lease_id_ignored") == []
    await served(world, "a", WRONG)
    assert said.told("lease_id_ignored") == [ref]


async def test_a_wrong_id_that_was_needed_is_refused_and_not_called_ignored(
    world: World, said: Said
) -> None:
    await leased(world)
    await world.model("b")
    assert (await refused(ask(world, "b", WRONG))).code == "MODEL_LEASED"
    assert said.told("lease_id_ignored") == []


@pytest.mark.shows("lease-record.10")
async def test_the_log_names_a_lease_by_its_reference_only(world: World, said: Said) -> None:
    row, lease_id = await leased(world)
    world.conductor.leases.renew(row.id, lease_id, 30)
    world.conductor.leases.release(row.id, lease_id)
    assert [event for _, event, _ in said.lines] == [
        "lease_granted",
        "lease_renewed",
        "lease_ended",
    ]
    refs = {values["lease_ref"] for _, _, values in said.lines}
    assert refs == {lease_ref(digest_of(lease_id))}
    assert refs.pop() not in lease_id
    assert lease_id not in str(said.lines)


async def test_every_change_of_a_lease_but_its_end_with_the_service_is_published(
    world: World, clock: Clock
) -> None:
    row, lease_id = await leased(world)
    seen = [len(world.published(LeaseChanged))]
    world.conductor.leases.renew(row.id, lease_id, 120)
    seen.append(len(world.published(LeaseChanged)))
    world.conductor.leases.release(row.id, lease_id)
    seen.append(len(world.published(LeaseChanged)))
    world.conductor.lease(row, TERMS)
    clock.pass_(61)
    world.conductor.leases.live()
    world.conductor.leases.live()
    seen.append(len(world.published(LeaseChanged)))
    world.conductor.lease(row, TERMS)
    world.conductor.leases.restart()
    seen.append(len(world.published(LeaseChanged)))
    assert seen == [1, 2, 3, 5, 6]
    assert {event.model_id for event in world.published(LeaseChanged)} == {row.id}
