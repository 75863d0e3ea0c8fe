"""The model in the one slot, as this room writes it. Only the methods of `Occupant` change its fields, and only this room
calls the methods that do; everybody else sees a `Resident`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog

from steerserve.control.residency.resident import Attachment
from steerserve.engine.wire.engine import Engine
from steerserve.engine.wire.messages import Loaded
from steerserve.errors import Refusal
from steerserve.rules.residency import Phase
from steerserve.store.catalog import ModelRow

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class Occupant:
    """A model in the slot: it is loading, then loaded, then unloading, and never goes back, except that a model whose
    successor failed to load before this one was touched is loaded again."""

    row: ModelRow
    phase: Phase = Phase.LOADING
    engine: Engine | None = None
    facts: Loaded | None = None
    loaded_at: datetime | None = None
    placement: dict[str, Any] | None = None
    is_locked: bool = False
    attachments: dict[str, Attachment] = field(default_factory=dict)
    ready: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    users: int = 0
    unused: asyncio.Event = field(default_factory=asyncio.Event)

    # ------------------------------------------------------------- reading

    def held(self) -> Engine:
        """The engine, for one who holds the model: it serves until it is ended, also while an unload waits."""
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

    # ------------------------------------------------------------- its life

    def start(self, engine: Engine) -> None:
        """An engine was started to load the model."""
        self.engine = engine

    def fill(self, facts: Loaded, placement: dict[str, Any], at: datetime) -> None:
        """The engine has loaded the model."""
        self.facts, self.placement, self.loaded_at = facts, placement, at

    def serve(self, attached: Sequence[Attachment] = (), *, is_locked: bool = False) -> None:
        """The model is loaded, with the SAEs and the lock that it comes back with."""
        self.attachments.update({attachment.key: attachment for attachment in attached})
        self.is_locked = is_locked
        self.phase = Phase.LOADED

    def leave(self) -> None:
        """The model is being unloaded from now on."""
        self.phase = Phase.UNLOADING

    def stay(self) -> None:
        """The unload is called off before it began."""
        self.phase = Phase.LOADED

    def empty(self) -> list[Attachment]:
        """The engine is gone, and with it the SAEs and the lock; the SAEs that were attached."""
        gone = list(self.attachments.values())
        self.attachments.clear()
        self.is_locked = False
        return gone

    def note(self, row: ModelRow) -> None:
        """The record of the model was written."""
        self.row = row

    # ------------------------------------------------------------- SAEs and the lock

    def exchange(self, old: Sequence[Attachment], new: Sequence[Attachment]) -> None:
        """Put `new` in the place of `old`. The model is locked while any SAE is attached."""
        for attachment in old:
            self.attachments.pop(attachment.key, None)
        self.attachments.update({attachment.key: attachment for attachment in new})
        self.is_locked = bool(self.attachments)

    def lock(self) -> None:
        self.is_locked = True

    def unlock(self) -> None:
        self.is_locked = False

    # ------------------------------------------------------------- who uses it

    def hold(self) -> None:
        """Somebody uses the model; an unload waits for its `let_go`."""
        self.users += 1
        self.unused.clear()

    def let_go(self) -> None:
        self.users -= 1
        if not self.users:
            self.unused.set()

    async def until_unused(self, operation: str, seconds: float) -> None:
        """Wait for everybody who uses the model, at most so long; `operation` names the operation that waits, for the log."""
        if not self.users:
            return
        try:
            async with asyncio.timeout(seconds):
                await self.unused.wait()
        except TimeoutError:
            log.warning(f"{operation}_before_requests_ended", requests=self.users)
