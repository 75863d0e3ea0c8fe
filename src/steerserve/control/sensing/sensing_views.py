"""What sensing answers to its readers, and the events of the engine as they are recorded."""

from __future__ import annotations

from dataclasses import dataclass

from steerserve import messages as m
from steerserve.rules.form import Form
from steerserve.rules.sensing.circuit_sensing import UnsensableEdge
from steerserve.rules.sensing.cluster_sensing import ThresholdMode
from steerserve.rules.sensing.firings import (
    ClusterFiring,
    ClusterFiringRecord,
    ContextParts,
    EdgeFiring,
    EdgeFiringRecord,
    FiredFeature,
)


@dataclass(frozen=True, slots=True)
class SensingIntent:
    """A cluster or circuit whose sensing is enabled. It is sensed only while it is active."""

    id: str
    name: str
    is_active: bool


class ClusterFirings(Form, frozen=True):
    """Recorded firings, the newest first. `total` counts all that fit the request."""

    events: list[ClusterFiringRecord]
    total: int


class EdgeFirings(Form, frozen=True):
    """Recorded firings, the newest first. `total` counts all that fit the request."""

    total: int
    events: list[EdgeFiringRecord]


class DeletedFirings(Form, frozen=True):
    """How many records were deleted."""

    deleted: int


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


class SensedCircuitReport(Form, frozen=True):
    """A circuit that is sensed."""

    circuit_id: str
    circuit_name: str
    layers: tuple[int, ...]
    sensable_edges: int
    unsensable_edges: tuple[UnsensableEdge, ...]
    max_token_lag: int


class CircuitSensingState(Form, frozen=True, kw_only=True):
    """The state of circuit sensing. `circuits` are the armed circuits; `circuit_id` and `circuit_name` are those of the
    first. `paused_reason` says why a circuit that serves and whose sensing is enabled is not armed. `ws_throttled`
    counts firings that were recorded and not sent live. `note` says what a firing is."""

    note: str
    armed: bool
    paused_reason: str | None
    circuit_id: str | None
    circuit_name: str | None
    layers: tuple[int, ...]
    sensable_edges: int
    unsensable_edges: tuple[UnsensableEdge, ...]
    max_token_lag: int
    last_request_overhead_ms: float | None
    truncated_layers: tuple[int, ...]
    requests_sensed: int
    requests_truncated: int
    events_recorded: int
    ws_dropped: int
    ws_throttled: int
    enabled_circuits: tuple[SensingIntent, ...]
    circuits: tuple[SensedCircuitReport, ...]


class CircuitSensingChange(Form, frozen=True):
    """The outcome of enabling or disabling the sensing of a circuit."""

    circuit_id: str
    enabled: bool
    armed: bool
    unsensable_edges: tuple[UnsensableEdge, ...]
    message: str


def edge_firing(told: m.SensedEdges, fired: m.SensedEdge) -> EdgeFiring:
    """One firing of an edge that the engine told, as it is recorded."""
    return EdgeFiring(
        told.label,
        told.choice,
        fired.phase,
        fired.summary,
        fired.is_truncated,
        fired.ambient,
        *_context(fired.window),
        edge_key=fired.edge.name,
        up=_feature(fired.up),
        down=_feature(fired.down),
        edge_rung=fired.edge.rung,
        edge_rung_language=fired.edge.phrase,
        edge_type=fired.edge.kind,
    )


def _feature(fire: m.FeatureFiring) -> FiredFeature:
    return FiredFeature(fire.layer, fire.feature, fire.position, fire.activation)


def _context(
    window: m.Window,
) -> tuple[str | None, tuple[int, ...] | None, ContextParts | None]:
    return (
        window.text,
        None if window.token_ids is None else tuple(window.token_ids),
        None if window.parts is None else ContextParts(*window.parts),
    )


def cluster_firing(told: m.SensedSpans, span: m.SensedSpan) -> ClusterFiring:
    """One span that the engine told, as it is recorded."""
    return ClusterFiring(
        told.label,
        told.choice,
        span.phase,
        span.summary,
        span.is_truncated,
        span.ambient,
        *_context(span.window),
        pos_start=span.start,
        pos_end=span.end,
        fired_members=tuple((int(index), float(peak)) for index, peak in span.fired),
        score=span.score,
    )
