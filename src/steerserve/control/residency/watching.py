"""Looks for heartbeats of one engine, from its start to its end, and acts where they stay away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from steerserve.control.residency.occupant import Occupant
from steerserve.errors import Refusal
from steerserve.rules.residency import heartbeat
from steerserve.rules.residency.heartbeat import Bounds, Condition, Silence

log = structlog.get_logger(__name__)


class EngineWatch:
    """Watches the engine of one occupant. Each look is one step without waiting: `rules/residency/heartbeat` judges the
    silence."""

    def __init__(
        self, occupant: Occupant, bounds: Bounds, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._occupant = occupant
        self._engine = occupant.held()
        self._bounds = bounds
        self._clock = clock
        self._silence: Silence | None = None

    async def run(self) -> None:
        """Look every LOOK_SECONDS until the engine has ended."""
        while not self._engine.ended.done():
            self.look()
            await asyncio.wait([self._engine.ended], timeout=heartbeat.LOOK_SECONDS)

    def look(self) -> None:
        """(1) A stalled engine refuses commands, and readiness turns. (2) With its next sign it takes them again. (3)
        An engine that is silent for too long is ended, as if it had ended by itself."""
        engine, name = self._engine, self._occupant.row.name
        silence = self._silence = heartbeat.silence(
            self._silence, engine.heartbeat.sign(), self._clock()
        )
        self._occupant.hear(silence)
        why = heartbeat.described(silence)
        match heartbeat.condition(silence, self._bounds):
            case Condition.STALLED if engine.heartbeat.stalled is None:
                log.warning("engine_stalled", model=name, reason=why)
                engine.heartbeat.stall(
                    Refusal("ENGINE_UNAVAILABLE", f"{why}; unload the model to end it")
                )  # (1)
            case Condition.ALIVE if engine.heartbeat.stalled is not None:
                log.info("engine_woke", model=name)
                engine.heartbeat.wake()  # (2)
            case Condition.LOST:
                log.error("engine_lost", model=name, reason=why)
                engine.lose(f"{why}, and was ended")  # (3)
