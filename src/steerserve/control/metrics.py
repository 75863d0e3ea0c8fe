"""Counts and times of requests, tokens and loads. The parts of the service that do the work report them here.

All series are in one registry of the service. Labels have few values: the paths of routes as the application declares
them, statuses, codes of the error table. No label has a name that a client sends. The facts for the access log are
collected here too, one record for each request.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)

from steerserve.control.full_queue import FullQueue, Later, on_loop
from steerserve.control.retry import DefaultedLog
from steerserve.messages import Embedded, Outcome, Piece, Scored, Started
from steerserve.rules.bounds import DURATIONS_KEPT

NAMESPACE = "steerserve"
SENSING_KINDS = ("cluster", "circuit")

_LONG = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_SHORT = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)
_LOAD = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)


@dataclass(slots=True)
class RequestRecord:
    """The facts of one request for the access log, filled in while the request is served. `code` is the error code of
    its refusal. A page sends a request `in_background` when nobody clicked; its refusals are not counted.
    `object` names what the request changes, where its path does not. `request_id` is its X-Request-Id. `client` is who
    sent it (`rules/clients.py`)."""

    model: str | None = None
    code: str | None = None
    in_background: bool = False
    object: dict[str, object] = field(default_factory=dict)
    timing: Timing | None = None
    request_id: str | None = None
    client: str = ""


@dataclass(frozen=True, slots=True)
class SensingCounts:
    """The events that sensing wrote, those that could not be written, and the seconds of sensing for each choice."""

    events: Counter
    lost: Counter
    overhead: Histogram


# one more sample for each counter and histogram, which nobody needs
disable_created_metrics()  # type: ignore[no-untyped-call]

CURRENT: ContextVar[RequestRecord | None] = ContextVar("CURRENT", default=None)
"""The record of the request that this task serves."""


def note_object(**facts: object) -> None:
    """Name the object that the current request changes, for the line of the log. The facts are ids and numbers, never a
    text that a client chose freely."""
    record = CURRENT.get()
    if record is not None:
        record.object |= facts


class Metrics:
    """The counters and histograms of one service.

    Args:
        clock: seconds that only grow.
        later: calls a function after some seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, later: Later = on_loop) -> None:
        self.full_queue = FullQueue(later)
        self.defaulted = DefaultedLog(clock)
        self.registry = CollectorRegistry()
        self.clock = clock
        self.latencies: deque[float] = deque(maxlen=DURATIONS_KEPT)
        self.first_tokens: deque[float] = deque(maxlen=DURATIONS_KEPT)
        self.answers = self.errors = 0
        """The sums of `requests_total` and `request_errors_total`, which have a thousand samples after some days."""
        self._loading: dict[int, float] = {}
        self._requests = self._counter("requests", "Requests answered.", "route", "status")
        self.active = self._gauge("requests_active", "Requests being answered.")
        self._errors = self._counter("request_errors", "Refusals and failures answered.", "code")
        self._durations = self._histogram(
            "request_duration_seconds",
            "From a request to the end of its answer.",
            _LONG,
            "route",
            "stream",
        )
        self.first_token = self._histogram(
            "time_to_first_token_seconds", "From entering the queue to the first token.", _LONG
        )
        self.per_token = self._histogram(
            "time_per_output_token_seconds",
            "Mean time between the tokens of a choice, after its first.",
            _SHORT,
        )
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts.")
        self.completion_tokens = self._counter("completion_tokens", "Tokens generated.")
        self.queue_wait = self._histogram(
            "queue_wait_seconds", "From entering the queue to holding a slot.", _LONG
        )
        self._queue_full = self._counter("queue_full", "Requests refused by a full queue.")
        self._loads = self._counter("model_loads", "Model loads that ended.", "outcome")
        self._load_seconds = self._histogram(
            "model_load_seconds", "From an engine's first report to a model that serves.", _LOAD
        )
        self._unloads = self._counter("model_unloads", "Models that left the slot.")
        for outcome in ("loaded", "failed"):
            self._loads.labels(outcome)
        self._make_sensing()

    def _make_sensing(self) -> None:
        events = self._counter("sensing_events", "Firings recorded by sensing.", "kind")
        lost = self._counter("sensing_events_lost", "Firings that were not recorded.", "kind")
        overhead = self._histogram(
            "sensing_overhead_seconds", "Time of sensing for one choice.", _SHORT, "kind"
        )
        self.cluster_sensing, self.circuit_sensing = (
            SensingCounts(events.labels(kind), lost.labels(kind), overhead.labels(kind))
            for kind in SENSING_KINDS
        )

    # ------------------------------------------------------------- reports

    def answered(self, route: str, status: int, seconds: float, *, is_stream: bool) -> None:
        """A request has ended, with any status. `route` is the path of its route as the application declares it."""
        self.answers += 1
        self._requests.labels(route, str(status)).inc()
        self._durations.labels(route, "true" if is_stream else "false").observe(seconds)
        if status == 200 and route.startswith("/v1/") and route != "/v1/models":
            self.latencies.append(seconds)

    def failed(self, code: str) -> None:
        """A refusal was answered, with its own status or inside a stream."""
        record = CURRENT.get()
        if record is not None:
            record.code = code
        if record is None or not record.in_background:
            self.errors += 1
            self._errors.labels(code).inc()
        if code == "QUEUE_FULL":
            self._queue_full.inc()
            self.full_queue.note()

    def resolved(self, model: str) -> None:
        """The request of the current task names this model."""
        record = CURRENT.get()
        if record is not None:
            record.model = model

    def request(self) -> Timing:
        """Begin to measure an inference request that enters the queue now."""
        timing, record = Timing(self), CURRENT.get()
        if record is not None:
            record.timing = timing
        return timing

    def load_began(self, model_id: int) -> None:
        """A load is under way; it is measured from the first call."""
        self._loading.setdefault(model_id, self.clock())

    def load_ended(self, model_id: int, result: Literal["loaded", "failed"]) -> None:
        self._loads.labels(result).inc()
        began = self._loading.pop(model_id, None)
        if began is not None and result == "loaded":
            self._load_seconds.observe(self.clock() - began)

    def unloaded(self) -> None:
        self._unloads.inc()

    # ------------------------------------------------------------- queries

    def total(self, series: str, /, **labels: str) -> float:
        """The sum of the samples of a series that have these labels. `series` is the name without the namespace."""
        # the other series are not read: there may be thousands of samples
        one = self.registry.restricted_registry([f"{NAMESPACE}_{series}"])
        return sum(
            sample.value
            for family in one.collect()
            for sample in family.samples
            if labels.items() <= sample.labels.items()
        )

    # ------------------------------------------------------------- inside

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(name, about, labels, namespace=NAMESPACE, registry=self.registry)

    def _gauge(self, name: str, about: str, *labels: str) -> Gauge:
        return Gauge(name, about, labels, namespace=NAMESPACE, registry=self.registry)

    def _histogram(
        self, name: str, about: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(
            name, about, labels, namespace=NAMESPACE, registry=self.registry, buckets=buckets
        )


class Timing:
    """Measures one inference request. For each event it only reads the clock and adds to a counter."""

    __slots__ = (
        "_admitted",
        "_began",
        "_choices",
        "_metrics",
        "_scored_at",
        "prompt_tokens",
        "scored",
    )

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._began = metrics.clock()
        self._admitted: float | None = None
        self._scored_at: float | None = None
        self._choices: dict[int, _Choice] = {}
        self.prompt_tokens = 0
        self.scored = 0

    @property
    def completion_tokens(self) -> int:
        return self.scored + sum(choice.tokens for choice in self._choices.values())

    def phases(self) -> dict[str, float]:
        """Milliseconds of each phase that the request has finished: `queue` until it had its slot, which includes a
        load of its model; `prefill` until its first token, or until its last score or embedding; `decode` from its
        first token to its last."""
        phases: dict[str, float] = {}
        if self._admitted is not None:
            phases["queue"] = self._admitted - self._began
            starts = [choice.first for choice in self._choices.values()]
            if self._scored_at is not None or starts:
                prefilled = min(starts) if self._scored_at is None else self._scored_at
                phases["prefill"] = prefilled - self._admitted
            if starts:
                last = max(choice.last for choice in self._choices.values())
                phases["decode"] = last - min(starts)
        return {name: round(seconds * 1000, 3) for name, seconds in phases.items()}

    def admitted(self) -> None:
        """The request has a slot."""
        self._admitted = self._metrics.clock()
        self._metrics.queue_wait.observe(self._admitted - self._began)

    def note_event(self, event: Started | Outcome) -> None:
        metrics = self._metrics
        if isinstance(event, Piece):
            now = metrics.clock()
            choice = self._choices.get(event.choice)
            if choice is None:
                self._first(event, now)
                return
            metrics.completion_tokens.inc(event.tokens - choice.tokens)
            choice.tokens, choice.last = event.tokens, now
        elif isinstance(event, Started):
            self.prompt_tokens = sum(event.prompt_tokens)
            metrics.prompt_tokens.inc(self.prompt_tokens)
        elif isinstance(event, Scored | Embedded):
            self._scored_at = metrics.clock()
            self.scored += isinstance(event, Scored)

    def ended(self) -> None:
        """No event follows. The time per token is observed for every choice, also for one that was cut off."""
        for choice in self._choices.values():
            if choice.tokens > choice.at_first:
                spent = choice.last - choice.first
                self._metrics.per_token.observe(spent / (choice.tokens - choice.at_first))

    def _first(self, event: Piece, now: float) -> None:
        metrics = self._metrics
        if not self._choices:
            metrics.first_token.observe(now - self._began)
            metrics.first_tokens.append(now - self._began)
        self._choices[event.choice] = _Choice(event.tokens, now)
        metrics.completion_tokens.inc(event.tokens)


class _Choice:
    """The tokens of a choice so far, and the times of the first and the last event with tokens."""

    __slots__ = ("at_first", "first", "last", "tokens")

    def __init__(self, tokens: int, now: float) -> None:
        self.tokens = self.at_first = tokens
        self.first = self.last = now
