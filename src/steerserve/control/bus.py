"""Typed events inside the control plane. Owners publish them, and subscribers get them.

An exception in a subscriber is logged, and the other subscribers still get the event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

import structlog

from steerserve.rules.jobs import JobFacts
from steerserve.rules.residency.replicas import ReplicaView
from steerserve.rules.sensing.firings import ClusterFiringFacts, EdgeFiringFacts

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """`progress` is in percent. `speed_bps` is None until the speed was measured."""

    model_id: int
    progress: float
    downloaded_bytes: int
    total_bytes: int
    speed_bps: int | None


@dataclass(frozen=True, slots=True)
class DownloadComplete:
    model_id: int
    local_path: str


@dataclass(frozen=True, slots=True)
class DownloadError:
    model_id: int
    code: str
    message: str
    details: dict[str, object]


@dataclass(frozen=True, slots=True)
class LoadProgress:
    model_id: int
    stage: str
    progress: float


@dataclass(frozen=True, slots=True)
class LoadComplete:
    model_id: int
    memory_used_mb: int


@dataclass(frozen=True, slots=True)
class LoadError:
    model_id: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class ModelLeaving:
    """The model is being unloaded because somebody wants that, or wants another model."""

    model_id: int


@dataclass(frozen=True, slots=True)
class RequestsHeld:
    """A change of what is attached waits for the requests that run."""


@dataclass(frozen=True, slots=True)
class UnloadComplete:
    model_id: int


@dataclass(frozen=True, slots=True)
class ReplicaChanged:
    """A replica of the model came into another state. `wanted` and `serving` count the replicas of the model."""

    model_id: int
    replica: ReplicaView
    wanted: int
    serving: int


@dataclass(frozen=True, slots=True)
class LeaseChanged:
    """A lease of the model was granted or renewed, or it ended."""

    model_id: int


@dataclass(frozen=True, slots=True)
class SaeAttached:
    sae_id: str
    layer: int
    memory_mb: int


@dataclass(frozen=True, slots=True)
class SaeDetached:
    sae_id: str


@dataclass(frozen=True, slots=True)
class SaeDownloadProgress:
    """`percent` is 100 in the last report only."""

    sae_id: str
    percent: int


@dataclass(frozen=True, slots=True)
class SaeDownloadComplete:
    sae_id: str


@dataclass(frozen=True, slots=True)
class SaeDownloadError:
    sae_id: str
    message: str


@dataclass(frozen=True, slots=True)
class SteeringUpdate:
    """`values` are the values of the first attached SAE. `others` has the values of the other SAEs, by their keys, and
    `interventions` the live interventions as they were sent."""

    enabled: bool
    values: dict[str, float]
    others: dict[str, dict[str, float]] = field(default_factory=dict)
    interventions: list[dict[str, object]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ActiveProfileChanged:
    """Another profile or cluster is active now, or none. The cause may be an operator, a detached SAE, or the end of an
    engine."""

    profile_id: str | None


@dataclass(frozen=True, slots=True)
class ServedCircuitsChanged:
    """Other circuits serve now, or the same ones otherwise. The cause may be an operator, a detached SAE, or the end of
    an engine."""

    circuit_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MonitoringState:
    """An empty list of features means that all features are monitored."""

    enabled: bool
    features: list[int]


@dataclass(frozen=True, slots=True)
class MonitoringActivation:
    """The largest activations at the last token of a choice, as (feature, value)."""

    timestamp: datetime
    request_id: str
    position: int
    activations: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class ClusterFired:
    """Members of a cluster fired together. The event does not have the text around them."""

    firing: ClusterFiringFacts


@dataclass(frozen=True, slots=True)
class CircuitFired:
    """An edge of a circuit fired. The event does not have the text around it."""

    firing: EdgeFiringFacts


@dataclass(frozen=True, slots=True)
class JobProgressed:
    """A job has begun, or is further."""

    job: JobFacts


@dataclass(frozen=True, slots=True)
class JobEnded:
    job: JobFacts


Sent = (
    DownloadProgress
    | DownloadComplete
    | DownloadError
    | LoadProgress
    | LoadComplete
    | LoadError
    | UnloadComplete
    | ReplicaChanged
    | LeaseChanged
    | SaeAttached
    | SaeDetached
    | SaeDownloadProgress
    | SaeDownloadComplete
    | SaeDownloadError
    | SteeringUpdate
    | MonitoringState
    | MonitoringActivation
    | ClusterFired
    | CircuitFired
    | JobProgressed
    | JobEnded
)
"""The events that clients get too."""

Unsent = ActiveProfileChanged | ServedCircuitsChanged | ModelLeaving | RequestsHeld
"""The events that only owners get."""

Event = Sent | Unsent
Subscriber = Callable[[Event], None]


class Bus:
    """Calls every subscriber with each event, in the order of their subscription, before `publish` returns."""

    def __init__(self) -> None:
        self._subscribers: list[Subscriber] = []

    def subscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.append(subscriber)

    def publish(self, event: Event) -> None:
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception:
                log.exception("subscriber_failed", published=type(event).__name__)
