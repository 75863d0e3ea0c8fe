"""The road of every generating `/v1` request: resolve the model, a place in the room, the model, a slot, the stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from steerserve.control.conductor import Conductor
from steerserve.control.queue import Queue
from steerserve.control.resident import Resident
from steerserve.engine import messages as m
from steerserve.errors import Refusal
from steerserve.rules import naming
from steerserve.rules.intent import Generate
from steerserve.settings import Settings
from steerserve.store.catalog import Catalog, ModelRow

Piece = m.Piece
Started = m.Started


@dataclass(frozen=True, slots=True)
class Run:
    """One request being answered. `events` begins with Started; every check has passed once that came."""

    model_name: str
    fingerprint: str
    events: AsyncIterator[Started | Piece]


class _Flow:
    """What passes from the task that holds the slot to the one that answers the client."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[Resident | Started | Piece | Exception | None] = asyncio.Queue()

    def admit(self, resident: Resident) -> None:
        self._items.put_nowait(resident)

    def put(self, item: Started | Piece | Exception | None) -> None:
        self._items.put_nowait(item)

    async def admitted(self) -> Resident:
        """The model that serves, once there is a slot."""
        first = await self._items.get()
        if isinstance(first, Exception):
            raise first
        assert isinstance(first, Resident)
        return first

    async def events(self) -> AsyncIterator[Started | Piece]:
        while (item := await self._items.get()) is not None:
            if isinstance(item, Exception):
                raise item
            assert isinstance(item, Started | Piece)
            yield item


class Generation:
    """Admits requests and streams their events."""

    def __init__(
        self, settings: Settings, catalog: Catalog, conductor: Conductor, queue: Queue
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._conductor = conductor
        self._queue = queue
        self.is_closing = False
        self.active = 0

    async def models(self) -> list[ModelRow]:
        """The models that `/v1` lists; only the locked one while one is locked."""
        rows = [row for row in await self._catalog.models() if row.status in naming.SERVEABLE]
        view = self._conductor.view()
        return [row for row in rows if row.id == view.model_id] if view.is_locked else rows

    async def resolve(self, name: str) -> ModelRow:
        """Raises:
        Refusal: MODEL_NOT_FOUND, AMBIGUOUS_MODEL_NAME; MODEL_LOAD_FAILED when its last load failed.
        """
        rows = await self._catalog.models()
        for row in rows:
            if row.name == name and row.status == "error":
                raise Refusal(
                    "MODEL_LOAD_FAILED",
                    f"the last load of {name!r} failed: {row.error_message}; load it again over /api/models",
                )
        named = naming.resolve(
            name, (naming.Named(r.id, r.name, r.quantization, r.status) for r in rows)
        )
        return next(row for row in rows if row.id == named.id)

    @asynccontextmanager
    async def open(self, intent: Generate) -> AsyncIterator[Run]:
        """The request, running; leaving the block early cancels it, also while it waits.

        The slot is given back when the engine is done, however slowly the client reads.

        Raises:
            Refusal: every reason not to serve it; the engine's own come with the first event.
        """
        if self.is_closing:
            raise Refusal("SHUTTING_DOWN", "the service is shutting down")
        row = await self.resolve(intent.model)
        self.active += 1
        flow = _Flow()
        pump = asyncio.create_task(self._pump(intent, row, flow))
        try:
            resident = await flow.admitted()
            yield Run(row.name, fingerprint(resident), flow.events())
        finally:
            self.active -= 1
            pump.cancel()
            await asyncio.wait([pump])

    async def _pump(self, intent: Generate, row: ModelRow, flow: _Flow) -> None:
        try:
            async with self._queue.room(), self._conductor.use(row) as resident, self._queue.slot():
                flow.admit(resident)
                stream = resident.held().generate(
                    _prompts(intent), intent.n, self._sampling(intent), m.Follow()
                )
                async with aclosing(stream) as events:
                    async for event in events:
                        flow.put(event)
            flow.put(None)
        except Exception as error:
            # whatever ends the request is raised where its events are read
            flow.put(error)

    def _sampling(self, intent: Generate) -> m.Sampling:
        wanted = intent.sampling
        return m.Sampling(
            temperature=wanted.temperature,
            top_p=wanted.top_p,
            repetition_penalty=wanted.repetition_penalty,
            max_tokens=wanted.max_tokens,
            default_max_tokens=self._settings.default_max_tokens,
            stops=list(wanted.stops),
            seed=wanted.seed,
        )


def fingerprint(resident: Resident) -> str:
    """`service:<model>@<revision>:<dtype>/<quantization>:<engine>`; what is not known is `unrecorded`."""
    row, facts = resident.row, resident.facts
    revision = row.revision or "unrecorded"
    dtype = facts.dtype if facts else "unrecorded"
    return f"service:{row.name}@{revision}:{dtype}/{row.quantization}:transformers"


def _prompts(intent: Generate) -> list[m.Text | m.Chat]:
    return [
        m.Text(prompt) if isinstance(prompt, str) else m.Chat([dict(message) for message in prompt])
        for prompt in intent.prompts
    ]
