"""The metrics: numbers that are counted all the time, and the state of the owners, read when somebody asks for
metrics."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from itertools import chain

import psutil
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from steerserve import __version__
from steerserve.control.health.gpus import CardReading, totals
from steerserve.control.health.views import MetricsReport, ReasonedCardTotals
from steerserve.control.health.watched import Watched
from steerserve.control.metrics import NAMESPACE
from steerserve.database.catalog import utc_now
from steerserve.messages.engine import Engine, local_pid
from steerserve.rules.percentiles import percentiles
from steerserve.rules.residency.replicas import ReplicaState
from steerserve.rules.units import MIB

__all__ = ["CONTENT_TYPE", "Gauges"]

CARDS_AGE = 5.0
"""Seconds after which a reading of the cards is too old to be shown."""

_CIRCUIT_LAYERS = "Layers that circuits serve, and those that several serve."
_DEGRADED = "1 while the claims of layers do not agree with the circuits."
_CLAIM_FAULTS = "Readings and writings of claims that the database refused."
_APPLIED = "Forward passes in which an SAE added to the model's activations."
_CHECKS_WAITING = "Checks of schemas and documents that wait for a process."
_EPOCH = "The last change of the steering that a replica has."


class Gauges:
    """Reads the owners when the metrics are requested. Its own state is the number of steered passes, because an engine
    counts only its own."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._applied = 0
        self._counted: Engine | None = None
        self._seen: dict[str, int] = {}

    async def text(self) -> bytes:
        """Every series, in the text format that CONTENT_TYPE names."""
        await self._watched.cards.reading(CARDS_AGE)
        self._count_applied()
        read = tuple(self._families())
        # the text of thousands of series takes a tenth of a second
        return await asyncio.to_thread(generate_latest, _Both(self._watched.metrics.registry, read))

    async def body(self) -> MetricsReport:
        """The application's metrics as one value."""
        watched = self._watched
        await watched.cards.reading(CARDS_AGE)
        metrics, total, sae_ids = watched.metrics, watched.metrics.total, watched.sae_ids()
        monitored, breakers = watched.monitoring.watched(), watched.hub.breakers()
        circuits, cards = watched.claims.health(), watched.cards.last
        return MetricsReport(
            total_requests=metrics.answers,
            active_requests=int(total("requests_active")),
            request_errors=metrics.errors,
            latency_ms=percentiles(metrics.latencies),
            time_to_first_token_ms=percentiles(metrics.first_tokens),
            prompt_tokens=int(total("prompt_tokens_total")),
            completion_tokens=int(total("completion_tokens_total")),
            model_loaded=watched.is_loaded,
            model_name=watched.model_name,
            model_load_count=int(total("model_loads_total", outcome="loaded")),
            model_load_failures=int(total("model_loads_total", outcome="failed")),
            model_unload_count=int(total("model_unloads_total")),
            sae_attached=bool(sae_ids),
            sae_id=next(iter(sae_ids), None),
            steering_enabled=watched.serving.live.enabled,
            active_features=watched.serving.feature_count,
            monitoring_enabled=monitored > 0,
            monitored_features=monitored,
            circuit_breaker_open=any(breaker.is_open for breaker in breakers),
            circuit_breaker_trips=sum(breaker.trips for breaker in breakers),
            circuits_serving=circuits.serving,
            circuit_layers_served=circuits.layers_served,
            circuit_layers_composed=circuits.layers_composed,
            circuit_claim_faults=circuits.claim_faults,
            gpu=_with_reason(cards) if cards else None,
            uptime_seconds=round(watched.uptime, 3),
            timestamp=utc_now(),
        )

    # ------------------------------------------------------------- inside

    def _families(self) -> Iterator[Metric]:
        """The series that are read from the owners."""
        watched, circuits = self._watched, self._watched.claims.health()
        counts, checks = watched.queue.counts(), watched.checker.counts()
        yield _series("uptime_seconds", "Seconds since the service began.", watched.uptime)
        yield _series("queue_pending", "Requests that wait for a slot or hold one.", counts.pending)
        yield _series("queue_in_flight", "Slots held.", counts.holding)
        yield _series("schema_checks_waiting", _CHECKS_WAITING, checks.waiting)
        yield _series("schema_checks_running", "Checks that hold a process.", checks.running)
        yield _series("model_loaded", "1 while a model serves.", watched.is_loaded)
        yield _series("sae_attached", "Attached SAEs.", len(watched.sae_ids()))
        steering, features = watched.serving.live.enabled, watched.serving.feature_count
        yield _series("steering_enabled", "1 while steering is enabled.", steering)
        yield _series("steering_active_features", "Features being steered.", features)
        yield _series("circuits_serving", "Circuits that serve.", circuits.serving)
        layers = {"served": circuits.layers_served, "composed": circuits.layers_composed}
        yield _series("circuit_layers", _CIRCUIT_LAYERS, layers, "kind")
        yield _series("circuit_claims_degraded", _DEGRADED, circuits.claims_degraded)
        yield _series("circuit_claim_faults_total", _CLAIM_FAULTS, circuits.claim_faults)
        circuits_armed = watched.circuit_sensing.armed_count
        armed = {"cluster": watched.sensing.is_armed, "circuit": circuits_armed}
        yield _series("sensing_armed", "Clusters or circuits that are sensed.", armed, "kind")
        yield _series("steering_applied_total", _APPLIED, self._applied)
        breakers = watched.hub.breakers()
        opened = {breaker.name: breaker.is_open for breaker in breakers}
        yield _series("circuit_breaker_open", "1 while calls are refused.", opened, "name")
        trips = {breaker.name: breaker.trips for breaker in breakers}
        yield _series("circuit_breaker_trips_total", "Times it opened.", trips, "name")
        about = "Memory of a process of the service."
        yield _series("process_resident_memory_bytes", about, self._memory(), "process")
        yield from self._replicas()
        cards = watched.cards.last.cards if watched.cards.last else ()
        used = {str(card.smi_index): card.used_mb * MIB for card in cards}
        yield _series("card_memory_used_bytes", "Memory in use on a card.", used, "card")
        whole = {str(card.smi_index): card.total_mb * MIB for card in cards}
        yield _series("card_memory_total_bytes", "Memory of a card.", whole, "card")
        build = {(__version__, platform.python_version()): 1}
        yield _series("build_info", "Always 1; what runs.", build, "version", "python")

    def _replicas(self) -> Iterator[Metric]:
        now = self._watched.replicas.now()
        views = now.replicas if now is not None else ()
        states = [state for state in ReplicaState if now and state is not ReplicaState.ENDED]
        counts = {state.value: sum(view.state is state for view in views) for state in states}
        yield _series("replicas", "Replicas of the loaded model in each state.", counts, "state")
        serving = "1 while the replica gets requests."
        restarts = "How often a replica was started again."
        for name, about, values in (
            ("serving", serving, [view.state is ReplicaState.SERVING for view in views]),
            ("requests", "Requests on a replica.", [view.requests for view in views]),
            ("epoch", _EPOCH, [view.epoch for view in views]),
            ("restarts", restarts, [view.restarts for view in views]),
        ):
            named = [(view.name, view.node or "") for view in views]
            samples = dict(zip(named, values, strict=True))
            yield _series(f"replica_{name}", about, samples, "replica", "node")

    def _count_applied(self) -> None:
        engine = self._watched.engine
        seen = self._seen if engine is self._counted else {}
        now = dict(engine.passes.applied) if engine else {}
        for key, count in now.items():
            before = seen.get(key, 0)
            # a smaller count than before means that the SAE was detached and attached again
            self._applied += count - before if count >= before else count
        self._counted, self._seen = engine, now

    def _memory(self) -> dict[str, int]:
        """The resident memory of the processes of the service on this machine."""
        memory = {"control": psutil.Process().memory_info().rss}
        engine = self._watched.engine
        if engine is not None and (pid := local_pid(engine)) is not None:
            with suppress(psutil.Error):  # the engine may just have ended
                memory["engine"] = psutil.Process(pid).memory_info().rss
        return memory


Samples = Mapping[str, float] | Mapping[tuple[str, str], float] | float
"""The values of a series by its label or by its two labels, or the one value of a series without labels."""


def _series(name: str, about: str, samples: Samples, *labels: str) -> Metric:
    """A gauge, or a counter where the name ends with `_total`."""
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family = kind(f"{NAMESPACE}_{name}", about, labels=labels)
    for key, value in (samples if isinstance(samples, Mapping) else {(): samples}).items():
        family.add_metric((key,) if isinstance(key, str) else key, value)
    return family


@dataclass(frozen=True, slots=True)
class _Both(Collector):
    """The series of a registry and those that were read."""

    registry: Collector
    read: tuple[Metric, ...]

    def collect(self) -> Iterator[Metric]:
        return chain(self.registry.collect(), self.read)


def _with_reason(reading: CardReading) -> ReasonedCardTotals:
    numbers = totals(reading)
    shown = {field.name: getattr(numbers, field.name) for field in fields(numbers)}
    return ReasonedCardTotals(**shown, reason=reading.reason)
