"""A client that leaves at any await of a load, an edit of the attachments or a line of a batch leaves the slot as the
engine is: nothing hangs, and the next request is served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from steerserve.app import routes
from steerserve.control.inference.batch_run import LineRunner
from steerserve.database.catalog import ModelRow
from steerserve.rules.residency.swap import Phase
from tests import doubles
from tests.doubles import World
from tests.net.rows.cutting import Cut
from tests.waiting import soon, turns, until

pytestmark = pytest.mark.slow

LATE_STEP = 3
"""Of how many suspensions one is cut late."""

MOST = 400
"""More suspensions than any of these has."""


@dataclass(frozen=True)
class Slot:
    """A control plane with two models and two SAEs, and who runs the lines of its batches."""

    world: World
    models: dict[str, ModelRow]
    runner: LineRunner

    def check_consistent(self) -> None:
        """Check that the slot, the engine and the queue tell the same."""
        resident, alive = self.world.conductor.resident, self.world.launcher.alive
        assert alive == ([resident.engine] if resident is not None else [])
        attached = [attachment.key for attachment in self.world.conductor.attachments()]
        assert attached == (alive[0].state.keys if alive else [])
        assert not self.world.conductor.editing.locked()
        counts = self.world.queue.counts()
        assert (counts.pending, counts.holding) == (0, 0)
        if resident is not None:
            assert resident.phase is Phase.LOADED
            assert resident.is_locked is bool(attached)
            assert resident.users == resident.in_flight == 0

    async def check_told(self) -> None:
        """Check that health and the records tell what the slot is."""
        resident, attached = self.world.conductor.resident, self.world.conductor.attachments()
        told = await self.world.vitals.readiness()
        assert (told.model_loaded, told.sae_attached) == (resident is not None, bool(attached))
        for name, row in self.models.items():
            is_loaded = resident is not None and resident.row.id == row.id
            assert await self.world.status(row) == ("loaded" if is_loaded else "ready", None), name
        for row in await self.world.catalog.saes():
            is_attached = any(one.sae_id == row.id for one in attached)
            assert row.status == ("attached" if is_attached else "cached")

    async def reset(self, case: Case) -> None:
        """Come into the state in which a client asks."""
        for attachment in self.world.conductor.attachments():
            await soon(self.world.attachments.detach(attachment.sae_id))
        resident = self.world.conductor.resident
        if resident is not None and resident.row.name != case.model:
            await soon(self.world.conductor.unload(resident.row.id))
        if case.model is not None and self.world.conductor.resident is None:
            await soon((await self.world.conductor.load(self.models[case.model])).ready)
        if case.attached:
            await soon(self.world.attachments.attach_set([(name, 1) for name in case.attached]))


Work = Callable[[Slot], Coroutine[Any, Any, Any]]


@dataclass(frozen=True)
class Case:
    """What a client asks for, and the state in which it does: the model that is loaded, what is attached, and whether a
    request is in flight. `least` is the number of suspensions that there are at least."""

    work: Work
    model: str | None = "a"
    attached: tuple[str, ...] = ()
    has_request: bool = False
    least: int = 1


# ---------------------------------------------------------------- what a client asks for


def load(name: str) -> Work:
    """The load of a model, to its end."""

    async def work(slot: Slot) -> None:
        coming = await slot.world.conductor.load(slot.models[name])
        await asyncio.shield(coming.ready)

    return work


def ask(name: str) -> Work:
    """A request to a model, which is loaded if it has to be."""
    return lambda slot: slot.world.ask(name)


async def unload(slot: Slot) -> None:
    await slot.world.conductor.unload(slot.world.resident.row.id)


async def attach(slot: Slot) -> None:
    await slot.world.attachments.attach(await slot.world.catalog.sae("one"), 1)


async def attach_set(slot: Slot) -> None:
    await slot.world.attachments.attach_set([("one", 1), ("two", 1)])


async def detach(slot: Slot) -> None:
    await slot.world.attachments.detach("one")


async def line(slot: Slot) -> None:
    """A line of a batch, as the batch runs it."""
    body = {"model": "a", "prompt": "hello", "max_tokens": 3}
    answered = await slot.runner.answer(
        "/v1/completions", json.dumps(body).encode(), "c", is_strict=None
    )
    assert answered.status == 200, answered


CASES: dict[str, Case] = {
    "load": Case(load("a"), None, least=40),
    "load by a request": Case(ask("a"), None, least=40),
    "swap by a request": Case(ask("b"), least=60),
    "request": Case(ask("a"), least=4),
    "unload": Case(unload, attached=("one",), least=30),
    "replacing attach beside a request": Case(
        attach, attached=("two",), has_request=True, least=40
    ),
    "attach of a set": Case(attach_set, least=40),
    "detach beside a request": Case(detach, attached=("one", "two"), has_request=True, least=20),
    "line": Case(line, least=8),
}


@asynccontextmanager
async def opened(home: Path) -> AsyncIterator[Slot]:
    """The control plane, whose engines answer every request after some turns of the event loop."""
    runners: list[LineRunner] = []
    async with doubles.world(home) as world:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.batches, "run_lines_by", runners.append)
            routes.inference(world)
        models = {name: await world.model(name) for name in ("a", "b")}
        for name in ("one", "two"):
            await world.sae(name)
        world.begin(complete(world))
        yield Slot(world, models, runners[0])


async def complete(world: World) -> None:
    """Answer every request that reaches an engine."""
    while True:
        stream = await world.launcher.streams.get()
        await turns(20)
        stream.complete()


async def settled(slot: Slot) -> None:
    """Wait for what goes on without its client."""
    await soon(slot.world.conductor.settled())
    await until(
        lambda: not slot.world.conductor.editing.locked() and not slot.world.queue.counts().pending
    )
    await turns()


@pytest.mark.parametrize("is_late", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize("name", CASES)
async def test_a_client_that_leaves_at_any_await_leaves_the_slot_as_the_engine_is(
    tmp_path: Path, name: str, is_late: bool
) -> None:
    case = CASES[name]
    async with opened(tmp_path) as slot:
        for at in range(1, MOST, LATE_STEP if is_late else 1):
            await slot.reset(case)
            beside = slot.world.begin(slot.world.ask("a")) if case.has_request else None
            if beside is not None:
                await until(lambda: slot.world.resident.in_flight)
            has_cut = await soon(Cut(at, is_late=is_late).run(case.work(slot)))
            assert beside is None or await soon(beside) == "done"
            await settled(slot)
            slot.check_consistent()
            await slot.check_told()
            resident = slot.world.conductor.resident
            assert await soon(slot.world.ask(resident.row.name if resident else "a")) == "done"
            if not has_cut:
                break
        assert case.least < at < MOST
