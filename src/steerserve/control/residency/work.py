"""The long works of a load and of an unload. A work keeps no state and decides nothing: it waits for the engine, the
requests and the database, and reports to the owner of the slot, which began it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from steerserve.control.bus import Bus
from steerserve.control.residency import loading
from steerserve.control.residency.engines import Engines
from steerserve.control.residency.events import SaeDetached
from steerserve.control.residency.inbox import Exchange, Filled, Launched, Message, Restored
from steerserve.control.residency.loading import Prepared
from steerserve.control.residency.occupant import Occupant
from steerserve.control.residency.records import Records
from steerserve.control.residency.restoring import Restoring
from steerserve.errors import Refusal
from steerserve.rules.models.status import Event
from steerserve.settings import Settings

log = structlog.get_logger(__name__)
Send = Callable[[Message], None]
Tasks = Collection[asyncio.Task[None]]


@dataclass(frozen=True, slots=True)
class Work:
    """The works, and what they need. `editing` is the lock that an edit of the attachments holds too."""

    settings: Settings
    launcher: Engines
    bus: Bus
    records: Records
    restoring: Restoring
    editing: asyncio.Lock

    async def record_load(self, coming: Occupant) -> None:
        await self.records.model(coming, Event.LOAD_BEGAN, error_message=None)

    async def drain(self, leaving: Occupant) -> None:
        """Wait for the requests that hold the model and for a running edit of its attachments, each at most
        GRACEFUL_UNLOAD_TIMEOUT seconds. The model is untouched afterwards."""
        await leaving.until_unused(self.settings.graceful_unload_timeout)
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.graceful_unload_timeout), self.editing:
                pass  # new edits are refused already

    async def end_engine(self, leaving: Occupant, send: Send) -> None:
        """End the engine of the model, and clear what belonged to the engine."""
        why = Refusal("MODEL_BUSY", "the model was unloaded", unloading=True)
        await leaving.held().stop(why)
        await self.clear(leaving, Event.UNLOADED, None, send)

    async def clear(self, leaving: Occupant, event: Event, reason: str | None, send: Send) -> None:
        """Drop the SAEs and the steering of a model whose engine has ended, once a running edit of the attachments has
        ended. That edit fails by itself."""
        async with self.editing:
            gone = list(leaving.attachments.values())
            send(Exchange(leaving, gone, []))
            async with self.restoring.parting([attachment.key for attachment in gone]) as switch:
                switch()
            for attachment in gone:
                await self.records.sae(attachment.sae_id, "cached")
                self.bus.publish(SaeDetached(attachment.sae_id))
            await self.records.model(leaving, event, error_message=reason)

    async def load(self, coming: Occupant, generation: int, prepared: Prepared, send: Send) -> None:
        """Start an engine, load the model into it, and put back the states that a crash took.

        Raises:
            Refusal: whatever refuses the load; a state cannot be put back; MODEL_LOAD_FAILED when the engine ended
                meanwhile.
            TimeoutError: when putting back took longer than LOAD_TIMEOUT.
        """
        self.launcher.barred = prepared.barred
        engine = await self.launcher.launch_resident(prepared.row.engine, prepared.folder)
        send(Launched(coming, engine))
        facts = await loading.fill(engine, prepared, self.settings, self.bus)
        send(Filled(coming, generation, facts, prepared.plan.placement(facts.memory_by_device_mb)))
        async with self.editing:
            async with (
                asyncio.timeout(self.settings.load_timeout),
                self.restoring.putting_back(coming, engine) as switch,
            ):
                await self.records.model(
                    coming,
                    Event.LOADED,
                    error_message=None,
                    architecture=facts.architecture,
                    num_parameters=facts.parameters,
                    dtype=facts.dtype,
                    supports_embeddings=facts.supports_embeddings,
                )
                if engine.ended.done():
                    raise Refusal("MODEL_LOAD_FAILED", engine.ended.result())
                send(Restored(coming, generation, switch))
            for attachment in list(coming.attachments.values()):
                await self.records.sae(attachment.sae_id, "attached")

    async def clear_load(self, coming: Occupant, event: Event, cancelled: Tasks) -> None:
        """Clear what was made for a load that was given up, once its cancelled works have ended."""
        assert coming.given_up is not None
        await _until_ended(cancelled)
        if event is Event.LOAD_ABANDONED:
            log.info("model_load_ended", model=coming.row.name)
        if coming.engine is not None:
            await coming.engine.stop()
        await self.records.model(coming, event, error_message=coming.given_up.message)

    async def close(
        self, leaving: Sequence[tuple[Occupant, Event | None]], why: Refusal, cancelled: Tasks
    ) -> None:
        """End the engines of these models, and write the event of each model into its record, if it has one."""
        await _until_ended(cancelled)
        for occupant, event in leaving:
            if occupant.engine is not None:
                await occupant.engine.stop(why)
            if event is not None:
                await self.records.model(occupant, event)


async def _until_ended(tasks: Tasks) -> None:
    if tasks:
        await asyncio.wait(tasks)
