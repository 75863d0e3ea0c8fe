"""Reads the claims of SAE checkpoints in separate engine processes, so that a hostile file cannot harm the service."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from steerserve import messages as m
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.engines import Engines
from steerserve.errors import Refusal
from steerserve.messages.engine import Engine

READ_SECONDS = 60.0
"""Longest time for reading one SAE that is not attached."""

ReadSae = m.Claims | Refusal
"""The claims of a checkpoint, or the refusal of the checkpoint."""


@asynccontextmanager
async def reading_engine(conductor: Conductor, launcher: Engines) -> AsyncIterator[Engine]:
    """An engine process without a model, which reads untrusted files. It ends with the block, also where the block is
    cancelled.

    Raises:
        Refusal: SHUTTING_DOWN.
    """
    if conductor.is_closing:
        raise Refusal("SHUTTING_DOWN", "the service is shutting down")
    launching = asyncio.ensure_future(launcher.launch())
    try:
        yield await asyncio.shield(launching)
    finally:
        await (await launching).stop()


class SaeReader:
    """Starts an engine process, has it read checkpoints, and ends it."""

    def __init__(self, conductor: Conductor, launcher: Engines) -> None:
        self._conductor = conductor
        self._launcher = launcher

    async def read(self, source: m.SaeSource) -> m.Claims:
        """The claims of one checkpoint.

        Raises:
            Refusal: SAE_LOAD_FAILED, SAE_INCOMPATIBLE for a checkpoint that can never be attached, SHUTTING_DOWN.
        """
        (outcome,) = await self.read_all([source])
        if isinstance(outcome, Refusal):
            raise outcome
        return outcome

    async def read_all(self, sources: Sequence[m.SaeSource]) -> Sequence[ReadSae]:
        """For each checkpoint its claims, or its refusal.

        One engine reads them all. If a checkpoint crashes the engine, another engine goes on with the next checkpoint.
        A cancelled call leaves no engine behind.

        Raises:
            Refusal: SHUTTING_DOWN.
        """
        outcomes: deque[ReadSae] = deque()
        while len(outcomes) < len(sources):
            async with reading_engine(self._conductor, self._launcher) as engine:
                while len(outcomes) < len(sources) and not engine.ended.done():
                    outcomes.append(await _read(engine, sources[len(outcomes)]))
        return tuple(outcomes)


async def _read(engine: Engine, source: m.SaeSource) -> ReadSae:
    """The claims of one checkpoint, or its refusal. An engine that takes too long is ended."""
    try:
        async with asyncio.timeout(READ_SECONDS):
            claims = (await engine.ask(m.Inspect(source=source))).claims
    except TimeoutError:
        await engine.stop()
        return Refusal(
            "SAE_LOAD_FAILED", f"the SAE cannot be read within {READ_SECONDS:.0f} seconds"
        )
    except Refusal as refusal:
        if refusal.code == "ENGINE_UNAVAILABLE":
            return Refusal("SAE_LOAD_FAILED", "the process that read the SAE ended")
        return refusal
    if claims.reason is not None:
        return Refusal("SAE_INCOMPATIBLE", f"the SAE can never be attached: {claims.reason}")
    return claims
