"""The model in the one slot, as this room writes it. Only the handlers of the slot and the methods of `Occupant` change
its fields; everybody outside of this room sees a `Resident`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import structlog

from steerserve.control.residency.resident import Attachment
from steerserve.database.catalog import ModelRow
from steerserve.errors import Refusal
from steerserve.messages import Loaded
from steerserve.messages.engine import Engine
from steerserve.rules.residency.heartbeat import Silence
from steerserve.rules.residency.lock import Lock, LockedBy
from steerserve.rules.residency.memory_fit import ModelPlacement
from steerserve.rules.residency.swap import Phase

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class Occupant:
    """A model in the slot: it is loading, then loaded, then unloading. It goes back to loaded only where the load of
    its successor failed before this model was touched.

    `given_up` is the reason why its load is given up. `generation` grows then: what was begun before does not count any
    more. `recorded` is set once the record says that the model is loading, or the load ended before that, and `gone`
    once the model has left the slot. `users` counts the requests that hold the model, and `in_flight` counts those of
    them that hold a slot too. `silence` is the silence of the engine at the last look.
    """

    row: ModelRow
    phase: Phase = Phase.LOADING
    engine: Engine | None = None
    facts: Loaded | None = None
    loaded_at: datetime | None = None
    placement: ModelPlacement | None = None
    locked_by: LockedBy | None = None
    attachments: dict[str, Attachment] = field(default_factory=dict)
    generation: int = 0
    given_up: Refusal | None = None
    ready: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    recorded: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    users: int = 0
    unused: asyncio.Event = field(default_factory=asyncio.Event)
    in_flight: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    silence: Silence | None = None

    # ------------------------------------------------------------- reading

    def held(self) -> Engine:
        """The engine, for a request that holds the model. It serves until the unload ends it, also while the unload
        waits."""
        assert self.engine is not None
        return self.engine

    def running(self) -> tuple[Engine, Loaded]:
        """The engine and facts of a loaded model.

        Raises:
            Refusal: MODEL_NOT_LOADED.
        """
        if self.phase is not Phase.LOADED or self.engine is None or self.facts is None:
            raise Refusal("MODEL_NOT_LOADED", "no model is loaded")
        return self.engine, self.facts

    @property
    def is_locked(self) -> bool:
        return self.locked_by is not None

    @property
    def lock_state(self) -> Lock | None:
        """The lock as the rules see it; None while the model is not locked."""
        if self.locked_by is None:
            return None
        sae_ids = tuple(dict.fromkeys(a.sae_id for a in self.attachments.values()))
        return Lock(self.row.id, self.row.name, self.locked_by, sae_ids)

    # ------------------------------------------------------------- its life

    def serve(self, attached: Sequence[Attachment], locked_by: LockedBy | None) -> None:
        """The model serves from now on, with these SAEs and this lock."""
        self.attachments.update({attachment.key: attachment for attachment in attached})
        self.locked_by = locked_by
        self.phase = Phase.LOADED

    def hear(self, silence: Silence) -> None:
        """Note the silence of the engine at a look."""
        self.silence = silence

    def note(self, row: ModelRow) -> None:
        """The record of the model was written."""
        self.row = row

    # ------------------------------------------------------------- SAEs and the lock

    def exchange(self, old: Sequence[Attachment], new: Sequence[Attachment]) -> None:
        """Put `new` in the place of `old`. Attaching an SAE locks the model, and detaching the last one unlocks it; any
        other detach leaves the lock as an operator has set it since."""
        for attachment in old:
            self.attachments.pop(attachment.key, None)
        self.attachments.update({attachment.key: attachment for attachment in new})
        if not self.attachments:
            self.locked_by = None
        elif new and self.locked_by is None:
            self.locked_by = LockedBy.ATTACHED_SAE

    # ------------------------------------------------------------- who uses it

    def hold(self) -> None:
        """Note one more user of the model. An unload waits until every user has called `let_go`."""
        self.users += 1
        self.unused.clear()

    def let_go(self) -> None:
        self.users -= 1
        if not self.users:
            self.unused.set()

    def begin_request(self) -> None:
        """Note one more request in flight. An exchange of SAEs waits until every one has called `end_request`."""
        self.in_flight += 1
        self.idle.clear()

    def end_request(self) -> None:
        self.in_flight -= 1
        if not self.in_flight:
            self.idle.set()

    async def until_unused(self, seconds: float) -> None:
        """Wait until nobody holds the model, at most `seconds`. The wait for an engine that is stalled ends at once."""
        if self.users and not await self._is_set_within(self.unused, seconds):
            log.warning("unload_before_requests_ended", requests=self.users)

    async def until_idle(self, seconds: float) -> None:
        """Wait until no request is in flight, at most `seconds`.

        Raises:
            Refusal: ENGINE_UNAVAILABLE while the engine is stalled.
        """
        if self.in_flight and not await self._is_set_within(self.idle, seconds):
            log.warning("detach_before_requests_ended", requests=self.in_flight)
        if self.engine is not None:
            self.engine.heartbeat.check_not_stalled()

    async def _is_set_within(self, event: asyncio.Event, seconds: float) -> bool:
        """Whether the event is set after at most `seconds`. The wait ends early when the engine stalls."""
        assert self.engine is not None
        waits = {asyncio.ensure_future(e.wait()) for e in (event, self.engine.heartbeat.stalling)}
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return event.is_set()
