"""The owner of the slot: which model is resident, which model is next, and what is under way.

Only the handlers of messages change the slot. A handler never waits. It changes the state in one step, answers the
futures of those who wait, and begins the next work (`work.py`), which reports its end as a message (`inbox.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from steerserve.control.residency import inbox, loading
from steerserve.control.residency.events import (
    LoadComplete,
    LoadError,
    LoadFailure,
    LoadProgress,
    ModelLeaving,
    ReplicaChanged,
    RequestsHeld,
    SaeAttached,
    UnloadComplete,
)
from steerserve.control.residency.inbox import Message, Outcome
from steerserve.control.residency.leases import Leases
from steerserve.control.residency.loading import Prepared
from steerserve.control.residency.occupant import Occupant
from steerserve.control.residency.watching import EngineWatch
from steerserve.control.residency.work import Work
from steerserve.database.catalog import utc_now
from steerserve.errors import Refusal
from steerserve.logs import background
from steerserve.messages import endings
from steerserve.messages.engine import Engine
from steerserve.rules.models import status as model_status
from steerserve.rules.models.status import Event
from steerserve.rules.residency import replicas
from steerserve.rules.residency.heartbeat import Bounds
from steerserve.rules.residency.replicas import ReplicaView
from steerserve.rules.residency.swap import EngineEnd, Phase

log = structlog.get_logger(__name__)


class Slot:
    """Holds the resident model in any phase. `next` is the model for which the resident model is being unloaded.

    `engine_end` says how the engine of the last resident model ended by itself; None once a load has begun since.
    `may_run` is set while requests with a slot of the queue run, and `settled` while no load and no unload is under
    way. `closed` is the task that ends everything.
    """

    def __init__(self, work: Work, leases: Leases) -> None:
        self.resident: Occupant | None = None
        self.next: Occupant | None = None
        self.engine_end: EngineEnd | None = None
        self.may_run, self.settled = asyncio.Event(), asyncio.Event()
        self.may_run.set()
        self.settled.set()
        self.closed: asyncio.Task[None] | None = None
        self._work = work
        self._leases = leases
        self._publish = work.bus.publish
        # of the load that is under way
        self._prepared: Prepared | None = None
        self._is_swap = False
        # the works that run, each with its model; the newest work may have to be carried to its end
        self._works: dict[asyncio.Task[None], Occupant] = {}
        self._is_carried = False
        self._inbox: deque[Message] = deque()
        self._is_handling = False

    @property
    def is_changing(self) -> bool:
        """Whether a load or an unload is under way."""
        return self.resident is not None and self.resident.phase is not Phase.LOADED

    def coming(self, model_id: int) -> Occupant | None:
        """The occupant of this model id: the next model or the resident one."""
        for candidate in (self.next, self.resident):
            if candidate is not None and candidate.row.id == model_id:
                return candidate
        return None

    # ------------------------------------------------------------- the inbox

    def send(self, message: Message) -> None:
        """Handle the message at once. A message that is sent inside a handler is handled after this handler."""
        self._inbox.append(message)
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._inbox:
                self._handle(self._inbox.popleft())
        finally:
            self._is_handling = False
        if self.is_changing and self.closed is None:
            self.settled.clear()
        else:
            self.settled.set()

    def _handle(self, message: Message) -> None:
        """Handle one message. What a work reports that was begun for an old generation is dropped."""
        if isinstance(message, Outcome) and message.generation != message.model.generation:
            return
        match message:
            case inbox.Load(coming, prepared):
                self._begin_load(coming, prepared)
            case inbox.EndLoad(coming):
                self._end_load(coming)
            case inbox.Unload(leaving):
                self._send_off(leaving)
                self._begin(leaving, partial(self._work.drain, leaving), self._end_resident)
            case inbox.SetLock(model, by):
                model.locked_by = by
            case inbox.HoldRequests(is_held=True):
                self.may_run.clear()
                self._publish(RequestsHeld())
            case inbox.HoldRequests():
                self.may_run.set()
            case inbox.Exchange(model, old, new, switch):
                model.exchange(old, new)
                switch()
            case inbox.Close():
                self._close()
            case inbox.Launched(coming, engine):
                self._watch_engine(coming, engine)
            case inbox.Filled(coming, _, facts, placement):
                coming.facts, coming.placement, coming.loaded_at = facts, placement, utc_now()
            case inbox.Restored(coming, _, switch):
                switch()
                end = inbox.EngineEnded(coming)
                coming.held().ended.add_done_callback(lambda _: self.send(end))
            case inbox.EngineEnded(model):
                self._clear_away(model)
            case inbox.Done(model, _, then):
                then(model)
            case inbox.Failed(model, _, error):
                self._fail(model, error)

    def _begin(
        self,
        model: Occupant,
        work: Callable[[], Awaitable[None]],
        then: Callable[[Occupant], None],
        *,
        is_carried: bool = False,
    ) -> None:
        """Begin a work for the model, at whose end the handler `then` goes on."""
        generation, self._is_carried = model.generation, is_carried

        async def carry() -> None:
            try:
                await work()
            except Exception as error:
                self.send(inbox.Failed(model, generation, error))
            else:
                self.send(inbox.Done(model, generation, then))

        task = background.start(carry())
        self._works[task] = model
        task.add_done_callback(self._works.pop)

    # ------------------------------------------------------------- coming

    def _begin_load(self, coming: Occupant, prepared: Prepared) -> None:
        """Give the slot to the model. If another model is in the slot, that model is unloaded first."""
        # if nobody waits for the load, its failure is still in the record and in an event
        coming.ready.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._prepared, leaving = prepared, self.resident
        self._is_swap = leaving is not None
        if leaving is None:
            self.resident, self.engine_end = coming, None
        else:
            self.next = coming
            self._send_off(leaving)
        self._begin(coming, partial(self._work.record_load, coming), self._make_room)

    def _make_room(self, coming: Occupant) -> None:
        coming.recorded.set()
        if coming is self.next and self.resident is not None:
            self._begin(coming, partial(self._work.drain, self.resident), self._end_resident)
        else:
            self._launch(coming)

    def _launch(self, coming: Occupant) -> None:
        assert self._prepared is not None
        load = partial(self._work.load, coming, coming.generation, self._prepared, self.send)
        self._begin(coming, load, self._announce)

    def _watch_engine(self, coming: Occupant, engine: Engine) -> None:
        """Keep the engine of a load, also if the load was given up meanwhile: the work that clears the load ends it."""
        engine.on_replicas = partial(self._tell, coming.row.id, engine)
        coming.engine = engine
        settings = self._work.settings
        watch = EngineWatch(coming, Bounds(settings.engine_stall_timeout, settings.load_timeout))
        # the task needs no owner: the engine, for whose end it waits, keeps it alive
        background.start(watch.run(), name="engine-watch")

    def _announce(self, coming: Occupant) -> None:
        """Let the requests run that wait for the load, and tell everybody that the model serves."""
        facts = coming.facts
        assert facts is not None
        coming.ready.set_result(None)
        log.info("model_loaded", model=coming.row.name, memory_mb=facts.memory_mb)
        for warning in facts.warnings:
            log.warning("model_remarkable", model=coming.row.name, reason=warning)
        self._publish(LoadProgress(coming.row.id, "complete", 100.0))
        self._publish(LoadComplete(coming.row.id, facts.memory_mb))
        for sae in coming.attachments.values():
            self._publish(SaeAttached(sae.sae_id, sae.layer, sae.memory_mb))

    # ------------------------------------------------------------- a load without success

    def _end_load(self, coming: Occupant) -> None:
        """End a load on the word of an operator. A work that ends an engine is carried to its end first."""
        coming.phase = Phase.UNLOADING
        if not self._is_carried:
            self._abandon(coming)

    def _abandon(self, coming: Occupant) -> None:
        why = Refusal("MODEL_BUSY", "the load was ended by an operator", unloading=True)
        self._give_up(coming, Event.LOAD_ABANDONED, why)

    def _fail(self, model: Occupant, error: Exception) -> None:
        """Give up the load for which a work has failed. The end of the engine that leaves for a load belongs to that
        load."""
        coming = self.next if model.ready.done() else model
        if coming is None:
            log.error("unload_failed", model=model.row.name, exc_info=error)
            model.held().lose("its model could not be unloaded")
            self._free_slot(model)
            return
        if not isinstance(error, Refusal | TimeoutError):
            log.error("load_failed", model=coming.row.name, exc_info=error)
        if coming.given_up is not None:
            self._refuse_load(coming)
            return
        has_unloaded = self._is_swap and self.resident is coming
        why = loading.as_refusal(error, has_unloaded=has_unloaded)
        log.warning("model_load_failed", model=coming.row.name, reason=why.message)
        event = model_status.after_failed_load(why.details.get("cause", why.code))
        self._give_up(coming, event, why)

    def _give_up(self, coming: Occupant, event: Event, why: Refusal) -> None:
        """Let nothing that was begun for the load count any more, and clear what was made for the load."""
        coming.given_up, coming.generation = why, coming.generation + 1
        cancelled = [task for task, model in self._works.items() if model is coming]
        for task in cancelled:
            task.cancel()
        clear = partial(self._work.clear_load, coming, event, cancelled)
        self._begin(coming, clear, self._refuse_load, is_carried=True)

    def _refuse_load(self, coming: Occupant) -> None:
        """Refuse the requests that wait for the load. If another model was to leave for it and its engine still serves,
        that model stays."""
        why = coming.given_up
        assert why is not None
        self._remove(coming)
        coming.recorded.set()
        coming.ready.set_exception(why)
        self._publish(LoadError(coming.row.id, LoadFailure(why.code, why.message)))
        staying = self.resident
        if staying is not None:
            staying.phase = Phase.LOADED
            if staying.held().ended.done():
                self._clear_away(staying)

    # ------------------------------------------------------------- leaving

    def _send_off(self, leaving: Occupant) -> None:
        leaving.phase = Phase.UNLOADING
        self._publish(ModelLeaving(leaving.row.id))

    def _end_resident(self, _: Occupant) -> None:
        """End the engine of the resident model, for itself or for the next model."""
        leaving = self.resident
        assert leaving is not None
        end = partial(self._work.end_engine, leaving, self.send)
        self._begin(leaving, end, self._free_slot, is_carried=True)

    def _clear_away(self, occupant: Occupant) -> None:
        """Handle an engine that ended by itself while its model was loaded. The record becomes `ready`, with the
        reason."""
        if occupant is not self.resident or occupant.phase is not Phase.LOADED:
            return
        reason = occupant.held().ended.result()
        self._work.restoring.remember(occupant)
        occupant.phase = Phase.UNLOADING
        self.engine_end = EngineEnd(occupant.row.id, occupant.row.name, endings.explained(reason))
        log.error("engine_ended", model=occupant.row.name, reason=reason)
        clear = partial(self._work.clear, occupant, Event.ENGINE_ENDED, reason, self.send)
        self._begin(occupant, clear, self._free_slot, is_carried=True)

    def _free_slot(self, leaving: Occupant) -> None:
        """Free the slot of a model that has left. The next model, if there is one, is loaded then."""
        self._leases.model_unloaded(leaving.row.id)
        self._remove(leaving)
        self._publish(UnloadComplete(leaving.row.id))
        coming = self.resident
        if coming is not None and coming.phase is Phase.LOADING:
            self._launch(coming)
        elif coming is not None:
            self._abandon(coming)

    def _remove(self, occupant: Occupant) -> None:
        """Take a model out of the slot. The next model then becomes the resident model."""
        if self.resident is occupant:
            self.resident, self.next = self.next, None
            if self.resident is not None:
                self.engine_end = None
        elif self.next is occupant:
            self.next = None
        occupant.gone.set()

    def _close(self) -> None:
        """Cancel every work, and end every engine. A second close changes nothing."""
        if self.closed is not None:
            return
        why = shutting_down()
        leaving: list[tuple[Occupant, Event | None]] = []
        for occupant in filter(None, (self.resident, self.next)):
            event = Event.UNLOADED if occupant.ready.done() else Event.LOAD_ABANDONED
            # the record of a model that serves stays as it is: the next start says what the restart ended
            leaving.append((occupant, None if occupant.phase is Phase.LOADED else event))
            occupant.phase = Phase.UNLOADING
            occupant.generation += 1
            occupant.recorded.set()
            occupant.gone.set()
            if not occupant.ready.done():
                occupant.ready.set_exception(why)
        for task in self._works:
            task.cancel()
        self.closed = background.start(self._work.close(leaving, why, list(self._works)))

    # ------------------------------------------------------------- inside

    def _tell(self, model_id: int, engine: Engine, replica: ReplicaView) -> None:
        """Tell that a replica came into another state. The end of the whole engine is told as such."""
        if engine.fleet is None or engine.ended.done():
            return
        views = engine.fleet.replicas()
        wanted, serving = replicas.wanted(views), replicas.serving(views)
        self._publish(ReplicaChanged(model_id, replica, wanted, serving))


def shutting_down() -> Refusal:
    return Refusal("SHUTTING_DOWN", "the service is shutting down")
