"""The road of every inference request: a place in the waiting room, its model, a slot, the stream of its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace

from msgspec import structs

from steerserve import messages as m
from steerserve.control.inference.asked import (
    SERIAL,
    Asked,
    AskedSteering,
    Fixed,
    choose_backend,
)
from steerserve.control.inference.lookups import Lookups
from steerserve.control.inference.planning import Admitted, Planner
from steerserve.control.inference.queue import Queue
from steerserve.control.metrics import Metrics, Timing
from steerserve.control.models.served import ServedModel
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.events import (
    LoadError,
    ModelLeaving,
    ReplicaChanged,
    RequestsHeld,
    UnloadComplete,
)
from steerserve.control.residency.resident import Resident
from steerserve.control.steering.serving import Serving
from steerserve.database.catalog import ModelRow
from steerserve.engines.sandbox.pool import LineFull
from steerserve.errors import Refusal
from steerserve.messages.mailbox import Mailbox
from steerserve.nouns.circuit_sensing.owner import CircuitSensing
from steerserve.nouns.cluster_sensing.owner import ClusterSensing
from steerserve.nouns.monitoring.owner import Monitoring
from steerserve.nouns.profiles.owner import Profiles
from steerserve.parts.part import pack
from steerserve.parts.registry import parts
from steerserve.rules import clients
from steerserve.rules.events import Event
from steerserve.rules.inference import names
from steerserve.rules.residency import swap
from steerserve.rules.steering import dial
from steerserve.rules.steering.placing import Largest
from steerserve.rules.steering.request import RequestSteering
from steerserve.settings import Settings


@dataclass(frozen=True, slots=True)
class Run:
    """One request that is being answered. The first of its `events` is Started. After Started no check refuses the
    request any more."""

    model_name: str
    fingerprint: str
    backend: str
    admitted: Admitted
    events: AsyncIterator[m.Started | m.Outcome]


class _Flow:
    """Carries events from the task that holds the slot to the task that answers the client."""

    def __init__(self) -> None:
        self._items = Mailbox[Admitted | m.Started | m.Outcome | Exception | None]()
        self.put = self._items.put

    async def admitted(self) -> Admitted:
        """The request with its model and its plan. Waits until the request has a slot."""
        first = await self._items.next_item()
        if isinstance(first, Exception):
            raise first
        assert isinstance(first, Admitted)
        return first

    async def events(self) -> AsyncIterator[m.Started | m.Outcome]:
        take = self._items.next_item
        while (item := await take()) is not None:
            if isinstance(item, Exception):
                raise item
            assert not isinstance(item, Admitted)
            yield item


class Generation:
    """Admits requests and streams their events."""

    def __init__(
        self,
        settings: Settings,
        conductor: Conductor,
        queue: Queue,
        profiles: Profiles,
        serving: Serving,
        metrics: Metrics,
        monitoring: Monitoring,
        sensing: ClusterSensing,
        circuit_sensing: CircuitSensing,
        lookups: Lookups,
    ) -> None:
        self._settings = settings
        self._conductor = conductor
        self._queue = queue
        self._profiles = profiles
        self._serving = serving
        self._planner = Planner(settings, serving)
        self._metrics = metrics
        self._monitoring = monitoring
        self._sensing = sensing
        self._circuit_sensing = circuit_sensing
        self._edit_parts = lookups.edit_parts
        self._lookups = lookups
        self._batched = Queue(settings.cbm_max_queue_size, 0, settings.queue_duration_window)
        self.is_closing = False
        self.active = 0

    @property
    def is_batching(self) -> bool:
        """Whether requests of the loaded model may run without a slot now."""
        resident = self._conductor.resident
        if resident is None or resident.phase is not swap.Phase.LOADED:
            return False
        may_write = resident.facts is not None and not resident.facts.is_embedding_only
        return may_write and self._fixed(resident.row) is not None

    @property
    def batched_maximum(self) -> int:
        """How many requests may run without a slot."""
        return self._batched.counts().max_concurrent

    def took(self, event: Event) -> None:
        """The slots are those of all replicas that serve. What changes the model waits for no request that yields."""
        if isinstance(event, ModelLeaving | RequestsHeld):
            self._queue.revoke()
        elif isinstance(event, ReplicaChanged):
            self._scale(event.serving)
        elif isinstance(event, UnloadComplete | LoadError):
            self._scale(1)

    def _scale(self, replicas: int) -> None:
        self._queue.scale(replicas)
        self._batched.scale(replicas)

    @asynccontextmanager
    async def open(self, asked: Asked, model: ServedModel) -> AsyncIterator[Run]:
        """The request, once it has a slot. Leaving the block early cancels the request, also while it waits for a slot.

        The slot is free again as soon as the engine has finished, even when the client still reads.

        Raises:
            Refusal: the service refuses the request. The engine's own refusals are raised by the first event.
        """
        if self.is_closing:
            raise Refusal("SHUTTING_DOWN", "the service is shutting down")
        self._metrics.resolved(model.name)
        row, profile = model.row, None
        look = replace(self._lookups, client=asked.client)
        if asked.steering is not None:
            profile = await self._named(asked.steering)
            asked = replace(
                asked,
                steering=await _change_edits(asked.steering, self._edit_parts.with_vectors),
                parts={
                    name: await parts()[name].resolve(one, look)
                    for name, one in asked.parts.items()
                },
            )
        if not any(parts()[name].has_slow_check(one, look) for name, one in asked.parts.items()):
            # these refusals come before QUEUE_FULL, because waiting does not change them
            view = self._conductor.view(asked.lease)
            swap.may_serve(view, row.id, row.name, may_load=asked.may_load)
        self.active += 1
        yields = clients.is_in_background(asked.client)
        backend = choose_backend(asked, None if yields else self._fixed(row))
        flow, timing = _Flow(), self._metrics.request()
        pump = asyncio.create_task(self._pump(asked, row, profile, backend, look, flow, timing))
        try:
            admitted = await flow.admitted()
            mark = fingerprint(admitted.resident)
            yield Run(model.name, mark, backend, admitted, flow.events())
        finally:
            self.active -= 1
            pump.cancel()
            await asyncio.wait([pump])

    # ------------------------------------------------------------- inside

    async def _with_sources(
        self, asked: Asked, profile: dial.Profile | None, resident: Resident
    ) -> tuple[Asked, dial.Profile | None]:
        """The request and its profile with the values that their edits read in other texts."""

        async def read(own: RequestSteering) -> RequestSteering:
            return await self._edit_parts.with_sources(own, resident, asked.client)

        steering = asked.steering
        if steering is not None:
            steering = await _change_edits(steering, read)
        if profile is not None and profile.edits is not None:
            edits = replace(profile.edits, own=await read(profile.edits.own))
            profile = replace(profile, edits=edits)
        return replace(asked, steering=steering), profile

    def _fixed(self, row: ModelRow) -> Fixed | None:
        """The sampling parameters of the requests for this model that run without a slot; None where every request
        takes a slot."""
        settings = self._settings
        if not settings.enable_continuous_batching or row.engine != names.CHECKPOINT:
            return None
        is_monitored = settings.cbm_force_serial_monitoring and self._monitoring.key() is not None
        is_sensed = settings.sensing_force_serial and self._sensing.is_armed
        is_traced = settings.circuit_sensing_force_serial and self._circuit_sensing.armed_count > 0
        if is_monitored or is_sensed or is_traced:
            return None
        return Fixed(settings.cbm_default_temperature, settings.cbm_default_top_p)

    async def _named(self, steering: AskedSteering) -> dial.Profile | None:
        """The profile that a request names. None where it names none, and where the profile is unknown and the
        request's intensity is 0.

        Raises:
            Refusal: PROFILE_NOT_FOUND.
        """
        if steering.profile is None:
            return None
        try:
            row = await self._profiles.named(steering.profile)
        except Refusal:
            if steering.intensity == 0.0:
                return None
            raise
        return await self._serving.applicable(row)

    async def _run_slow_checks(self, asked: Asked, look: Lookups) -> None:
        """Run the checks of parts that take long, for a request that has a place in the waiting room.

        Raises:
            Refusal: those of the parts; QUEUE_FULL when too many requests wait for such a check.
        """
        for name, one in asked.parts.items():
            try:
                await parts()[name].run_slow_check(one, look)
            except LineFull:
                raise self._queue.full() from None

    async def _pump(
        self,
        asked: Asked,
        row: ModelRow,
        profile: dial.Profile | None,
        backend: str,
        look: Lookups,
        flow: _Flow,
        timing: Timing,
    ) -> None:
        queue = self._queue if backend == SERIAL else self._batched
        try:
            async with AsyncExitStack() as held:
                use = self._conductor.use(row, may_load=asked.may_load, lease=asked.lease)
                if clients.is_in_background(asked.client):
                    await held.enter_async_context(self._queue.spare(yields=True))
                    await self._run_slow_checks(asked, look)
                    resident = await held.enter_async_context(use)
                else:
                    room = queue.room(asked.client, asked.choices)
                    place = await held.enter_async_context(room)
                    await self._run_slow_checks(asked, look)
                    resident = await held.enter_async_context(use)
                    await held.enter_async_context(queue.slot(place))
                await held.enter_async_context(self._conductor.in_flight(resident))
                timing.admitted()
                asked, profile = await self._with_sources(asked, profile, resident)
                largest: Largest = {}
                if (own := _own(asked)) is not None:
                    attached = list(resident.attachments.values())
                    largest = await self._edit_parts.largest(own, attached)
                admitted = self._planner.admit(asked, profile, resident, largest)
                look = replace(look, admitted=admitted)
                admitted = await _prepared(admitted, look)
                flow.put(admitted)
                stream = self._planner.stream(asked, admitted)
                if admitted.parts:
                    stream = _through_parts(stream, admitted, look)
                async with aclosing(stream) as events:
                    async for event in events:
                        timing.note_event(event)
                        flow.put(event)
            flow.put(None)
        except Exception as error:
            # the task that reads the events raises the error again
            flow.put(error)
        finally:
            timing.ended()


async def _change_edits(
    steering: AskedSteering, change: Callable[[RequestSteering], Awaitable[RequestSteering]]
) -> AskedSteering:
    """The steering with its own edits, and those of its sweep, after a change."""
    if steering.own is not None:
        steering = replace(steering, own=await change(steering.own))
    sweep = steering.sweep
    if sweep is not None and sweep.own is not None:
        steering = replace(steering, sweep=replace(sweep, own=await change(sweep.own)))
    return steering


async def _prepared(admitted: Admitted, look: Lookups) -> Admitted:
    """The request with what the answers of its parts need.

    Raises:
        Refusal: those of the parts.
    """
    prepared = {
        name: await parts()[name].prepare(planned, look) for name, planned in admitted.parts.items()
    }
    return replace(admitted, parts=prepared)


async def _through_parts(
    stream: AsyncGenerator[m.Started | m.Outcome, None], admitted: Admitted, look: Lookups
) -> AsyncGenerator[m.Started | m.Outcome, None]:
    """The events of the stream. Parts change what their rows gave into what the answer has (`Part.change`), and check
    the text of a choice that has ended by itself before its last event is passed on.

    Raises:
        Refusal: a part refuses a text.
    """
    known = parts()
    checking = [name for name in admitted.parts if known[name].checks_text]
    texts: dict[int, str] = {}
    async with aclosing(stream) as events:
        async for event in events:
            if checking and isinstance(event, m.Piece):
                texts[event.choice] = texts.get(event.choice, "") + event.text
                for name in checking if event.finish == "stop" else ():
                    planned, text = admitted.parts[name], texts[event.choice]
                    await known[name].check_text(planned, event.choice, text, look)
            if isinstance(event, m.Piece | m.Scored) and event.parts:
                told = dict(event.parts)
                for name, planned in admitted.parts.items():
                    part = known[name]
                    chunk = part.read(event.parts)
                    if chunk is not None and (changed := part.change(planned, chunk)) is not chunk:
                        told[name] = pack(changed)
                event = structs.replace(event, parts=told)
            yield event


def _own(asked: Asked) -> RequestSteering | None:
    """The edits that a request brings, for itself or for the sides of a comparison."""
    steering = asked.steering
    if steering is None:
        return None
    return steering.own if steering.sweep is None else steering.sweep.own


def fingerprint(resident: Resident) -> str:
    """`service:<model>@<revision>:<dtype>/<quantization>:<engine>`. An unknown part is written `unrecorded`."""
    row, facts = resident.row, resident.facts
    revision = row.revision or "unrecorded"
    if row.engine == names.GGUF:
        return (
            f"service:{row.name}@{revision}:unrecorded/{row.gguf_label or 'unrecorded'}:llama.cpp"
        )
    dtype = facts.dtype if facts else "unrecorded"
    return f"service:{row.name}@{revision}:{dtype}/{row.quantization}:transformers"
