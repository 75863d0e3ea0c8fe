"""Health: liveness, readiness, components, the queue, the cards. If one block cannot be built, the others are still
answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
from msgspec import UNSET, to_builtins

from steerserve import __version__
from steerserve.control.health import gpus as card_reading
from steerserve.control.health.gpus import CardReading
from steerserve.control.health.turns import shown
from steerserve.control.health.views import (
    BackendReport,
    Capabilities,
    CardReport,
    Component,
    DetailedHealth,
    EngineHealth,
    FixedSampling,
    HealthStatus,
    InferenceHealth,
    Liveness,
    QueueLimits,
    Readiness,
    Turns,
)
from steerserve.control.health.watched import Watched
from steerserve.control.residency.replicas import figures
from steerserve.database.catalog import utc_now
from steerserve.errors import Refusal
from steerserve.rules.models import breaker, compilers
from steerserve.rules.models.breaker import BreakerStatus
from steerserve.rules.residency import heartbeat
from steerserve.rules.residency import replicas as replica_rules
from steerserve.rules.residency.replicas import ReplicaSet, Strength
from steerserve.settings import Settings

log = structlog.get_logger(__name__)

_NO_FAILURE = (
    "no recent request to the hub has failed; health checks send none, `steerserve doctor` does"
)
PING_SECONDS = 2.0
CARDS_AGE = 5.0
"""Seconds after which a reading of the cards is too old to be shown."""
OPEN = "every machine that reaches this service may use all of it: set API_KEYS_FILE, or HOST=127.0.0.1"
"""What health says of a service without keys beyond a loopback address."""
CARDS_SECONDS = 1.0
"""Seconds that readiness waits for the driver of the cards."""


class Vitals:
    """Makes the answers of health from the state of the owners. Its own state is only what became of the load at the
    start."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self.load_failure: str | None = None
        """Why the model that is loaded at the start of the service could not be loaded; None if it could."""
        self.is_starting = bool(watched.settings.auto_load_model) or watched.settings.demo
        """Whether the start of the service still has to load a model."""

    def liveness(self) -> Liveness:
        return Liveness("healthy", __version__, utc_now(), round(self._watched.uptime, 3))

    async def readiness(self) -> Readiness:
        """Whether requests can be served. Without a loaded model the service is degraded, but ready."""
        reading, database = await asyncio.gather(
            self._watched.cards.reading(CARDS_AGE, CARDS_SECONDS), self._database_health()
        )
        components = self._components(database, reading)
        return self._readiness(components, is_ready=_worst(components) != "unhealthy")

    def inference_readiness(self) -> Readiness:
        """Whether a model serves now, and the model that is loaded at the start has been loaded, or another one after
        it had failed. The database is not looked at."""
        components = [self._engine_health(), *self._serving_health()]
        is_ready = self._watched.is_loaded and not self.is_starting
        if self.is_starting and self._watched.is_loaded:
            why = "the model of the settings is not loaded yet"
            components.append(Component("start", "unhealthy", why))
        return self._readiness(components, is_ready=is_ready and _worst(components) != "unhealthy")

    def _readiness(self, components: list[Component], *, is_ready: bool) -> Readiness:
        return Readiness(
            ready=is_ready,
            status=_worst(components) if is_ready else "unhealthy",
            version=__version__,
            timestamp=utc_now(),
            components=components,
            model_loaded=self._watched.is_loaded,
            sae_attached=bool(self._watched.sae_ids()),
            replicas=figures(self._watched.replicas.now()),
        )

    async def detailed(self) -> DetailedHealth:
        """All parts of health in one answer. The driver of the cards is not asked: the last reading of the cards is
        used. A block that cannot be built is None, and `errors` has the type of its exception."""
        blocks, watched = _Blocks(), self._watched
        components = self._components(await self._database_health(), watched.cards.last)
        resident = watched.resident
        sae_ids = blocks.built("saes", watched.sae_ids) or []
        return DetailedHealth(
            status=_worst(components),
            version=__version__,
            timestamp=utc_now(),
            uptime_seconds=round(watched.uptime, 3),
            components=components,
            circuit_breakers=blocks.built("circuit_breakers", watched.hub.breakers),
            model_loaded=watched.is_loaded,
            model_name=watched.model_name,
            model_placement=to_builtins(resident.placement) if resident else None,
            sae_attached=bool(sae_ids),
            sae_id=next(iter(sae_ids), None),
            sae_count=len(sae_ids),
            sae_ids=sae_ids,
            inference=self.inference(),
            engine=blocks.built("engine", self.engine),
            replicas=blocks.built("replicas", watched.replicas.now),
            active_profile=await blocks.read("active_profile", watched.serving.profile),
            interventions=len(watched.serving.live.standing),
            circuits=await blocks.read("circuits", watched.claims.checked_health),
            lease=blocks.built("lease", watched.conductor.leases.status),
            ended_by_restart=watched.database.ended,
            turns=blocks.built("turns", self.turns),
            errors=blocks.errors,
        )

    async def gpus(self) -> CardReport:
        """Every card of the machine and of the nodes of a cluster, with the memory that the tensor library holds."""
        return await card_reading.report(
            self._watched.cards, self._watched.conductor, self._watched.nodes
        )

    def breakers(self) -> list[BreakerStatus]:
        return self._watched.hub.breakers()

    def reset(self, name: str) -> BreakerStatus:
        """Raises:
        Refusal: BREAKER_NOT_FOUND.
        """
        return self._watched.hub.reset(name)

    def engine(self) -> EngineHealth | None:
        """What the engine of the resident model is doing; None without an engine."""
        resident = self._watched.resident
        if resident is None or resident.engine is None or resident.silence is None:
            return None
        silence, is_stalled = resident.silence, resident.engine.heartbeat.stalled is not None
        threads = resident.engine.passes.threads
        return EngineHealth(
            silence.sign.activity.name.lower(),
            round(heartbeat.length(silence), 1),
            is_stalled,
            heartbeat.described(silence) if is_stalled else None,
            threads.threads if threads else None,
            threads.most if threads else None,
        )

    def turns(self) -> Turns:
        """The longest turns of the event loop and of the engine's main thread."""
        engine = self._watched.engine
        told = engine.passes.turns if engine is not None else None
        return Turns(self._watched.loop.longest(), None if told is None else shown(told))

    def inference(self) -> InferenceHealth:
        """The state of the queue. While continuous batching serves, there are no counts of waiting and running
        requests."""
        try:
            counts = self._watched.queue.counts()
        except Exception as error:
            # the answer must have this block even when the queue cannot be read
            return InferenceHealth(error=f"{type(error).__name__}: {error}")
        running = self._watched.generation.is_batching
        return InferenceHealth(
            backend="cbm" if running else "queue",
            cbm_enabled=self._watched.settings.enable_continuous_batching,
            cbm_running=running,
            queue_pending=counts.pending,
            queue_max_concurrent=counts.max_concurrent,
            queue_max_pending=counts.max_pending,
            in_flight=None if running else counts.holding,
            queue_waiting=None if running else counts.waiting,
            estimated_wait_seconds=None if running else counts.estimated_wait_seconds,
        )

    def backend(self) -> BackendReport:
        """The backend that serves, and its capabilities. While continuous batching serves, the requests that it does
        not take are served serially."""
        settings, counts = self._watched.settings, self._watched.queue.counts()
        resident, engine = self._watched.resident, self._watched.engine
        facts = resident.facts if resident is not None else None
        rows = facts.row_steps if facts else None
        graphs = facts.cuda_graphs if facts else None
        if engine is not None and (changed := engine.passes.graphs):
            graphs = changed.cuda_graphs
        limits = []
        if settings.enable_continuous_batching:
            limits += ["response_format is refused", "seeds are best effort"]
        is_batching = self._watched.generation.is_batching
        if is_batching:
            limits.append("other sampling parameters, profiles and intensities take a slot")
        if rows is not None and not rows.are_batched:
            limits.append(rows.reason)
        limits += facts.warnings if facts else []
        queue = QueueLimits(counts.max_concurrent, counts.max_pending, counts.pending)
        fixed = FixedSampling(
            settings.cbm_default_temperature,
            settings.cbm_default_top_p,
            self._watched.generation.batched_maximum,
        )
        return BackendReport(
            backend="cbm" if is_batching else "serial",
            description="one running batch; requests of the fixed sampling parameters need no slot"
            if is_batching
            else "one running batch; every request takes a slot",
            capabilities=Capabilities(
                per_request_sampling_params=not is_batching,
                per_request_profile_override=not is_batching,
            ),
            limitations=limits,
            row_steps=rows,
            seeded_rows=facts.seeded_rows if facts else None,
            cuda_graphs=graphs,
            compiled_functions=facts.compiled_functions if facts else None,
            exactness=facts.exactness if facts else None,
            queue=UNSET if is_batching else queue,
            cbm_config=fixed if is_batching else UNSET,
        )

    # ------------------------------------------------------------- inside

    def _components(self, database: Component, reading: CardReading | None) -> list[Component]:
        components = [database, self._engine_health(), _gpu_health(reading), self._hub_health()]
        components += self._serving_health()
        components += _openness(self._watched.settings)
        claims = self._watched.claims.health()
        if claims.claims_degraded:
            components.append(Component("circuits", "degraded", "; ".join(claims.reasons)))
        queue = self._watched.metrics.full_queue
        if queue.is_refusing:
            refused = (
                f"requests refused within two minutes, because the queue is full: {queue.refused}"
            )
            components.append(Component("queue", "degraded", refused))
        resident = self._watched.resident
        compiled = resident.facts.compiled_functions if resident and resident.facts else None
        if compiled is not None and compiled.reason.startswith(compilers.NO_FOLDER):
            components.append(Component("compiled_functions", "degraded", compiled.reason))
        return [*components, *self._watched.noun_health()]

    def _serving_health(self) -> list[Component]:
        """The replicas, and the end of the service."""
        components = []
        replicas = self._watched.replicas.now()
        if replicas is not None:
            components.append(_replica_health(replicas, self._watched.is_loaded))
        if self._watched.generation.is_closing:
            components.append(Component("service", "unhealthy", "the service is shutting down"))
        return components

    async def _database_health(self) -> Component:
        before = time.monotonic()
        fault = await self._watched.database.fault()
        if fault is not None:
            return Component("database", "unhealthy", f"not usable: {fault.sentence}")
        latency_ms = round((time.monotonic() - before) * 1000, 3)
        return Component("database", "healthy", None, latency_ms)

    def _engine_health(self) -> Component:
        """If the engine died, the component is degraded, because the next load starts another engine. If engines cannot
        be started, or the engine sends no heartbeat, it is unhealthy."""
        resident, failure = self._watched.resident, self._watched.starts()
        engine = self.engine()
        if engine is not None and engine.is_stalled:
            return Component("engine", "unhealthy", f"stalled: {engine.message}")
        if self._watched.is_loaded:
            return Component("engine", "healthy")
        if failure is not None:
            return Component("engine", "unhealthy", failure)
        if resident is None:
            end = self._watched.conductor.view().engine_end
            why = self.load_failure or (end and end.sentence) or "no model is loaded"
            return Component("engine", "degraded", why)
        return Component("engine", "degraded", f"model {resident.row.name!r} is {resident.phase}")

    def _hub_health(self) -> Component:
        try:
            troubled = [one for one in self._watched.hub.breakers() if breaker.is_troubled(one)]
        except Exception as error:
            # the service works without the hub, so this component is never unhealthy
            return Component("hub", "degraded", f"not known: {type(error).__name__}")
        if troubled:
            failed = (f"{one.name} failed {one.failure_count} times in a row" for one in troubled)
            return Component("hub", "degraded", "; ".join(failed))
        return Component("hub", "healthy", _NO_FAILURE)


Built = TypeVar("Built")


class _Blocks:
    """Builds the blocks of an answer one by one, so that a failure of one block leaves the others whole."""

    def __init__(self) -> None:
        self.errors: dict[str, str] = {}

    def built(self, name: str, build: Callable[[], Built]) -> Built | None:
        try:
            return build()
        except Exception as error:
            # the other blocks must still be answered; only the type is shown, since texts of errors may hold secrets
            self._failed(name, error)
            return None

    async def read(self, name: str, read: Callable[[], Awaitable[Built]]) -> Built | None:
        """Build a block that has to be awaited, for at most PING_SECONDS."""
        try:
            async with asyncio.timeout(PING_SECONDS):
                return await read()
        except Exception as error:
            # the other blocks must still be answered
            self._failed(name, error)
            return None

    def _failed(self, name: str, error: Exception) -> None:
        if isinstance(error, Refusal):
            self.errors[name] = error.code
            return
        log.error("health_block_failed", block=name, exc_info=error)
        self.errors[name] = type(error).__name__


def _gpu_health(reading: CardReading | None) -> Component:
    """A machine without cards is healthy. A lost card or a driver that hangs is not."""
    if reading is None:
        return Component("gpu", "healthy", "the cards have not been read yet")
    if reading.is_late or (reading.cards and reading.reason):
        return Component("gpu", "degraded", reading.reason)
    if not reading.cards:
        return Component("gpu", "healthy", "no card: the processor serves")
    return Component("gpu", "healthy", ", ".join(card.name for card in reading.cards))


def _openness(settings: Settings) -> list[Component]:
    """What an operator has opened to clients, where the defaults are closed."""
    components = []
    if settings.is_open:
        components.append(Component("access", "degraded", OPEN))
    if settings.allow_remote_code:
        why = "requests may run the Python files of models (ALLOW_REMOTE_CODE=true)"
        components.append(Component("remote_code", "healthy", why))
    return components


def _replica_health(replicas: ReplicaSet, is_loaded: bool) -> Component:
    """Fewer replicas than wanted make the service degraded. If no replica of a loaded model serves, requests wait, so
    the service is not ready. While a model is being loaded or unloaded, no replica serves, and nothing is wrong."""
    message = replica_rules.described(replicas.replicas)
    if replicas.strength is Strength.NONE and is_loaded:
        return Component("replicas", "unhealthy", message)
    status: HealthStatus = "healthy" if replicas.strength is Strength.WHOLE else "degraded"
    return Component("replicas", status, message)


def _worst(components: list[Component]) -> HealthStatus:
    statuses = {component.status for component in components}
    worst_first: tuple[HealthStatus, ...] = ("unhealthy", "degraded", "healthy")
    return next(status for status in worst_first if status in statuses)
