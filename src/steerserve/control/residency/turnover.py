"""Every load and unload, from its beginning to its end: the model that leaves the slot, the model that enters it, and
the records and events about both."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial

import structlog

from steerserve.control.bus import (
    Bus,
    LoadComplete,
    LoadError,
    LoadProgress,
    ModelLeaving,
    ReplicaChanged,
    SaeAttached,
    SaeDetached,
    UnloadComplete,
)
from steerserve.control.residency import loading
from steerserve.control.residency.engines import Engines
from steerserve.control.residency.leases import Leases
from steerserve.control.residency.loading import Prepared
from steerserve.control.residency.occupant import Occupant
from steerserve.control.residency.records import Records
from steerserve.control.residency.restoring import Restoring
from steerserve.control.residency.slot import Slot
from steerserve.control.residency.watching import EngineWatch
from steerserve.errors import Refusal
from steerserve.logs import background
from steerserve.messages import Loaded, endings
from steerserve.messages.engine import Engine
from steerserve.rules.models import status as model_status
from steerserve.rules.models.status import Event
from steerserve.rules.residency import replicas
from steerserve.rules.residency.heartbeat import Bounds
from steerserve.rules.residency.replicas import ReplicaView
from steerserve.rules.residency.swap import EngineEnd, Phase
from steerserve.settings import Settings

log = structlog.get_logger(__name__)


class Turnover:
    """Owner of the tasks that load and unload. It decides nothing: the conductor asks the rules first."""

    def __init__(
        self,
        settings: Settings,
        launcher: Engines,
        bus: Bus,
        slot: Slot,
        leases: Leases,
        records: Records,
        restoring: Restoring,
        editing: asyncio.Lock,
    ) -> None:
        self._settings = settings
        self._launcher = launcher
        self._bus = bus
        self._slot = slot
        self._leases = leases
        self._records = records
        self._restoring = restoring
        self._editing = editing
        self._bounds = Bounds(settings.engine_stall_timeout, settings.load_timeout)
        self._tasks: set[asyncio.Task[None]] = set()
        # the load that is under way, and the end of the engine that has to leave for it; one of each at most
        self._loading: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._ended_loads: dict[Occupant, asyncio.Task[None]] = {}
        self._is_closed = False

    def begin_load(self, prepared: Prepared) -> Occupant:
        """Give the slot to the model. If another model is in the slot, that model is unloaded first. Does not wait."""
        coming = Occupant(prepared.row)
        # if nobody waits for the load, its failure is still in the record and in an event
        coming.ready.add_done_callback(lambda done: done.cancelled() or done.exception())
        leaving = self._slot.enter(coming)
        if leaving is not None:
            self._send_off(leaving)
        self._leaving = None
        self._loading = self._spawn(self._swap(leaving, coming, prepared))
        self._loading.add_done_callback(lambda _: coming.recorded.set())
        return coming

    def begin_end_load(self, coming: Occupant) -> None:
        """Begin to end the load of a model that does not serve yet. Does not wait."""
        loading = self._loading
        assert loading is not None
        coming.leave()
        # at once: in a later turn of the event loop the load may have succeeded
        loading.cancel()
        task = self._ended_loads[coming] = self._spawn(self._end_load(coming, loading))
        task.add_done_callback(lambda _: self._ended_loads.pop(coming))

    async def until_load_ended(self, coming: Occupant) -> None:
        """Return when the load of the model, which somebody has begun to end, is over. Otherwise return at once."""
        task = self._ended_loads.get(coming)
        if task is not None:
            await asyncio.wait([task])

    def begin_unload(self, leaving: Occupant) -> asyncio.Task[None]:
        """Begin to unload the model. The task ends when its memory is free. Does not wait."""
        self._send_off(leaving)
        return self._spawn(self._unload(leaving))

    async def settled(self) -> None:
        """Return when no load and no unload is under way."""
        while self._slot.is_changing and self._tasks:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """End every load and unload, then the engine. A second close changes nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for occupant in (self._slot.resident, self._slot.next):
            if occupant is None:
                continue
            # the record of a model that serves stays as it is: the next start says what the restart ended
            is_serving = occupant.phase is Phase.LOADED
            event = Event.UNLOADED if occupant.ready.done() else Event.LOAD_ABANDONED
            occupant.leave()
            if not occupant.ready.done():
                occupant.ready.set_exception(shutting_down())
            if occupant.engine is not None:
                await occupant.engine.stop(shutting_down())
            if not is_serving:
                await self._records.model(occupant, event)

    # ------------------------------------------------------------- coming

    async def _swap(self, leaving: Occupant | None, coming: Occupant, prepared: Prepared) -> None:
        """Unload `leaving`, then load `coming`. `close` and `_end_load` cancel this task, and clean up after it. The
        end of an engine is not cancelled halfway, so it is a task of its own."""
        try:
            await self._records.model(coming, Event.LOAD_BEGAN, error_message=None)
            coming.recorded.set()
            if leaving is not None:
                await self._drain(leaving)
                self._leaving = self._spawn(self._end(leaving))
                await asyncio.shield(self._leaving)
            await self._load(coming, prepared, has_unloaded=leaving is not None)
        except Exception as error:
            log.exception("load_failed", model=coming.row.name)
            is_still_there = leaving is not None and self._slot.resident is leaving
            has_unloaded = leaving is not None and not is_still_there
            await self._fail(coming, loading.as_refusal(error, has_unloaded=has_unloaded))
            if is_still_there:
                assert leaving is not None
                self._stay(leaving)

    async def _end_load(self, coming: Occupant, loading: asyncio.Task[None]) -> None:
        """Clean up after a load that was cancelled at whatever point it was. If another model was to leave for it and
        its engine still serves, that model stays."""
        leaving = self._slot.resident
        await asyncio.wait([loading])
        if self._slot.next is coming and self._leaving is not None:
            await asyncio.wait([self._leaving])
        why = Refusal("MODEL_BUSY", "the load was ended by an operator", unloading=True)
        log.info("model_load_ended", model=coming.row.name)
        await self._give_up(coming, Event.LOAD_ABANDONED, why)
        if leaving is not None and leaving is self._slot.resident:
            self._stay(leaving)

    def _stay(self, occupant: Occupant) -> None:
        """Let the model serve on: the load that was to replace it failed before it was unloaded."""
        occupant.stay()
        if occupant.engine is not None and occupant.engine.ended.done():
            self._on_engine_end(occupant)

    async def _load(self, coming: Occupant, prepared: Prepared, *, has_unloaded: bool) -> None:
        try:
            self._launcher.barred = prepared.barred
            engine = await self._launcher.launch_resident(prepared.row.engine, prepared.folder)
            engine.on_replicas = partial(self._tell, coming.row.id, engine)
            coming.start(engine)
            self._spawn(EngineWatch(coming, self._bounds).run(), "engine-watch")
            facts = await loading.fill(coming, prepared, self._settings, self._bus)
            async with self._editing:
                await self._serve(coming, facts)
        except (Refusal, TimeoutError) as error:
            await self._fail(coming, loading.as_refusal(error, has_unloaded=has_unloaded))

    async def _serve(self, coming: Occupant, facts: Loaded) -> None:
        """Let the loaded model serve, with the state that a crash took from it.

        Raises:
            Refusal: a state cannot be put back, or MODEL_LOAD_FAILED when the engine ended meanwhile.
            TimeoutError: when putting back took longer than LOAD_TIMEOUT.
        """
        engine = coming.held()
        async with (
            asyncio.timeout(self._settings.load_timeout),
            self._restoring.putting_back(coming, engine) as switch,
        ):
            await self._records.model(
                coming,
                Event.LOADED,
                error_message=None,
                architecture=facts.architecture,
                num_parameters=facts.parameters,
                dtype=facts.dtype,
                supports_embeddings=facts.supports_embeddings,
            )
            switch()
        engine.ended.add_done_callback(lambda _: self._on_engine_end(coming))
        attached = list(coming.attachments.values())
        for attachment in attached:
            await self._records.sae(attachment.sae_id, "attached")
        coming.ready.set_result(None)
        log.info("model_loaded", model=coming.row.name, memory_mb=facts.memory_mb)
        for warning in facts.warnings:
            log.warning("model_remarkable", model=coming.row.name, reason=warning)
        self._bus.publish(LoadProgress(coming.row.id, "complete", 100.0))
        self._bus.publish(LoadComplete(coming.row.id, facts.memory_mb))
        for attachment in attached:
            self._bus.publish(
                SaeAttached(attachment.sae_id, attachment.layer, attachment.memory_mb)
            )

    async def _fail(self, coming: Occupant, refusal: Refusal) -> None:
        cause = refusal.details.get("cause", refusal.code)
        event = model_status.after_failed_load(cause)
        log.warning("model_load_failed", model=coming.row.name, reason=refusal.message)
        await self._give_up(coming, event, refusal)

    async def _give_up(self, coming: Occupant, event: Event, refusal: Refusal) -> None:
        """End a load without a model that serves: its engine is stopped, the slot is freed, the requests that wait for
        it are refused, and the record and an event have the reason."""
        if coming.engine is not None:
            await coming.engine.stop()
        coming.empty()
        await self._records.model(coming, event, error_message=refusal.message)
        self._slot.leave(coming)
        if not coming.ready.done():
            coming.ready.set_exception(refusal)
        self._bus.publish(LoadError(coming.row.id, refusal.code, refusal.message))

    # ------------------------------------------------------------- leaving

    def _send_off(self, leaving: Occupant) -> None:
        leaving.leave()
        self._bus.publish(ModelLeaving(leaving.row.id))

    async def _unload(self, leaving: Occupant) -> None:
        """Wait for the requests that hold the model, then end its engine."""
        await self._drain(leaving)
        await self._end(leaving)

    async def _drain(self, leaving: Occupant) -> None:
        """Wait for the requests that hold the model and for a running edit of its attachments, each at most
        GRACEFUL_UNLOAD_TIMEOUT seconds. The model is untouched afterwards."""
        await leaving.until_unused(self._settings.graceful_unload_timeout)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.graceful_unload_timeout), self._editing:
                pass  # new edits are refused already

    async def _end(self, leaving: Occupant) -> None:
        """End the engine of the model, and free the slot."""
        if leaving.engine is not None:
            await leaving.engine.stop(
                Refusal("MODEL_BUSY", "the model was unloaded", unloading=True)
            )
        async with self._editing:
            await self._vacate(leaving, Event.UNLOADED, None)

    async def _vacate(self, leaving: Occupant, event: Event, reason: str | None) -> None:
        """Drop the SAEs, the steering, the lock and the lease of a model whose engine has ended, then free the slot."""
        gone = leaving.empty()
        async with self._restoring.parting([attachment.key for attachment in gone]) as switch:
            switch()
        for attachment in gone:
            await self._records.sae(attachment.sae_id, "cached")
            self._bus.publish(SaeDetached(attachment.sae_id))
        await self._records.model(leaving, event, error_message=reason)
        self._leases.model_unloaded(leaving.row.id)
        self._slot.leave(leaving)
        self._bus.publish(UnloadComplete(leaving.row.id))

    def _on_engine_end(self, occupant: Occupant) -> None:
        """Handle an engine that ended by itself while its model was loaded. The record becomes `ready`, with the
        reason."""
        if occupant is not self._slot.resident or occupant.phase is not Phase.LOADED:
            return
        reason = occupant.held().ended.result()
        self._restoring.remember(occupant)
        occupant.leave()
        self._slot.engine_end = EngineEnd(
            occupant.row.id, occupant.row.name, endings.explained(reason)
        )
        log.error("engine_ended", model=occupant.row.name, reason=reason)
        self._spawn(self._clear_away(occupant, reason))

    async def _clear_away(self, occupant: Occupant, reason: str) -> None:
        """Vacate the slot after a crash, once a running edit of the attachments has ended. That edit fails by
        itself."""
        async with self._editing:
            await self._vacate(occupant, Event.ENGINE_ENDED, reason)

    # ------------------------------------------------------------- inside

    def _tell(self, model_id: int, engine: Engine, replica: ReplicaView) -> None:
        """Tell that a replica came into another state. The end of the whole engine is told as such."""
        if engine.fleet is None or engine.ended.done():
            return
        views = engine.fleet.replicas()
        self._bus.publish(
            ReplicaChanged(model_id, replica, replicas.wanted(views), replicas.serving(views))
        )

    def _spawn(
        self, work: Coroutine[object, object, None], name: str | None = None
    ) -> asyncio.Task[None]:
        task = background.start(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def shutting_down() -> Refusal:
    return Refusal("SHUTTING_DOWN", "the service is shutting down")
