"""The resident slot: loads, swaps, unloads, locks, and engines that die."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import msgspec
import pytest

from steerserve.control.residency.events import (
    LoadComplete,
    LoadError,
    LoadFailure,
    LoadProgress,
    UnloadComplete,
)
from steerserve.database.catalog import ModelRow
from steerserve.errors import Refusal
from steerserve.files import local
from steerserve.messages.endings import NotStarted
from steerserve.rules.residency.swap import Phase
from tests.control.conftest import Make, refused
from tests.doubles import World
from tests.scripted_answers import FACTS
from tests.waiting import PATIENCE, Gate, soon, until

BROKEN = Refusal("INSUFFICIENT_MEMORY", "the weights do not fit")


# ---------------------------------------------------------------------- loading


async def test_a_load_makes_the_model_resident_and_records_what_the_engine_found(
    world: World,
) -> None:
    row = await world.model()
    resident = await world.conductor.load(row)
    assert world.phase is Phase.LOADING
    await soon(resident.ready)
    assert world.phase is Phase.LOADED
    found = await world.catalog.model(row.id)
    assert (found.status, found.architecture, found.num_parameters, found.dtype) == (
        "loaded",
        "TinyForCausalLM",
        1234,
        "float32",
    )
    assert world.resident.loaded_at is not None
    assert world.launcher.engine.loaded is not None
    assert world.launcher.engine.loaded["path"] == row.local_path
    assert world.published(LoadComplete) == [LoadComplete(row.id, 7)]
    assert [p.progress for p in world.published(LoadProgress)] == [50.0, 100.0]


@pytest.mark.shows("model-record.15")
async def test_the_record_says_that_a_model_was_loaded_without_embeddings(world: World) -> None:
    world.launcher.facts = msgspec.structs.replace(FACTS, supports_embeddings=False)
    row = await world.loaded()
    assert (await world.catalog.model(row.id)).supports_embeddings is False


def replaced_by_link(folder: Path) -> Path:
    """Move a folder, and leave a link to it in its place."""
    moved = folder.rename(folder.with_name("moved")).resolve()
    folder.symlink_to(moved)
    return moved


async def test_the_engine_reads_the_folder_that_was_checked(world: World) -> None:
    row = await world.model()
    moved = replaced_by_link(Path(row.local_path or ""))
    resident = await world.conductor.load(row)
    await soon(resident.ready)
    assert world.launcher.engine.loaded is not None
    assert world.launcher.engine.loaded["path"] == str(moved)


async def test_once_a_load_is_accepted_the_record_says_so(world: World) -> None:
    row = await world.model()
    gate = world.launcher.hold("launch")
    resident = await world.conductor.load(row)
    assert (await world.status(row))[0] == "loading"
    gate.open.set()
    await soon(resident.ready)
    assert (await world.status(row))[0] == "loaded"


def check_together(monkeypatch: pytest.MonkeyPatch, parties: int) -> None:
    """Let no check before a load end until this many have begun."""
    barrier, read = threading.Barrier(parties, timeout=PATIENCE), local.read_model

    def together(path: Path) -> local.ModelFolder:
        barrier.wait()
        return read(path)

    monkeypatch.setattr(local, "read_model", together)


async def test_requests_that_arrive_together_share_one_load(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.model()
    check_together(monkeypatch, 3)
    asked = [world.begin(world.ask()) for _ in range(3)]
    for _ in asked:
        (await world.launcher.stream()).complete()
    assert await soon(asyncio.gather(*asked)) == ["done"] * 3
    assert len(world.launcher.engines) == 1


async def test_a_failed_load_refuses_those_who_wait_and_leaves_the_slot_empty(
    world: World,
) -> None:
    row = await world.model()
    world.launcher.fail("load", BROKEN)
    gate = world.launcher.hold("load")
    asked = [world.begin(world.ask())]
    await soon(gate.reached.wait())
    asked.append(world.begin(world.ask()))
    await until(lambda: world.resident.users == 2)
    gate.open.set()
    for request in asked:
        assert (await refused(request)).code == "INSUFFICIENT_MEMORY"
    await until(lambda: world.conductor.resident is None)
    assert await world.status(row) == ("ready", "the weights do not fit")
    assert world.launcher.alive == []
    assert world.published(LoadError) == [
        LoadError(row.id, LoadFailure("INSUFFICIENT_MEMORY", "the weights do not fit"))
    ]


async def test_an_engine_that_cannot_be_started_is_a_failed_load(world: World) -> None:
    row = await world.model()
    world.launcher.fail("launch", OSError("no more processes"))
    assert (await refused((await world.conductor.load(row)).ready)).code == "MODEL_LOAD_FAILED"
    assert (await world.status(row))[0] == "error"
    assert world.phase is Phase.EMPTY


async def test_a_load_for_which_no_replica_can_be_started_is_tried_again_by_the_next_request(
    world: World,
) -> None:
    row = await world.model()
    world.launcher.fail("load", NotStarted("no port from 20000 to 20000 is free"))
    refusal = await refused(world.begin(world.ask()))
    assert refusal.code == "ENGINE_UNAVAILABLE"
    assert await world.status(row) == ("ready", "no port from 20000 to 20000 is free")
    await world.answered()


async def test_an_engine_that_dies_while_it_loads_is_a_failed_load(world: World) -> None:
    row = await world.model()
    resident, _ = await world.reaching("load", world.conductor.load(row))
    world.launcher.engine.die("the engine process was ended by signal 9")
    refusal = await refused(resident.ready)
    assert refusal.code == "MODEL_LOAD_FAILED"
    assert refusal.message == (
        "the engine process was ended by signal 9 while the model was loaded; "
        "the system sends this signal when memory is short"
    )
    assert await world.status(row) == ("error", refusal.message)
    assert world.phase is Phase.EMPTY


async def test_a_load_that_takes_too_long_is_ended_with_its_engine(make: Make) -> None:
    async with make(load_timeout=0.01) as world:
        row = await world.model()
        world.launcher.hold("load")
        refusal = await refused((await world.conductor.load(row)).ready)
        assert refusal.code == "MODEL_LOAD_FAILED"
        assert "LOAD_TIMEOUT" in refusal.message
        assert world.launcher.alive == []


async def test_a_management_load_is_refused_while_any_load_runs(world: World) -> None:
    row, other = await world.model("a"), await world.model("b")
    gate = world.launcher.hold("load")
    resident = await world.conductor.load(row)
    for asked in (row, other):
        refusal = await refused(world.conductor.load(asked))
        assert refusal.code == "MODEL_BUSY"
        assert refusal.details["unloading"] is False
    assert (await refused(world.conductor.unload(other.id))).code == "MODEL_BUSY"
    gate.open.set()
    await soon(resident.ready)
    assert (await refused(world.conductor.load(row))).code == "MODEL_ALREADY_LOADED"


async def test_a_model_without_its_files_is_refused_before_the_resident_one_is_touched(
    world: World,
) -> None:
    await world.loaded("a")
    gone = await world.model("b", local_path=str(world.home / "nowhere"))
    assert (await refused(world.ask("b"))).code == "INVALID_LOCAL_PATH"
    assert (await refused(world.conductor.load(gone))).code == "INVALID_LOCAL_PATH"
    assert world.phase is Phase.LOADED
    assert world.resident.row.name == "a"


@pytest.mark.shows("models.19", "resource-errors.3", "resource-errors.7")
async def test_a_quantization_that_cannot_be_applied_is_refused_before_anything_is_touched(
    world: World,
) -> None:
    await world.loaded("a")
    row = await world.model("b", quantization="Q2")
    for work in (world.ask("b"), world.conductor.load(row)):
        assert (await refused(work)).code == "UNSUPPORTED_QUANTIZATION"
    assert world.phase is Phase.LOADED
    assert world.resident.row.name == "a"


# ---------------------------------------------------------------------- swapping


@pytest.mark.shows("overview.6", "states.4")
async def test_a_swap_waits_for_requests_in_flight_and_refuses_newcomers(world: World) -> None:
    await world.loaded("a")
    await world.model("b")
    holder, stream = await world.in_flight("a")
    swapping = await world.unloading(world.ask("b"))
    for name in ("a", "b"):
        refusal = await refused(world.ask(name))
        assert refusal.code == "MODEL_BUSY"
        assert refusal.details["unloading"] is True
    stream.complete("to its end")
    assert await soon(holder) == "to its end"
    (await world.launcher.stream()).complete("after the swap")
    assert await soon(swapping) == "after the swap"
    log = world.launcher.log
    assert log.index("generated") < log.index("stop") < log.index("launch", 1)
    assert len(world.launcher.alive) == 1


async def test_a_request_that_waits_for_a_slot_when_the_unload_begins_is_served(make: Make) -> None:
    async with make(max_concurrent_requests=1) as world:
        row = await world.loaded("a")
        holder, stream = await world.in_flight()
        waiting = world.begin(world.ask())
        await until(lambda: world.resident.users == 2)
        unloading = await world.unloading(world.conductor.unload(row.id))
        stream.complete("first")
        assert await soon(holder) == "first"
        (await world.launcher.stream()).complete("second")
        assert await soon(waiting) == "second"
        await soon(unloading)


@pytest.mark.shows("limits.25", "states.4")
async def test_requests_that_outlast_the_grace_of_an_unload_are_ended_as_busy(make: Make) -> None:
    async with make(graceful_unload_timeout=0) as world:
        row = await world.loaded("a")
        holder, stream = await world.in_flight()
        stream.start()
        await soon(world.conductor.unload(row.id))
        refusal = await refused(holder)
        assert refusal.code == "MODEL_BUSY"
        assert refusal.details["unloading"] is True
        assert world.launcher.alive == []
        assert world.phase is Phase.EMPTY


async def test_a_request_still_queued_when_the_grace_ends_is_refused_as_busy(make: Make) -> None:
    async with make(graceful_unload_timeout=0, max_concurrent_requests=1) as world:
        row = await world.loaded("a")
        await world.in_flight()
        waiting = world.begin(world.ask())
        await until(lambda: world.resident.users == 2)
        await soon(world.conductor.unload(row.id))
        assert (await refused(waiting)).code == "MODEL_BUSY"


@pytest.mark.parametrize("is_swap", [False, True])
async def test_of_two_requests_for_different_models_one_is_served_and_one_is_busy(
    world: World, monkeypatch: pytest.MonkeyPatch, is_swap: bool
) -> None:
    if is_swap:
        await world.loaded("a")
    await world.model("b")
    await world.model("c")
    check_together(monkeypatch, 2)
    asked = [world.begin(world.ask(name)) for name in ("b", "c")]
    stream = await world.launcher.stream()
    # the answer is held back until the other is refused: after it, a swap would be allowed again
    (busy,), (served,) = await soon(asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED))
    assert (await refused(busy)).code == "MODEL_BUSY"
    stream.complete("served")
    assert await soon(served) == "served"
    assert len(world.launcher.alive) == 1


@pytest.mark.shows("resource-errors.7")
async def test_a_swap_whose_load_fails_leaves_the_slot_empty(world: World) -> None:
    first = await world.loaded("a")
    second = await world.model("b")
    world.launcher.fail("load", BROKEN)
    refusal = await refused(world.ask("b"))
    assert (refusal.code, refusal.details["cause"]) == ("MODEL_LOAD_FAILED", "INSUFFICIENT_MEMORY")
    await until(lambda: world.conductor.resident is None)
    assert (await world.status(first))[0] == "ready"
    assert (await world.status(second))[0] == "ready"
    await world.answered("a")


# ---------------------------------------------------------------------- unloading


async def test_an_unload_ends_the_engine_and_leaves_the_model_ready(world: World) -> None:
    row = await world.loaded()
    await soon(world.conductor.unload(row.id))
    assert world.launcher.alive == []
    assert await world.status(row) == ("ready", None)
    assert world.phase is Phase.EMPTY
    assert world.published(UnloadComplete) == [UnloadComplete(row.id)]
    assert (await refused(world.conductor.unload(row.id))).code == "MODEL_NOT_LOADED"


@pytest.mark.shows("model-errors.6")
async def test_a_second_unload_is_busy(world: World) -> None:
    row = await world.loaded()
    holder, stream = await world.in_flight()
    unloading = await world.unloading(world.conductor.unload(row.id))
    assert (await refused(world.conductor.unload(row.id))).code == "MODEL_BUSY"
    assert (await refused(world.conductor.load(row))).code == "MODEL_BUSY"
    stream.complete()
    await soon(asyncio.gather(holder, unloading))


async def test_an_unload_goes_on_when_its_caller_goes_away(world: World) -> None:
    row = await world.loaded()
    holder, stream = await world.in_flight()
    unloading = await world.unloading(world.conductor.unload(row.id))
    unloading.cancel()
    stream.complete()
    await soon(holder)
    await until(lambda: world.conductor.resident is None)
    assert world.launcher.alive == []


# ---------------------------------------------------------------------- ending a load

ENDED = "the load was ended by an operator"


@pytest.mark.parametrize("step", ["launch", "load"])
async def test_an_unload_ends_a_load_and_refuses_the_requests_that_wait_for_it(
    world: World, step: str
) -> None:
    row = await world.model()
    gate = world.launcher.hold(step)
    waiting = [world.begin(world.ask()) for _ in range(2)]
    await soon(gate.reached.wait())
    await until(lambda: world.resident.users == 2)
    await soon(world.conductor.unload(row.id))
    for asked in waiting:
        refusal = await refused(asked)
        assert (refusal.code, refusal.message) == ("MODEL_BUSY", ENDED)
        assert refusal.details["unloading"] is True
    assert world.launcher.alive == []
    assert world.phase is Phase.EMPTY
    assert await world.status(row) == ("ready", ENDED)
    assert world.published(LoadError) == [LoadError(row.id, LoadFailure("MODEL_BUSY", ENDED))]
    again = await world.conductor.load(await world.catalog.model(row.id))
    await soon(again.ready)
    assert await world.status(row) == ("loaded", None)


async def test_a_load_that_waits_for_an_unload_is_ended_and_the_other_model_serves_on(
    world: World,
) -> None:
    first = await world.loaded("a")
    second = await world.model("b")
    holder, stream = await world.in_flight("a")
    coming = await world.conductor.load(second)
    assert world.phase is Phase.UNLOADING
    await soon(world.conductor.unload(second.id))
    assert (await refused(coming.ready)).code == "MODEL_BUSY"
    assert (world.phase, world.resident.row.name) == (Phase.LOADED, "a")
    assert (await world.status(first))[0] == "loaded"
    assert await world.status(second) == ("ready", ENDED)
    stream.complete("to its end")
    assert await soon(holder) == "to its end"
    await world.answered("a")
    assert len(world.launcher.engines) == 1


async def test_a_load_is_ended_while_the_engine_of_the_other_model_ends(make: Make) -> None:
    async with make(graceful_unload_timeout=0) as world:
        first = await world.loaded("a")
        second = await world.model("b")
        async with world.conductor.editing:
            coming = await world.conductor.load(second)
            await until(lambda: not world.launcher.alive)
            ending = world.begin(world.conductor.end_load(second.id))
            await until(lambda: world.conductor.view().next_id is None)
            assert (await refused(world.conductor.unload(second.id))).code == "MODEL_BUSY"
        await soon(ending)
        assert (await refused(coming.ready)).code == "MODEL_BUSY"
        assert world.phase is Phase.EMPTY
        assert [(await world.status(row))[0] for row in (first, second)] == ["ready", "ready"]
        assert len(world.launcher.engines) == 1
        await soon((await world.conductor.load(first)).ready)


async def test_two_operators_may_end_a_load_at_once(world: World) -> None:
    row = await world.model()
    resident, _ = await world.reaching("load", world.conductor.load(row))
    first = world.begin(world.conductor.end_load(row.id))
    second = world.begin(world.conductor.end_load(row.id))
    await until(lambda: world.phase is not Phase.LOADING)
    assert (await refused(world.conductor.unload(row.id))).code == "MODEL_BUSY"
    assert (await refused(world.conductor.load(row))).code == "MODEL_BUSY"
    await soon(asyncio.gather(first, second))
    assert (await refused(resident.ready)).code == "MODEL_BUSY"
    assert world.phase is Phase.EMPTY
    assert len(world.published(LoadError)) == 1
    await soon(world.conductor.end_load(row.id))


async def test_a_model_that_serves_is_not_ended_as_a_load(world: World) -> None:
    row = await world.loaded()
    await soon(world.conductor.end_load(row.id))
    await soon(world.conductor.end_load(row.id + 1))
    assert world.phase is Phase.LOADED


async def test_close_while_a_load_is_being_ended_leaves_no_engine(world: World) -> None:
    row = await world.model()
    asked, _ = await world.held("load", world.ask())
    ending = await world.unloading(world.conductor.end_load(row.id))
    await soon(world.conductor.close())
    assert world.launcher.alive == []
    await soon(ending)
    assert (await refused(asked)).code in ("MODEL_BUSY", "SHUTTING_DOWN")


# ---------------------------------------------------------------------- the engine dies


async def test_a_model_whose_engine_dies_is_ready_again_with_the_reason(world: World) -> None:
    row = await world.loaded()
    world.launcher.engine.die("the engine process was ended by signal 11")
    await until(lambda: world.conductor.resident is None)
    assert await world.status(row) == ("ready", "the engine process was ended by signal 11")


async def test_an_engine_that_dies_takes_its_attachments_steering_and_lock_along(
    world: World,
) -> None:
    sae = await world.attached()
    await world.steering.set_values({1: 5.0})
    resident = world.resident
    await world.crash()
    assert world.conductor.attachments() == []
    assert await world.sae_status(sae) == "cached"
    assert not resident.is_locked
    lock = world.conductor.view().lock
    assert lock is not None
    assert lock.is_waiting
    assert (world.steering.live.enabled, world.steering.live.values) == (False, {})


async def test_a_request_in_flight_when_the_engine_dies_is_refused_and_the_next_loads_again(
    world: World,
) -> None:
    await world.loaded()
    asked, stream = await world.in_flight()
    stream.start()
    world.launcher.engine.die()
    assert (await refused(asked)).code == "ENGINE_UNAVAILABLE"
    await until(lambda: world.conductor.resident is None)
    await world.answered()
    assert len(world.launcher.engines) == 2


# ---------------------------------------------------------------------- locks


@pytest.mark.shows("models.25")
async def test_a_locked_model_is_not_replaced_by_a_request_but_by_the_management(
    world: World,
) -> None:
    first = await world.loaded("a")
    other = await world.model("b")
    world.conductor.lock(first.id)
    refusal = await refused(world.ask("b"))
    assert refusal.code == "MODEL_LOCKED"
    assert refusal.details["resident_model_name"] == "a"
    await soon((await world.conductor.load(other)).ready)
    assert world.resident.row.name == "b"
    assert not world.resident.is_locked


async def test_an_unlocked_model_is_replaced_again(world: World) -> None:
    row = await world.loaded("a")
    other = await world.model("b")
    world.conductor.lock(row.id)
    world.conductor.unlock(other.id)
    assert world.resident.is_locked
    world.conductor.unlock(row.id)
    await world.answered("b")


# ---------------------------------------------------------------------- closing


async def test_close_during_a_swap_leaves_no_engine(world: World) -> None:
    first = await world.loaded("a")
    await world.model("b")
    await world.in_flight("a")
    await world.unloading(world.ask("b"))
    await soon(world.conductor.close())
    assert world.launcher.alive == []
    assert (await world.status(first))[0] == "ready"


async def test_close_while_a_model_loads_refuses_all_who_wait_and_leaves_no_engine(
    world: World,
) -> None:
    row = await world.model()
    gate = world.launcher.hold("load")
    resident = await world.conductor.load(row)
    asked = world.begin(world.ask())
    await soon(gate.reached.wait())
    await until(lambda: world.resident.users == 1)
    await soon(world.conductor.close())
    assert world.launcher.alive == []
    assert await world.status(row) == ("ready", None)
    for waiting in (asked, asyncio.shield(resident.ready)):
        assert (await refused(waiting)).code == "SHUTTING_DOWN"


async def test_close_refuses_requests_in_flight_as_shutting_down(world: World) -> None:
    await world.loaded()
    asked, stream = await world.in_flight()
    stream.start()
    await soon(world.conductor.close())
    assert (await refused(asked)).code == "SHUTTING_DOWN"


async def test_a_second_close_changes_nothing(world: World) -> None:
    """An orderly stop closes twice: after the requests have ended, and with everything else."""
    row = await world.loaded()
    await soon(world.conductor.close())
    await soon(world.conductor.close())
    assert (world.launcher.log.count("stop"), world.launcher.alive) == (1, [])
    # the next start says that the restart ended it, and corrects the status
    assert await world.status(row) == ("loaded", None)


async def test_a_load_that_is_checked_while_the_service_closes_starts_no_engine(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = await world.model()
    find, gate = world.catalog.model, Gate()

    async def found(model_id: int) -> ModelRow:
        gate.reached.set()
        await gate.open.wait()
        return await find(model_id)

    monkeypatch.setattr(world.catalog, "model", found)
    loading = world.begin(world.conductor.load(row))
    await soon(gate.reached.wait())
    world.conductor.is_closing = True
    await soon(world.conductor.close())
    gate.open.set()
    assert (await refused(loading)).code == "SHUTTING_DOWN"
    assert world.launcher.engines == []


async def test_what_the_database_cannot_record_does_not_stop_an_unload(world: World) -> None:
    row = await world.loaded()
    await world.catalog.remove_model(row.id)
    await soon(world.conductor.unload(row.id))
    assert world.launcher.alive == []
    assert world.phase is Phase.EMPTY


async def test_a_swap_to_a_model_that_is_gone_leaves_the_resident_serving(world: World) -> None:
    await world.loaded("a")
    other = await world.model("b")
    await world.catalog.remove_model(other.id)
    assert (await refused(world.conductor.load(other))).code == "MODEL_NOT_FOUND"
    assert world.phase is Phase.LOADED
    await world.answered("a")


async def test_a_model_that_is_being_deleted_is_not_loaded(world: World) -> None:
    row = await world.model("a")
    with world.conductor.kept_out(row.id):
        assert (await refused(world.conductor.load(row))).code == "MODEL_NOT_FOUND"
    await soon((await world.conductor.load(row)).ready)
    assert world.phase is Phase.LOADED


async def test_a_database_that_is_away_holds_no_slot(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = await world.loaded("a")

    async def refuse(*_: object, **__: object) -> None:
        raise ConnectionRefusedError("the database is away")

    monkeypatch.setattr(world.catalog, "change_model", refuse)
    await soon(world.conductor.unload(row.id))
    assert world.phase is Phase.EMPTY
