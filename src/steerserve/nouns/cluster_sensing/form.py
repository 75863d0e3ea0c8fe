"""What the routes of cluster sensing answer, and its live event."""

from __future__ import annotations

from typing import ClassVar

from steerserve import messages as m
from steerserve.control.sensing.sensing_views import SensingIntent, context_of
from steerserve.nouns.cluster_sensing.rules import ThresholdMode
from steerserve.rules.events import LiveEvent
from steerserve.rules.form import Form
from steerserve.rules.sensing.firings import (
    ClusterFiring,
    ClusterFiringFacts,
    ClusterFiringRecord,
)


class ClusterFired(LiveEvent, frozen=True):
    """Members of a cluster fired together."""

    wire: ClassVar = "sensing:event"
    content: ClassVar = "firing"
    firing: ClusterFiringFacts


class ClusterFirings(Form, frozen=True):
    """Recorded firings, the newest first. `total` counts all that fit the request."""

    events: list[ClusterFiringRecord]
    total: int


class FiringRetention(Form, frozen=True):
    """How long records are kept: the most records of one cluster, and the most days."""

    max_events_per_cluster: int
    max_age_days: float


class ClusterSensingReport(Form, frozen=True, kw_only=True):
    """The state of cluster sensing. The facts of the armed cluster are null, or 0, while no cluster is armed. A cluster
    fires where `min_k` of its `sensable_count` members fire together. `enabled_clusters` are sensed while they are
    active. `note` says what a firing is."""

    note: str
    armed: bool
    profile_id: str | None
    profile_name: str | None
    member_count: int
    sensable_count: int
    min_k: int | None
    threshold_mode: ThresholdMode | None
    context_tokens: int | None
    last_request_overhead_ms: float | None
    overhead_warn_threshold_ms: float
    events_recorded_since_start: int
    ws_events_dropped: int
    ws_events_throttled: int
    retention: FiringRetention
    enabled_clusters: tuple[SensingIntent, ...]


class SensingChange(Form, frozen=True):
    """Whether the sensing of a cluster is enabled, and whether the cluster is armed now."""

    profile_id: str
    sensing_enabled: bool
    armed: bool


class QuorumChange(Form, frozen=True):
    """The quorum that an operator has set, and the quorum that counts; null for a cluster that cannot be sensed."""

    profile_id: str
    min_k: int | None
    effective_min_k: int | None
    armed: bool


def cluster_firing(told: m.SensedSpans, span: m.SensedSpan) -> ClusterFiring:
    """One span that the engine told, as it is recorded."""
    return ClusterFiring(
        told.label,
        told.choice,
        span.phase,
        span.summary,
        span.is_truncated,
        span.ambient,
        *context_of(span.window),
        pos_start=span.start,
        pos_end=span.end,
        fired_members=tuple((int(index), float(peak)) for index, peak in span.fired),
        score=span.score,
    )
