"""What sensing answers to its readers, and the events of the engine as they are recorded."""

from __future__ import annotations

from dataclasses import dataclass

from steerserve import messages as m
from steerserve.rules.sensing.circuit_sensing import Unsensable
from steerserve.rules.sensing.firings import ClusterFiring, ContextParts, EdgeFiring, FiredFeature


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
    ws_events_throttled: int
    max_events_per_cluster: int
    max_age_days: float
    enabled_clusters: tuple[SensingIntent, ...]


@dataclass(frozen=True, slots=True)
class QuorumReport:
    """The quorum that an operator has set, and the quorum that counts; None for a cluster that cannot be sensed."""

    min_k: int | None
    effective_min_k: int | None
    armed: bool


@dataclass(frozen=True, slots=True)
class SensedCircuit:
    """One circuit that is sensed, and the layers and edges that are."""

    id: str
    name: str
    layers: tuple[int, ...]
    sensable_edges: int
    unsensable_edges: tuple[Unsensable, ...]
    max_token_lag: int


@dataclass(frozen=True, slots=True)
class CircuitSensingStatus:
    """The state of circuit sensing. `circuits` are the armed circuits, in the order of their activation. The edges
    that cannot be observed are those of all circuits that serve and whose sensing is enabled. `paused_reason` says why
    such a circuit is not armed."""

    circuits: tuple[SensedCircuit, ...]
    unsensable_edges: tuple[Unsensable, ...]
    paused_reason: str | None
    max_token_lag: int
    last_request_overhead_ms: float | None
    truncated_layers: tuple[int, ...]
    requests_sensed: int
    requests_truncated: int
    events_recorded: int
    ws_throttled: int
    enabled_circuits: tuple[SensingIntent, ...]


@dataclass(frozen=True, slots=True)
class CircuitSensingReport:
    """The outcome of enabling or disabling the sensing of a circuit."""

    enabled: bool
    armed: bool
    unsensable_edges: tuple[Unsensable, ...]
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
