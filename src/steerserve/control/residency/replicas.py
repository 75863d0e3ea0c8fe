"""The replicas of the resident model: who serves, and the changes that an operator makes while the model serves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from steerserve.control.residency import loading
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.engines import Engines
from steerserve.control.residency.resident import Resident
from steerserve.errors import Refusal
from steerserve.messages.engine import Replicated
from steerserve.rules.residency import replicas as rules
from steerserve.rules.residency import swap
from steerserve.rules.residency.replicas import ReplicaFigures, ReplicaSet, ReplicaView
from steerserve.settings import Settings

log = structlog.get_logger(__name__)


def replica_set(resident: Resident | None, least: int) -> ReplicaSet | None:
    """The replicas of the resident model; None without an engine, and for an engine that is one process."""
    engine = resident.engine if resident is not None else None
    if resident is None or engine is None or engine.fleet is None:
        return None
    views = engine.fleet.replicas()
    if not views:
        return None
    return ReplicaSet(
        rules.wanted(views),
        rules.serving(views),
        least,
        rules.strength(views, least),
        resident.row.id,
        views,
    )


def figures(replicas: ReplicaSet | None) -> ReplicaFigures | None:
    """The figures alone, without the replicas."""
    if replicas is None:
        return None
    return ReplicaFigures(replicas.wanted, replicas.serving, replicas.least, replicas.strength)


class Replicas:
    """Changes the replicas of the resident model. The number that an operator asks for holds for later loads too, until
    the service ends."""

    def __init__(self, conductor: Conductor, launcher: Engines, settings: Settings) -> None:
        self._conductor = conductor
        self._launcher = launcher
        self._settings = settings
        self._changing = asyncio.Lock()

    def now(self) -> ReplicaSet | None:
        """The replicas of the resident model; None where one process serves, or no model is in the slot."""
        return replica_set(self._conductor.resident, self._launcher.least)

    def of_model(self, model_id: int) -> ReplicaSet:
        """Raises:
        Refusal: MODEL_BUSY, MODEL_NOT_LOADED, REPLICAS_UNAVAILABLE.
        """
        self._fleet(model_id)
        found = self.now()
        assert found is not None
        return found

    async def resize(self, model_id: int, count: int) -> ReplicaSet:
        """Serve the model with so many replicas from now on. Returns once the change has begun.

        Raises:
            Refusal: MODEL_BUSY, MODEL_NOT_LOADED, REPLICAS_UNAVAILABLE; what refuses replicas for which the nodes have
                no room, see `loading.check_more_replicas`.
        """
        async with self._changing:
            views = self.of_model(model_id).replicas
            if count > rules.wanted(views):
                await self._check_room(views, rules.to_place(views, count))
            await self._fleet(model_id).resize(count)
            return self._changed(model_id, "resized", None, count)

    async def drain(self, model_id: int, name: str) -> ReplicaSet:
        """Take a replica away after its requests. Returns once it gets no new requests.

        Raises:
            Refusal: MODEL_BUSY, MODEL_NOT_LOADED, REPLICA_NOT_FOUND, REPLICAS_UNAVAILABLE.
        """
        views = self.of_model(model_id).replicas
        is_wanted = all(view.replaces is None for view in views if view.name == name)
        await self._fleet(model_id).drain(name)
        return self._changed(model_id, "drained", name, max(1, self._launcher.replicas - is_wanted))

    async def replace(self, model_id: int, name: str) -> ReplicaSet:
        """Start another replica in the place of this one. Returns once the change has begun.

        Raises:
            Refusal: MODEL_BUSY, MODEL_NOT_LOADED, REPLICA_NOT_FOUND, REPLICAS_UNAVAILABLE; what refuses a replica for
                which the nodes have no room, see `loading.check_more_replicas`.
        """
        async with self._changing:
            views = self.of_model(model_id).replicas
            if (replaced := next((v for v in views if v.name == name), None)) is not None:
                holds = rules.holds_memory(replaced)
                await self._check_room(views, rules.to_place(views, rules.wanted(views) + holds))
            await self._fleet(model_id).replace(name)
            return self._changed(model_id, "replaced", name, self._launcher.replicas)

    # ------------------------------------------------------------- inside

    def _fleet(self, model_id: int) -> Replicated:
        swap.may_change_replicas(self._conductor.view(), model_id)
        fleet = self._conductor.loaded().held().fleet
        if fleet is None:
            raise Refusal(
                "REPLICAS_UNAVAILABLE",
                "the resident model is served by one engine process; replicas need ENGINE_BACKEND=ray",
            )
        return fleet

    async def _check_room(self, views: Sequence[ReplicaView], more: int) -> None:
        """Refuse `more` replicas for which the nodes have no room beside `views`."""
        resident = self._conductor.loaded()
        views = [v for v in views if rules.holds_memory(v)]
        if more > 0 and self._launcher.has_nodes:
            await loading.check_more_replicas(resident, views, more, self._launcher, self._settings)

    def _changed(self, model_id: int, change: str, name: str | None, count: int) -> ReplicaSet:
        self._launcher.replicas = count
        log.info("replicas_changed", change=change, replica=name, count=count)
        return self.of_model(model_id)
