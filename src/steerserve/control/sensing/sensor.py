"""What the sensing of clusters and the sensing of circuits have in common: what is armed follows the events of the bus,
and what fires is recorded."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic

from steerserve import messages as m
from steerserve.control.bus import Bus
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.events import ATTACHMENTS_CHANGED
from steerserve.control.sensing.arming import Facts, Message, SensingState
from steerserve.control.sensing.recorder import READ_SECONDS, Recorder
from steerserve.errors import Refusal
from steerserve.logs import background
from steerserve.messages.engine import Engine
from steerserve.rules.sensing.firings import Firing, FiringRow


class Sensor(Generic[Message, Facts]):
    """Decides what is armed, again after each event that may change it. `FOLLOWS` are those events beside another SAE
    and another model."""

    NOUN: ClassVar[str]
    FOLLOWS: ClassVar[type]

    def __init__(self, conductor: Conductor, bus: Bus, recorder: Recorder) -> None:
        self._conductor = conductor
        self.recorder = recorder
        self._arming = SensingState[Message, Facts](conductor, self._send, self._listen)
        self._overhead: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        bus.subscribe(self._notice)

    async def settled(self) -> None:
        """What is armed has followed the events of the bus."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Wait for the work in the background: what is armed follows the last event, and the firings are written."""
        await self.settled()
        await self.recorder.settled()

    async def _catch_up(self) -> None:
        """Wait a moment for the work in the background, so that a status tells what followed the last change."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=READ_SECONDS)
        await self.recorder.caught_up()

    @abstractmethod
    async def _send(self, engine: Engine, message: Message | None) -> None:
        """Let an engine sense this; with None, nothing."""

    @abstractmethod
    def _listen(self, engine: Engine) -> None:
        """Let an engine report what was sensed."""

    @abstractmethod
    async def _sync(self) -> None:
        """Arm what is to be armed now. What cannot be armed is logged."""

    def _notice(self, event: object) -> None:
        """Called by the bus."""
        if isinstance(event, (self.FOLLOWS, *ATTACHMENTS_CHANGED)):
            task = background.start(self._sync(), name="sensing-arm")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _record(self, told: m.SensedSpans | m.SensedEdges, fired: Sequence[Firing]) -> None:
        """Record what was sensed in one choice."""
        self._overhead = told.overhead_ms
        self.recorder.record_firings(told.subject, fired, told.overhead_ms, told.label)

    async def _row(self, event_id: int) -> FiringRow:
        """Raises:
        Refusal: SENSING_EVENT_NOT_FOUND or CIRCUIT_SENSING_EVENT_NOT_FOUND.
        """
        row = await self.recorder.get(event_id)
        if row is None:
            raise Refusal(
                f"{self.NOUN.upper().replace(' ', '_')}_EVENT_NOT_FOUND",
                f"no {self.NOUN} event has the id {event_id}; old events are deleted",
                event_id=event_id,
            )
        return row
