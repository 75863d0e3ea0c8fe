"""The cluster that the engine senses now. After a crash, the next engine senses the same cluster before it serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

import structlog

from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.engine_state import EngineState, Return, unchanged
from steerserve.control.residency.resident import Attachment, Resident, Switch
from steerserve.engine.wire import messages as m
from steerserve.engine.wire.engine import Engine
from steerserve.errors import Refusal
from steerserve.rules.sensing import ClusterPlan

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SensedClusterAt:
    """A cluster that an engine senses at an attached SAE."""

    engine: Engine
    attachment: Attachment
    name: str
    cluster: m.ArmedCluster
    plan: ClusterPlan

    def is_same(self, other: SensedClusterAt | None) -> bool:
        return (
            other is not None
            and self.engine is other.engine
            and self.attachment is other.attachment
            and self.cluster == other.cluster
        )


class ClusterArming(EngineState[SensedClusterAt]):
    """Owner of the armed cluster. `on_spans` is called with what was sensed in each choice."""

    def __init__(self, conductor: Conductor, on_spans: Callable[[m.SensedSpans], None]) -> None:
        self._conductor = conductor
        self._on_spans = on_spans
        self._armed: SensedClusterAt | None = None
        self._editing = asyncio.Lock()
        conductor.restoring.register(self)

    @property
    def now(self) -> SensedClusterAt | None:
        """What is armed, while its engine serves with its SAE attached."""
        armed, resident = self._armed, self._conductor.resident
        if armed is None or resident is None or resident.engine is not armed.engine:
            return None
        is_there = resident.attachments.get(armed.attachment.key) is armed.attachment
        return armed if is_there and not armed.engine.ended.done() else None

    async def arm(self, want: Callable[[], SensedClusterAt | None]) -> Refusal | None:
        """Let the engine sense what `want` answers, or nothing where it answers None or refuses. Returns why the
        cluster cannot be sensed."""
        async with self._editing:
            try:
                await self._push(want())
            except Refusal as refusal:
                with suppress(Refusal):
                    await self._disarm()
                return refusal
        return None

    async def _push(self, wanted: SensedClusterAt | None) -> None:
        """Give the engine what is to be armed, unless it has that already."""
        if wanted is not None:
            if wanted.is_same(self._armed):
                return
            wanted.engine.on_spans = self._on_spans
            await wanted.engine.sense_cluster(wanted.cluster)
        else:
            await self._disarm()
        self._armed = wanted

    async def _disarm(self) -> None:
        """Let the engine sense no cluster. Where the engine refuses this, the cluster is still armed."""
        if self._armed is not None and not self._armed.engine.ended.done():
            await self._armed.engine.sense_cluster(None)
        self._armed = None

    # ------------------------------------------------------------- after a crash

    def lost(self, resident: Resident) -> SensedClusterAt | None:
        armed = self._armed
        is_its = armed is not None and armed.attachment.key in resident.attachments
        return armed if is_its else None

    @asynccontextmanager
    async def put_back(
        self, back: Return, loss: Callable[[], SensedClusterAt]
    ) -> AsyncIterator[Switch]:
        """Sense the same cluster on the new engine, before the model serves. A cluster that cannot be armed does not
        fail the load."""
        async with self._editing:
            armed = loss()
            place = armed.attachment.place
            attachment = next((one for one in back.attached if one.place == place), None)
            if attachment is None:
                yield unchanged
                return
            again = replace(armed, engine=back.engine, attachment=attachment)
            back.engine.on_spans = self._on_spans
            try:
                await back.engine.sense_cluster(again.cluster)
            except Refusal as refusal:
                log.warning("cluster_not_armed", reason=refusal.message)
                yield unchanged
                return

            def switch() -> None:
                self._armed = again

            yield switch
