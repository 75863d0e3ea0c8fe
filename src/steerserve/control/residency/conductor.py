"""What may be done with the one slot, now: use its model, load, unload, lease, lock, exchange its SAEs.

Each decision is made without waiting, by asking `rules/residency/swap`, and is then a message to the owner of the slot
(`slot.py`) in the same step. A request that uses the model holds it, and an unload waits for everybody who holds the
model.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

import structlog

from steerserve.control.bus import Bus
from steerserve.control.residency import inbox, loading
from steerserve.control.residency.engines import Engines
from steerserve.control.residency.leases import Granted, Leases, Seconds
from steerserve.control.residency.loading import ANYWHERE, Prepared
from steerserve.control.residency.occupant import Occupant
from steerserve.control.residency.reattaching import Reattaching
from steerserve.control.residency.records import Records
from steerserve.control.residency.resident import Attachment, Resident
from steerserve.control.residency.restoring import Restoring
from steerserve.control.residency.slot import Slot, shutting_down
from steerserve.control.residency.work import Work
from steerserve.database.catalog import Catalog, Clock, ModelRow
from steerserve.errors import Refusal
from steerserve.messages import Loaded
from steerserve.rules.residency import swap
from steerserve.rules.residency.lease import Terms
from steerserve.rules.residency.lock import Lock, LockedBy
from steerserve.rules.residency.placement import GpuRequest
from steerserve.rules.residency.swap import Phase, Step, UnloadStep, View
from steerserve.settings import Settings

log = structlog.get_logger("steerserve.changes")


class Conductor:
    """Owner of the resident slot."""

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        launcher: Engines,
        bus: Bus,
        now: Clock,
        seconds: Seconds,
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._launcher = launcher
        self.leases = Leases(settings, bus, now, seconds)
        self.records = Records(catalog)
        self.restoring = Restoring()
        # registered first, so that every later owner finds the SAEs attached
        self.reattaching = Reattaching(catalog, self.restoring)
        # held while the attachments are edited; an unload takes it before it ends the engine
        self.editing = asyncio.Lock()
        work = Work(settings, launcher, bus, self.records, self.restoring, self.editing)
        self._slot = Slot(work, self.leases)
        self._kept_out: set[int] = set()
        self.is_closing = False

    # ------------------------------------------------------------- reading

    @property
    def resident(self) -> Resident | None:
        """The model in the slot, in any phase."""
        return self._slot.resident

    def loaded(self) -> Resident:
        """The resident model, if it serves.

        Raises:
            Refusal: MODEL_NOT_LOADED, MODEL_BUSY while the model is unloaded.
        """
        resident = self.resident
        if resident is not None and resident.phase is Phase.UNLOADING:
            raise swap.busy(self.view())
        if resident is None or resident.phase is not Phase.LOADED:
            raise swap.not_loaded(self.view())
        return resident

    def facts_of(self, model_id: int) -> Loaded:
        """The facts of a model that is loaded.

        Raises:
            Refusal: MODEL_NOT_LOADED.
        """
        resident = self.resident
        if resident is None or resident.row.id != model_id or resident.facts is None:
            raise swap.not_resident(self.view())
        return resident.facts

    def first_attachment(self) -> Attachment:
        """The SAE that the plain steering routes act on.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        attachments = self.attachments()
        if not attachments:
            raise swap.no_sae(self.view())
        return attachments[0]

    def attachments(self) -> list[Attachment]:
        return list(self.resident.attachments.values()) if self.resident else []

    def view(self, lease_id: str | None = None) -> View:
        """The slot as the rules see it, for a request that carries this lease id."""
        occupant, coming = self._slot.resident, self._slot.next
        lock = self._waiting_lock()
        if occupant is None:
            return View(lock=lock, engine_end=self._slot.engine_end)
        return View(
            occupant.phase,
            occupant.row.id,
            occupant.row.name,
            occupant.lock_state or lock,
            coming.row.id if coming is not None and coming.phase is Phase.LOADING else None,
            self.leases.live(),
            self.leases.is_held_by(lease_id),
        )

    @property
    def is_changing(self) -> bool:
        """Whether a load or an unload is under way."""
        return self._slot.is_changing

    def has(self, model_id: int) -> bool:
        """Whether a model is in the slot, or on its way into it."""
        return self._slot.coming(model_id) is not None

    @contextmanager
    def kept_out(self, model_id: int) -> Iterator[None]:
        """No load of this model begins inside the block. Used while the model is deleted."""
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
        """The named model, which stays in the slot until the block ends. It is loaded first if that is needed and
        allowed. `lease` is the lease id of the request: with it, a load may replace the model that this lease protects.

        Raises:
            Refusal: what `rules/residency/swap.may_serve` or the load refuses.
        """

        def step() -> Step:
            return swap.may_serve(self.view(lease), row.id, row.name, may_load=may_load)

        if step() is Step.LOAD:
            prepared = await self._prepared(row)
            # the slot may have changed during the check of the memory
            if step() is Step.LOAD:
                former = self.resident
                self._slot.send(inbox.Load(Occupant(prepared.row), prepared))
                _log_load(row, former)
        self.leases.note_ignored(lease)
        # while the load first unloads another model, the slot still shows that other model
        resident = self._slot.coming(row.id)
        if resident is None:
            raise swap.busy(self.view())
        resident.hold()
        try:
            await asyncio.shield(resident.ready)
            yield resident
        finally:
            resident.let_go()

    @asynccontextmanager
    async def in_flight(self, resident: Resident) -> AsyncIterator[None]:
        """A request that holds the model and a slot runs inside the block. The block begins when no SAE is being
        exchanged, so the request sees the SAEs and the steering after the exchange.

        Raises:
            Refusal: the engine has ended while the request waited, so its SAEs and their steering are gone.
        """
        assert isinstance(resident, Occupant)
        await self._slot.may_run.wait()
        resident.held().must_run()
        resident.begin_request()
        try:
            yield
        finally:
            resident.end_request()

    def check_load(self, model_id: int, lease: str | None = None) -> None:
        """Whether the slot admits a load of the management surface now. The files of the model are not looked at.

        Raises:
            Refusal: MODEL_BUSY, MODEL_ALREADY_LOADED, MODEL_LEASED.
        """
        swap.may_load(self.view(lease), model_id)

    async def load(
        self, row: ModelRow, lease: str | None = None, gpu: GpuRequest = ANYWHERE
    ) -> Resident:
        """Accept a load of the management surface, and write it into the record. `ready` of the returned model is done
        when the load is over.

        Raises:
            Refusal: whatever refuses the load; nothing has changed then.
        """
        self.check_load(row.id, lease)
        prepared = await self._prepared(row, gpu)
        self.check_load(row.id, lease)
        self.leases.note_ignored(lease)
        self.restoring.keep_only(row.id)
        coming = Occupant(prepared.row)
        self._slot.send(inbox.Load(coming, prepared))
        await coming.recorded.wait()
        return coming

    async def unload(self, model_id: int, lease: str | None = None) -> None:
        """Unload the resident model, or end its load. Return when its memory is free.

        Raises:
            Refusal: MODEL_BUSY, MODEL_NOT_LOADED, MODEL_LEASED.
        """
        step = swap.may_unload(self.view(lease), model_id)
        self.leases.note_ignored(lease)
        if step is UnloadStep.END_LOAD:
            await self.end_load(model_id)
            return
        leaving = self._occupant(self.loaded())
        self._slot.send(inbox.Unload(leaving))
        await leaving.gone.wait()

    async def end_load(self, model_id: int) -> None:
        """End the load of this model, if one is under way, and return when its process is gone. Without such a load
        nothing happens."""
        coming = self._slot.coming(model_id)
        if coming is None:
            return
        if swap.is_loading(self.view(), model_id):
            self._slot.send(inbox.EndLoad(coming))
        if coming.phase is Phase.UNLOADING and not coming.ready.done():
            await coming.gone.wait()

    async def settled(self) -> None:
        """Return when no load and no unload is under way."""
        await self._slot.settled.wait()

    def note(self, row: ModelRow) -> None:
        """The record of a model was written by somebody else. The resident model shows the record as it is then."""
        for occupant in (self._slot.resident, self._slot.next):
            if occupant is not None and occupant.row.id == row.id:
                occupant.note(row)

    def lease(self, row: ModelRow, terms: Terms) -> Granted:
        """Lease the resident model.

        Raises:
            Refusal: MODEL_BUSY, MODEL_NOT_RESIDENT, MODEL_LEASED.
        """
        swap.may_lease(self.view(), row.id, row.name)
        return self.leases.grant(row.id, row.name, terms)

    def lock(self, model_id: int) -> None:
        """Lock the loaded model on an operator's word.

        Raises:
            Refusal: MODEL_BUSY, MODEL_LOCKED, MODEL_NOT_LOADED.
        """
        swap.may_lock(self.view(), model_id)
        self._slot.send(inbox.SetLock(self._occupant(self.loaded()), LockedBy.OPERATOR))

    def unlock(self, model_id: int) -> None:
        """Unlock the model. If its engine crashed, it comes back unlocked. A model that is not locked stays as it
        is."""
        self.restoring.unlock(model_id)
        occupant = self._slot.resident
        if occupant is not None and occupant.row.id == model_id:
            self._slot.send(inbox.SetLock(occupant, None))

    async def exchange(
        self, resident: Resident, old: Sequence[Attachment], new: Sequence[Attachment]
    ) -> None:
        """Put the SAEs `new`, which the engine has, in the place of `old`, in one step with the states that other
        owners keep of them. `old` is detached once the requests in flight have ended, within GRACEFUL_UNLOAD_TIMEOUT
        seconds; new requests, and requests that wait for a slot, run after the exchange. The caller holds `editing`.

        Raises:
            Refusal: MODEL_NOT_LOADED when the model went away meanwhile, or what the engine refuses.
        """
        keys = [attachment.key for attachment in old]
        try:
            if old:
                occupant = self._occupant(resident)
                self._slot.send(inbox.HoldRequests(True))
                await occupant.until_idle(self._settings.graceful_unload_timeout)
            engine, _ = resident.running()
            if old:
                await engine.change(lambda state: state.detached(*keys))
            async with self.restoring.parting(keys) as switch:
                self._slot.send(inbox.Exchange(self._occupant(resident), old, new, switch))
        finally:
            self._slot.send(inbox.HoldRequests(False))

    async def close(self) -> None:
        """End the engine, also during a load or a request. No process is left."""
        self.leases.restart()
        self._slot.send(inbox.Close())
        assert self._slot.closed is not None
        await asyncio.shield(self._slot.closed)
        await self.records.close()

    # ------------------------------------------------------------- inside

    async def _prepared(self, row: ModelRow, gpu: GpuRequest = ANYWHERE) -> Prepared:
        """The load, checked against the free memory and the memory that the resident model gives back."""
        if self.is_closing:
            raise shutting_down()
        prepared = await loading.prepare(row, gpu, self.resident, self._launcher, self._settings)
        await self._catalog.model(row.id)
        # a load that begins after the end of everything would leave an engine
        if self.is_closing:
            raise shutting_down()
        if row.id in self._kept_out:
            raise Refusal("MODEL_NOT_FOUND", "the model is being deleted", model_id=row.id)
        return prepared

    def _waiting_lock(self) -> Lock | None:
        """The lock of a model whose engine ended by itself, with the SAEs that will be attached to the model again."""
        lock = self.restoring.lock()
        if lock is None:
            return None
        attached = (a for a in self.reattaching.pending() if a.order.model_id == lock.model_id)
        return replace(lock, sae_ids=tuple(dict.fromkeys(a.sae_id for a in attached)))

    def _occupant(self, resident: Resident) -> Occupant:
        """The resident model as an `Occupant`, which this room may write.

        Raises:
            Refusal: MODEL_NOT_LOADED when the model has left the slot, or its engine has ended.
        """
        occupant = self._slot.resident
        engine = resident.engine
        if occupant is not resident or occupant is None or engine is None or engine.ended.done():
            raise Refusal("MODEL_NOT_LOADED", "the model went away meanwhile")
        return occupant


def _log_load(row: ModelRow, former: Resident | None) -> None:
    """The line of a load that a request to `/v1` causes. Loads of the management surface have a line as every change
    there has."""
    action = "model_load" if former is None else "model_swap"
    replaced = {} if former is None else {"replaced_id": former.row.id}
    log.info("change", action=action, result="begun", model_id=row.id, **replaced)
