"""The resident model: who is loaded, locked and leased, and every load and unload.

Single writer: each decision is made without waiting, by asking `rules/residency`; slow work runs as a child task that
writes its outcome back in one step. A request that uses the model holds it, and an unload waits for those who hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Protocol

import structlog

from steerserve.control.bus import (
    Bus,
    LoadComplete,
    LoadError,
    LoadProgress,
    SaeAttached,
    SaeDetached,
    UnloadComplete,
)
from steerserve.control.residency import loading
from steerserve.control.residency.engines import Engines
from steerserve.control.residency.leases import Granted, Leases
from steerserve.control.residency.loading import ANYWHERE, Prepared
from steerserve.control.residency.occupant import Occupant
from steerserve.control.residency.records import Records
from steerserve.control.residency.resident import Attachment, Resident, Switch
from steerserve.control.residency.restoring import Restoring
from steerserve.control.residency.slot import Slot
from steerserve.engine.wire.messages import Loaded
from steerserve.errors import Refusal
from steerserve.rules import residency
from steerserve.rules.lease import Terms
from steerserve.rules.model_status import Event
from steerserve.rules.placement import Wanted
from steerserve.rules.residency import Phase, Step, View
from steerserve.settings import Settings
from steerserve.store.catalog import Catalog, Clock, ModelRow, utc_now

log = structlog.get_logger(__name__)


class Renew(Protocol):
    """Takes values along with the attachments of these keys, and switches these in the same step."""

    async def __call__(self, gone: Sequence[str], switch: Switch | None = None, /) -> None: ...


class Conductor:
    """Owner of the resident slot."""

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        launcher: Engines,
        bus: Bus,
        now: Clock = utc_now,
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._launcher = launcher
        self._bus = bus
        self._slot = Slot()
        self.leases = Leases(settings, now)
        self.records = Records(catalog)
        self.restoring = Restoring(catalog)
        # held by whoever edits the attachments; an unload takes it before it ends the engine
        self.editing = asyncio.Lock()
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._kept_out: set[int] = set()
        self.is_closing = False
        self.renew: Renew = _switch_only

    # ------------------------------------------------------------- reading

    @property
    def resident(self) -> Resident | None:
        """The model in the slot, in whatever phase."""
        return self._slot.resident

    def loaded(self) -> Resident:
        """The resident model once it serves.

        Raises:
            Refusal: MODEL_NOT_LOADED.
        """
        resident = self.resident
        if resident is None or resident.phase is not Phase.LOADED:
            raise Refusal("MODEL_NOT_LOADED", "no model is loaded")
        return resident

    def first_attachment(self) -> Attachment:
        """The SAE that the plain steering routes act on.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        attachments = self.attachments()
        if not attachments:
            raise Refusal("SAE_NOT_ATTACHED", "no SAE is attached")
        return attachments[0]

    def attachments(self) -> list[Attachment]:
        return list(self.resident.attachments.values()) if self.resident else []

    def view(self, lease_id: str | None = None) -> View:
        """The slot as one sees it who sent this lease id, if any."""
        resident, coming = self.resident, self._slot.next
        kept_for = self.restoring.locked()
        if resident is None:
            return View(kept_for=kept_for)
        return View(
            resident.phase,
            resident.row.id,
            resident.row.name,
            resident.is_locked,
            coming.row.id if coming is not None else None,
            self.leases.live(),
            self.leases.is_held_by(lease_id),
            kept_for,
        )

    def has(self, model_id: int) -> bool:
        """Whether a model is in the slot, or on its way into it."""
        return self._slot.coming(model_id) is not None

    @contextmanager
    def kept_out(self, model_id: int) -> Iterator[None]:
        """While open, no load of this model begins: it is being deleted."""
        self._kept_out.add(model_id)
        try:
            yield
        finally:
            self._kept_out.discard(model_id)

    # ------------------------------------------------------------- using the model

    @asynccontextmanager
    async def use(
        self, row: ModelRow, *, may_load: bool = True, lease: str | None = None
    ) -> AsyncIterator[Resident]:
        """The named model, loaded if need be and allowed, and kept until the block ends. `lease` is the id that the
        request carries: it lifts that lease, should a load have to replace the leased model.

        Raises:
            Refusal: what `rules/residency.may_serve` or the load refuses.
        """
        await self._open.wait()

        def step() -> Step:
            return residency.may_serve(self.view(lease), row.id, row.name, may_load=may_load)

        if step() is Step.LOAD:
            prepared = await self._prepared(row)
            # the world may have moved on during the check
            if step() is Step.LOAD:
                self._begin_load(prepared)
        self.leases.note_ignored(lease)
        # a load begun here may first have to unload: then the slot still shows the model that leaves
        resident = self._slot.coming(row.id)
        if resident is None:
            raise residency.busy(self.view())
        resident.hold()
        try:
            await asyncio.shield(resident.ready)
            yield resident
        finally:
            resident.let_go()

    async def load(
        self, row: ModelRow, lease: str | None = None, gpu: Wanted = ANYWHERE
    ) -> Resident:
        """Accept a load of the management surface; `ready` of the answer is done when it is over.

        Raises:
            Refusal: before anything is touched.
        """
        residency.may_load(self.view(lease), row.id)
        prepared = await self._prepared(row, gpu)
        residency.may_load(self.view(lease), row.id)
        self.leases.note_ignored(lease)
        self.restoring.keep_only(row.id)
        return self._begin_load(prepared)

    async def unload(self, model_id: int, lease: str | None = None) -> None:
        """Unload the resident model; returns when its memory is back.

        Raises:
            Refusal: MODEL_BUSY, MODEL_NOT_LOADED, MODEL_LEASED.
        """
        residency.may_unload(self.view(lease), model_id)
        self.leases.note_ignored(lease)
        leaving = self._occupant(self.loaded())
        leaving.leave()
        await asyncio.shield(self._spawn(self._leave(leaving)))

    def lease(self, row: ModelRow, terms: Terms) -> Granted:
        """Lease the resident model.

        Raises:
            Refusal: MODEL_BUSY, MODEL_NOT_RESIDENT, MODEL_LEASED.
        """
        residency.may_lease(self.view(), row.id, row.name)
        return self.leases.grant(row.id, row.name, terms)

    def lock(self, model_id: int) -> None:
        """Raises:
        Refusal: MODEL_LOCKED, MODEL_NOT_LOADED.
        """
        residency.may_lock(self.view(), model_id)
        self._occupant(self.loaded()).lock()

    def unlock(self, model_id: int) -> None:
        """Unlock the model, also for when a crash is over; one that is not locked stays so."""
        self.restoring.unlock(model_id)
        occupant = self._slot.resident
        if occupant is not None and occupant.row.id == model_id:
            occupant.unlock()

    def exchange(
        self, resident: Resident, old: Sequence[Attachment], new: Sequence[Attachment]
    ) -> None:
        """Put the SAEs `new`, which the engine has, in the place of `old`, which it has no longer.

        Raises:
            Refusal: MODEL_NOT_LOADED when the model went away meanwhile.
        """
        self._occupant(resident).exchange(old, new)

    async def close(self) -> None:
        """End the engine, whatever it does; no process is left behind."""
        occupant = self._slot.resident
        self.leases.restart()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for waited in (occupant, self._slot.next):
            if waited is not None and not waited.ready.done():
                waited.ready.set_exception(_shutting_down())
        if occupant is not None and occupant.engine is not None:
            occupant.leave()
            await occupant.engine.stop(_shutting_down())
            await self.records.model(occupant, Event.UNLOADED)

    # ------------------------------------------------------------- loading

    async def _prepared(self, row: ModelRow, gpu: Wanted = ANYWHERE) -> Prepared:
        """The load, checked against the memory there is and what the resident model gives back."""
        if self.is_closing:
            raise _shutting_down()
        found = await loading.prepare(row, gpu, self.resident, self._launcher, self._settings)
        await self._catalog.model(row.id)
        if row.id in self._kept_out:
            raise Refusal("MODEL_NOT_FOUND", "the model is being deleted", model_id=row.id)
        return found

    def _occupant(self, resident: Resident) -> Occupant:
        """The model that is in the slot, as this room writes it.

        Raises:
            Refusal: MODEL_NOT_LOADED when it is not in the slot any more, or its engine ended.
        """
        occupant = self._slot.resident
        engine = resident.engine
        if occupant is not resident or occupant is None or engine is None or engine.ended.done():
            raise Refusal("MODEL_NOT_LOADED", "the model went away meanwhile")
        return occupant

    def _begin_load(self, prepared: Prepared) -> Occupant:
        coming = Occupant(prepared.row)
        # nobody may be waiting for it: its failure is in the record and in an event
        coming.ready.add_done_callback(lambda done: done.cancelled() or done.exception())
        leaving = self._slot.enter(coming)
        if leaving is not None:
            leaving.leave()
        self._spawn(self._swap(leaving, coming, prepared))
        return coming

    async def _swap(self, leaving: Occupant | None, coming: Occupant, prepared: Prepared) -> None:
        try:
            await self.records.model(coming, Event.LOAD_BEGAN, error_message=None)
            if leaving is not None:
                await self._leave(leaving)
            await self._fill(coming, prepared, has_unloaded=leaving is not None)
        except asyncio.CancelledError:
            if not coming.ready.done():
                coming.ready.set_exception(_shutting_down())
            if coming.engine is not None:
                await coming.engine.stop()
            await self.records.model(coming, Event.LOAD_ABANDONED)
            raise
        except Exception as error:
            log.exception("load_failed", model=coming.row.name)
            is_still_there = leaving is not None and self.resident is leaving
            has_unloaded = leaving is not None and not is_still_there
            await self._fail(coming, loading.as_refusal(error, has_unloaded=has_unloaded))
            if is_still_there:
                assert leaving is not None
                self._stay(leaving)

    def _stay(self, resident: Occupant) -> None:
        """The load that was to replace this model failed before it was unloaded: it serves on."""
        resident.stay()
        if resident.engine is not None and resident.engine.ended.done():
            self._on_engine_end(resident)

    async def _fill(self, coming: Occupant, prepared: Prepared, *, has_unloaded: bool) -> None:
        """Load the model, and make it the one that serves: with what it had, where its engine had ended by itself."""
        try:
            facts = await loading.fill(coming, prepared, self._launcher, self._settings, self._bus)
            async with self.editing:
                await self._serve(coming, facts)
        except (Refusal, TimeoutError) as error:
            await self._fail(coming, loading.as_refusal(error, has_unloaded=has_unloaded))

    async def _serve(self, coming: Occupant, facts: Loaded) -> None:
        """Raises:
        Refusal: what could not be put back, or MODEL_LOAD_FAILED when the engine ended meanwhile.
        TimeoutError: when that took longer than LOAD_TIMEOUT.
        """
        engine = coming.held()

        def take_over(is_locked: bool) -> None:
            if engine.ended.done():
                raise Refusal("MODEL_LOAD_FAILED", engine.ended.result())
            # nobody is served before `ready`; the values can be set from here on
            coming.serve(attached, is_locked=is_locked)

        async with asyncio.timeout(self._settings.load_timeout):
            attached = await self.restoring.attach(coming, engine)
            await self.records.model(
                coming,
                Event.LOADED,
                error_message=None,
                architecture=facts.architecture,
                num_parameters=facts.parameters,
                dtype=facts.dtype,
                supports_embeddings=facts.supports_embeddings,
            )
            await self.restoring.steer(coming, engine, attached, take_over)
        engine.ended.add_done_callback(lambda _: self._on_engine_end(coming))
        for attachment in attached:
            await self.records.sae(attachment.sae_id, "attached")
        coming.ready.set_result(None)
        log.info("model_loaded", model=coming.row.name, memory_mb=facts.memory_mb)
        self._bus.publish(LoadProgress(coming.row.id, "complete", 100.0))
        self._bus.publish(LoadComplete(coming.row.id, facts.memory_mb))
        for attachment in attached:
            self._bus.publish(
                SaeAttached(attachment.sae_id, attachment.layer, attachment.memory_mb)
            )

    async def _fail(self, coming: Occupant, refusal: Refusal) -> None:
        """The load is over and nothing is resident."""
        if coming.engine is not None:
            await coming.engine.stop()
        coming.empty()
        # a model that only lacked memory may be tried again by the next request
        lacked = "INSUFFICIENT_MEMORY" in (refusal.code, refusal.details.get("cause"))
        event = Event.LACKED_MEMORY if lacked else Event.LOAD_FAILED
        await self.records.model(coming, event, error_message=refusal.message)
        self._slot.leave(coming)
        if not coming.ready.done():
            coming.ready.set_exception(refusal)
        log.warning("model_load_failed", model=coming.row.name, reason=refusal.message)
        self._bus.publish(LoadError(coming.row.id, refusal.code, refusal.message))

    async def _leave(self, leaving: Occupant) -> None:
        """Wait for those who hold the model, then end its engine."""
        await leaving.until_unused("unload", self._settings.graceful_unload_timeout)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.graceful_unload_timeout), self.editing:
                pass  # an edit of the attachments under way ends first; a new one is refused by now
        if leaving.engine is not None:
            await leaving.engine.stop(
                Refusal("MODEL_BUSY", "the model was unloaded", unloading=True)
            )
        async with self.editing:
            await self._vacate(leaving, Event.UNLOADED, None)

    async def _vacate(self, leaving: Occupant, event: Event, reason: str | None) -> None:
        """The model is gone: its SAEs, their steering, its lock and its lease with it; then the slot is free."""
        gone = leaving.empty()
        await self.renew([attached.key for attached in gone])
        for attached in gone:
            await self.records.sae(attached.sae_id, "cached")
            self._bus.publish(SaeDetached(attached.sae_id))
        await self.records.model(leaving, event, error_message=reason)
        self.leases.model_unloaded(leaving.row.id)
        self._slot.leave(leaving)
        self._bus.publish(UnloadComplete(leaving.row.id))

    @asynccontextmanager
    async def drained(self, resident: Resident) -> AsyncIterator[None]:
        """While open, no request uses the model; newcomers wait, those in flight are given their time.

        Raises:
            Refusal: MODEL_NOT_LOADED when the model went away meanwhile.
        """
        occupant = self._occupant(resident)
        self._open.clear()
        try:
            await occupant.until_unused("detach", self._settings.graceful_unload_timeout)
            yield
        finally:
            self._open.set()

    def _on_engine_end(self, resident: Occupant) -> None:
        """The engine of a loaded model ended by itself: the model is ready again, with the reason."""
        if resident is not self.resident or resident.phase is not Phase.LOADED:
            return
        reason = resident.held().ended.result()
        self.restoring.remember(resident)
        resident.leave()
        log.error("engine_ended", model=resident.row.name, reason=reason)
        self._spawn(self._clear_away(resident, reason))

    async def _clear_away(self, resident: Occupant, reason: str) -> None:
        """An edit of the attachments under way ends first: it finds the engine gone."""
        async with self.editing:
            await self._vacate(resident, Event.ENGINE_ENDED, reason)

    def _spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _switch_only(_gone: Sequence[str], switch: Switch | None = None) -> None:
    """Until the composition root says who keeps steering values."""
    if switch is not None:
        switch()


def _shutting_down() -> Refusal:
    return Refusal("SHUTTING_DOWN", "the service is shutting down")
