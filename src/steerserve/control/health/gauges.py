"""The metrics: numbers that are counted all the time, and the state of the owners, read when somebody asks for
metrics."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields

import psutil
from prometheus_client import Counter, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from steerserve import __version__
from steerserve.control.health.breakers import Breakers
from steerserve.control.health.gpus import CardReading, CardReadings, totals
from steerserve.control.health.views import MetricsReport, ReasonedCardTotals
from steerserve.control.inference.queue import Queue
from steerserve.control.metrics import NAMESPACE, Metrics
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.replicas import Replicas
from steerserve.control.sensing.circuit_sensing import CircuitSensing
from steerserve.control.sensing.monitoring import Monitoring
from steerserve.control.sensing.sensing import ClusterSensing
from steerserve.control.steering.claims import LayerClaims
from steerserve.control.steering.serving import Serving
from steerserve.database.catalog import utc_now
from steerserve.engines.sandbox.schemas import Checker
from steerserve.messages.engine import Engine, local_pid
from steerserve.rules.percentiles import percentiles
from steerserve.rules.residency.replicas import ReplicaState
from steerserve.rules.residency.swap import Phase
from steerserve.rules.units import MIB

__all__ = ["CONTENT_TYPE", "Gauges"]

CARDS_AGE = 5.0
"""Seconds after which a reading of the cards is too old to be shown."""


_REPLICA = ("replica", "node")


class Gauges:
    """Reads the state of the owners when the metrics are requested."""

    def __init__(
        self,
        metrics: Metrics,
        conductor: Conductor,
        queue: Queue,
        cards: CardReadings,
        hub: Breakers,
        serving: Serving,
        claims: LayerClaims,
        monitoring: Monitoring,
        checker: Checker,
        sensing: ClusterSensing,
        circuit_sensing: CircuitSensing,
        replicas: Replicas,
    ) -> None:
        self._metrics = metrics
        self._conductor = conductor
        self._queue = queue
        self._cards = cards
        self._hub = hub
        self._serving = serving
        self._claims = claims
        self._monitoring = monitoring
        self._checker = checker
        self._sensing = sensing
        self._circuit_sensing = circuit_sensing
        self._replicas = replicas
        self._since = metrics.clock()
        self._counted: Engine | None = None
        self._seen: dict[str, int] = {}
        self._made = _Made(metrics)

    async def text(self) -> bytes:
        """Every series, in the text format that CONTENT_TYPE names."""
        await self._refresh()
        # the text of thousands of series takes a tenth of a second
        return await asyncio.to_thread(generate_latest, _Plain(self._metrics.registry))

    async def body(self) -> MetricsReport:
        """The application's metrics as one value."""
        await self._refresh()
        metrics, total = self._metrics, self._metrics.total
        resident, attachments = self._conductor.resident, self._conductor.attachments()
        live, monitored = self._serving.live, self._monitoring.watched()
        breakers, circuits = self._hub.breakers(), self._claims.health()
        reading = self._cards.last
        return MetricsReport(
            total_requests=int(total("requests_total")),
            active_requests=int(total("requests_active")),
            request_errors=int(total("request_errors_total")),
            latency_ms=percentiles(metrics.latencies),
            time_to_first_token_ms=percentiles(metrics.first_tokens),
            prompt_tokens=int(total("prompt_tokens_total")),
            completion_tokens=int(total("completion_tokens_total")),
            model_loaded=self._is_loaded(),
            model_name=resident.row.name if resident and self._is_loaded() else None,
            model_load_count=int(total("model_loads_total", outcome="loaded")),
            model_load_failures=int(total("model_loads_total", outcome="failed")),
            model_unload_count=int(total("model_unloads_total")),
            sae_attached=bool(attachments),
            sae_id=attachments[0].sae_id if attachments else None,
            steering_enabled=live.enabled,
            active_features=self._serving.feature_count,
            monitoring_enabled=monitored > 0,
            monitored_features=monitored,
            circuit_breaker_open=any(breaker.is_open for breaker in breakers),
            circuit_breaker_trips=sum(breaker.trips for breaker in breakers),
            circuits_serving=circuits.serving,
            circuit_layers_served=circuits.layers_served,
            circuit_layers_composed=circuits.layers_composed,
            circuit_claim_faults=circuits.claim_faults,
            gpu=_with_reason(reading) if reading else None,
            uptime_seconds=round(metrics.clock() - self._since, 3),
            timestamp=utc_now(),
        )

    # ------------------------------------------------------------- inside

    async def _refresh(self) -> None:
        await self._cards.reading(CARDS_AGE)
        made, counts, live = self._made, self._queue.counts(), self._serving.live
        made.uptime.set(self._metrics.clock() - self._since)
        made.queue_pending.set(counts.pending)
        made.queue_in_flight.set(counts.holding)
        checks = self._checker.counts()
        made.checks_waiting.set(checks.waiting)
        made.checks_running.set(checks.running)
        made.model_loaded.set(self._is_loaded())
        made.sae_attached.set(len(self._conductor.attachments()))
        made.steering_enabled.set(live.enabled)
        made.active_features.set(self._serving.feature_count)
        self._read_circuits()
        made.sensing_armed.labels("cluster").set(self._sensing.is_armed)
        made.sensing_armed.labels("circuit").set(self._circuit_sensing.armed_count)
        self._count_applied()
        self._read_replicas()
        self._read_breakers()
        self._read_memory()

    def _read_circuits(self) -> None:
        made, circuits = self._made, self._claims.health()
        made.circuits_serving.set(circuits.serving)
        made.circuit_layers.labels("served").set(circuits.layers_served)
        made.circuit_layers.labels("composed").set(circuits.layers_composed)
        made.claims_degraded.set(circuits.claims_degraded)
        known = self._metrics.total("circuit_claim_faults_total")
        made.claim_faults.inc(max(0, circuits.claim_faults - known))

    def _read_replicas(self) -> None:
        made, replicas = self._made, self._replicas.now()
        series = (
            made.replica_serving,
            made.replica_requests,
            made.replica_epoch,
            made.replica_restarts,
        )
        for gauge in (made.replicas, *series):
            gauge.clear()
        if replicas is None:
            return
        for state in ReplicaState:
            if state is not ReplicaState.ENDED:
                count = sum(view.state is state for view in replicas.replicas)
                made.replicas.labels(state).set(count)
        for view in replicas.replicas:
            values = (view.state is ReplicaState.SERVING, view.requests, view.epoch, view.restarts)
            for gauge, value in zip(series, values, strict=True):
                gauge.labels(view.name, view.node or "").set(value)

    def _count_applied(self) -> None:
        resident = self._conductor.resident
        engine = resident.engine if resident else None
        seen = self._seen if engine is self._counted else {}
        now = dict(engine.passes.applied) if engine else {}
        for key, count in now.items():
            before = seen.get(key, 0)
            # a smaller count than before means that the SAE was detached and attached again
            self._made.applied.inc(count - before if count >= before else count)
        self._counted, self._seen = engine, now

    def _read_breakers(self) -> None:
        for breaker in self._hub.breakers():
            name = breaker.name
            self._made.breaker_open.labels(name).set(breaker.is_open)
            trips = self._made.breaker_trips.labels(name)
            known = self._metrics.total("circuit_breaker_trips_total", name=name)
            trips.inc(max(0, breaker.trips - known))

    def _read_memory(self) -> None:
        made, resident = self._made, self._conductor.resident
        made.resident_memory.clear()
        made.resident_memory.labels("control").set(psutil.Process().memory_info().rss)
        engine = resident.engine if resident else None
        if engine is not None and (pid := local_pid(engine)) is not None:
            with suppress(psutil.Error):  # the engine may just have ended
                rss = psutil.Process(pid).memory_info().rss
                made.resident_memory.labels("engine").set(rss)
        made.card_used.clear()
        made.card_total.clear()
        for card in self._cards.last.cards if self._cards.last else ():
            made.card_used.labels(str(card.smi_index)).set(card.used_mb * MIB)
            made.card_total.labels(str(card.smi_index)).set(card.total_mb * MIB)

    def _is_loaded(self) -> bool:
        resident = self._conductor.resident
        return resident is not None and resident.phase is Phase.LOADED


class _Made:
    """The series whose values are set when the metrics are requested."""

    def __init__(self, metrics: Metrics) -> None:
        registry = metrics.registry

        def gauge(name: str, about: str, *labels: str) -> Gauge:
            return Gauge(name, about, labels, namespace=NAMESPACE, registry=registry)

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(name, about, labels, namespace=NAMESPACE, registry=registry)

        self.uptime = gauge("uptime_seconds", "Seconds since the service began.")
        self.queue_pending = gauge("queue_pending", "Requests that wait for a slot or hold one.")
        self.queue_in_flight = gauge("queue_in_flight", "Slots held.")
        self.checks_waiting = gauge(
            "schema_checks_waiting", "Checks of schemas and documents that wait for a process."
        )
        self.checks_running = gauge("schema_checks_running", "Checks that hold a process.")
        self.model_loaded = gauge("model_loaded", "1 while a model serves.")
        self.sae_attached = gauge("sae_attached", "Attached SAEs.")
        self.steering_enabled = gauge("steering_enabled", "1 while steering is enabled.")
        self.active_features = gauge("steering_active_features", "Features being steered.")
        self.circuits_serving = gauge("circuits_serving", "Circuits that serve.")
        self.circuit_layers = gauge(
            "circuit_layers", "Layers that circuits serve, and those that several serve.", "kind"
        )
        self.claims_degraded = gauge(
            "circuit_claims_degraded",
            "1 while the claims of layers do not agree with the circuits.",
        )
        self.claim_faults = counter(
            "circuit_claim_faults", "Readings and writings of claims that the database refused."
        )
        self.sensing_armed = gauge("sensing_armed", "Clusters or circuits that are sensed.", "kind")
        self.applied = counter(
            "steering_applied", "Forward passes in which an SAE added to the model's activations."
        )
        self.breaker_open = gauge("circuit_breaker_open", "1 while calls are refused.", "name")
        self.breaker_trips = counter("circuit_breaker_trips", "Times it opened.", "name")
        self.resident_memory = gauge(
            "process_resident_memory_bytes", "Memory of a process of the service.", "process"
        )
        self.replicas = gauge("replicas", "Replicas of the loaded model in each state.", "state")
        self.replica_serving = gauge(
            "replica_serving", "1 while the replica gets requests.", *_REPLICA
        )
        self.replica_requests = gauge("replica_requests", "Requests on a replica.", *_REPLICA)
        self.replica_epoch = gauge(
            "replica_epoch", "The last change of the steering that a replica has.", *_REPLICA
        )
        self.replica_restarts = gauge(
            "replica_restarts", "How often a replica was started again.", *_REPLICA
        )
        self.card_used = gauge("card_memory_used_bytes", "Memory in use on a card.", "card")
        self.card_total = gauge("card_memory_total_bytes", "Memory of a card.", "card")
        build = gauge("build_info", "Always 1; what runs.", "version", "python")
        build.labels(__version__, platform.python_version()).set(1)


class _Plain:
    """The series of a registry without their `_created` samples, which would double the text and which nobody needs."""

    def __init__(self, inner: Collector) -> None:
        self._inner = inner

    def collect(self) -> Iterator[Metric]:
        for family in self._inner.collect():
            kept = [sample for sample in family.samples if not sample.name.endswith("_created")]
            family.samples = kept
            yield family


def _with_reason(reading: CardReading) -> ReasonedCardTotals:
    numbers = totals(reading)
    shown = {field.name: getattr(numbers, field.name) for field in fields(numbers)}
    return ReasonedCardTotals(**shown, reason=reading.reason)
