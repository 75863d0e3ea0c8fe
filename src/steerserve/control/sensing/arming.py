"""What the engine senses now, for one owner. After a crash, the next engine senses the same before it serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import structlog

from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.engine_state import EngineState, Return, unchanged
from steerserve.control.residency.resident import Attachment, Resident, Switch
from steerserve.errors import Refusal
from steerserve.messages.carried import carry_edit
from steerserve.messages.engine import Engine

log = structlog.get_logger(__name__)

Message = TypeVar("Message")
Facts = TypeVar("Facts")
Send = Callable[[Engine, Message | None], Awaitable[None]]
"""Gives an engine what it senses from now on; None for nothing."""


@dataclass(frozen=True, slots=True)
class ArmedAt(Generic[Message, Facts]):
    """What an engine senses at these attached SAEs. `facts` are for readers of the state."""

    engine: Engine
    attachments: tuple[Attachment, ...]
    message: Message
    facts: Facts

    def is_same(self, other: ArmedAt[Message, Facts] | None) -> bool:
        return (
            other is not None
            and self.engine is other.engine
            and self.message == other.message
            and len(self.attachments) == len(other.attachments)
            and all(a is b for a, b in zip(self.attachments, other.attachments, strict=True))
        )


class SensingState(EngineState[ArmedAt[Message, Facts]]):
    """Owner of what is armed. `listen` lets an engine report what was sensed."""

    def __init__(
        self, conductor: Conductor, send: Send[Message], listen: Callable[[Engine], None]
    ) -> None:
        self._conductor = conductor
        self._send = send
        self._listen = listen
        self._armed: ArmedAt[Message, Facts] | None = None
        self._editing = asyncio.Lock()
        conductor.restoring.register(self)

    @property
    def now(self) -> ArmedAt[Message, Facts] | None:
        """What is armed, while its engine serves with its SAEs attached."""
        armed, resident = self._armed, self._conductor.resident
        if armed is None or resident is None or resident.engine is not armed.engine:
            return None
        there = resident.attachments
        is_attached = all(there.get(one.key) is one for one in armed.attachments)
        return armed if is_attached and not armed.engine.ended.done() else None

    async def arm(
        self, want: Callable[[], Awaitable[ArmedAt[Message, Facts] | None]]
    ) -> Refusal | None:
        """Let the engine sense what `want` answers, or nothing where it answers None or refuses. Returns why it cannot
        be sensed."""

        async def edit() -> Refusal | None:
            try:
                await self._push(await want())
            except Refusal as refusal:
                with suppress(Refusal):
                    await self._disarm()
                return refusal
            return None

        return await carry_edit(self._editing, edit)

    async def _push(self, wanted: ArmedAt[Message, Facts] | None) -> None:
        """Give the engine what is to be armed, unless it has that already."""
        if wanted is None:
            await self._disarm()
        elif not wanted.is_same(self._armed):
            self._listen(wanted.engine)
            await self._send(wanted.engine, wanted.message)
        self._armed = wanted

    async def _disarm(self) -> None:
        """Let the engine sense nothing. Where the engine refuses this, it still senses what it sensed before."""
        if self._armed is not None and not self._armed.engine.ended.done():
            await self._send(self._armed.engine, None)
        self._armed = None

    # ------------------------------------------------------------- after a crash

    def lost(self, resident: Resident) -> ArmedAt[Message, Facts] | None:
        armed = self._armed
        is_its = armed is not None and armed.engine is resident.engine
        return armed if is_its else None

    @asynccontextmanager
    async def put_back(
        self, back: Return, loss: Callable[[], ArmedAt[Message, Facts] | None]
    ) -> AsyncIterator[Switch]:
        """Sense the same on the new engine, before the model serves. What cannot be armed does not fail the load."""
        async with self._editing:
            armed = loss()
            if armed is None:
                yield unchanged
                return
            there = {one.place: one for one in back.attached}
            again = tuple(there.get(one.place) for one in armed.attachments)
            attachments = tuple(one for one in again if one is not None)
            if len(attachments) < len(again):
                yield unchanged
                return
            self._listen(back.engine)
            try:
                await self._send(back.engine, armed.message)
            except Refusal as refusal:
                log.warning("sensing_not_resumed", reason=refusal.message)
                yield unchanged
                return
            resumed = replace(armed, engine=back.engine, attachments=attachments)

            def switch() -> None:
                self._armed = resumed

            yield switch
