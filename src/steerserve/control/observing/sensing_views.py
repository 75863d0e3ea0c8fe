"""What sensing answers to its readers, and the events of the engine as they are recorded."""

from __future__ import annotations

from dataclasses import dataclass

from steerserve.engine.wire import messages as m
from steerserve.rules.firings import ClusterFiring, ContextParts


@dataclass(frozen=True, slots=True)
class SensingIntent:
    """A cluster or circuit whose sensing is enabled. It is sensed only while it is active."""

    id: str
    name: str
    is_active: bool


@dataclass(frozen=True, slots=True)
class SensingStatus:
    """The state of cluster sensing. The facts of the armed cluster are None, or 0, while no cluster is armed."""

    armed: bool
    profile_id: str | None
    profile_name: str | None
    member_count: int
    sensable_count: int
    min_k: int | None
    threshold_mode: str | None
    context_tokens: int | None
    last_request_overhead_ms: float | None
    overhead_warn_threshold_ms: float
    events_recorded_since_start: int
    ws_events_dropped: int
    max_events_per_cluster: int
    max_age_days: float
    enabled_clusters: tuple[SensingIntent, ...]


@dataclass(frozen=True, slots=True)
class QuorumReport:
    """The quorum that an operator has set, and the quorum that counts; None for a cluster that cannot be sensed."""

    min_k: int | None
    effective_min_k: int | None
    armed: bool


def cluster_firing(told: m.SensedSpans, span: m.SensedSpan) -> ClusterFiring:
    """One span that the engine told, as it is recorded."""
    window = span.window
    return ClusterFiring(
        told.label,
        told.choice,
        span.phase,
        span.summary,
        span.is_truncated,
        span.ambient,
        window.text,
        None if window.token_ids is None else tuple(window.token_ids),
        None if window.parts is None else ContextParts(*window.parts),
        pos_start=span.start,
        pos_end=span.end,
        fired_members=tuple((int(index), float(peak)) for index, peak in span.fired),
        score=span.score,
    )
