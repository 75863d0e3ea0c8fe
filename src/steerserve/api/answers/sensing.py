"""What the routes of sensing and of circuit sensing answer."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from steerserve.api.answers import Instant
from steerserve.control.sensing.sensing_views import SensingIntent
from steerserve.rules.sensing.firings import ContextParts, FiredFeature

FiringPhase = Literal["prefill", "decode"]
UnsensableReason = Literal[
    "endpoint_not_a_feature", "layer_not_attached", "no_activation_threshold"
]


class FiringFacts(TypedDict):
    """What the records of both kinds of firings have. `choice` is the number of the choice of the request.
    `ambient_fired_count` counts the active features of the whole SAE, and is null where that was not measured.
    `truncated` says that later firings of the request were not recorded."""

    id: int
    request_id: str
    choice: int
    phase: FiringPhase
    ambient_fired_count: int | None
    summary: str
    truncated: bool
    created_at: Instant


class ClusterFiringFacts(FiringFacts):
    """Members of a cluster that fired together at the positions `pos_start` to `pos_end`, which count from the
    beginning of the prompt. `fired_members` has each feature with its largest activation."""

    profile_id: str
    pos_start: int
    pos_end: int
    fired_members: list[tuple[int, float]]
    fired_count: int
    score: float


class EdgeFiringFacts(FiringFacts):
    """An edge of a circuit that fired: its downstream feature, `token_lag` tokens after its upstream feature. A firing
    is an observation, and says nothing about causes. `edge_rung` and its phrase are the evidence of the edge then."""

    circuit_id: str
    edge_key: str
    up: FiredFeature
    down: FiredFeature
    token_lag: int
    edge_rung: int
    edge_rung_language: str
    edge_type: str | None


class ClusterFiringRecord(ClusterFiringFacts):
    """A recorded firing of a cluster. The text and the tokens around it are null where they are not kept."""

    context_text: str | None
    context_token_ids: list[int] | None
    context_parts: ContextParts | None


class EdgeFiringRecord(EdgeFiringFacts):
    """A recorded firing of an edge. The text and the tokens around it are null where they are not kept."""

    context_text: str | None
    context_token_ids: list[int] | None
    context_parts: ContextParts | None


class ClusterFirings(TypedDict):
    """Recorded firings, the newest first. `total` counts all that fit the request."""

    events: list[ClusterFiringRecord]
    total: int


class EdgeFirings(TypedDict):
    """Recorded firings, the newest first. `total` counts all that fit the request."""

    events: list[EdgeFiringRecord]
    total: int


class DeletedFirings(TypedDict):
    """How many records were deleted."""

    deleted: int


class FiringRetention(TypedDict):
    """How long records are kept: the most records of one cluster, and the most days."""

    max_events_per_cluster: int
    max_age_days: float


class ClusterSensingReport(TypedDict):
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
    threshold_mode: Literal["epsilon_max", "floor_only"] | None
    context_tokens: int | None
    last_request_overhead_ms: float | None
    overhead_warn_threshold_ms: float
    events_recorded_since_start: int
    ws_events_dropped: int
    ws_events_throttled: int
    retention: FiringRetention
    enabled_clusters: list[SensingIntent]


class SensingChange(TypedDict):
    """Whether the sensing of a cluster is enabled, and whether the cluster is armed now."""

    profile_id: str
    sensing_enabled: bool
    armed: bool


class QuorumChange(TypedDict):
    """The quorum that an operator has set, and the quorum that counts; null for a cluster that cannot be sensed."""

    profile_id: str
    min_k: int | None
    effective_min_k: int | None
    armed: bool


class UnsensableEdge(TypedDict):
    """An edge that cannot be observed, and why."""

    edge_key: str
    reason: UnsensableReason
    detail: str


class SensedCircuitReport(TypedDict):
    """A circuit that is sensed."""

    circuit_id: str
    circuit_name: str
    layers: list[int]
    sensable_edges: int
    unsensable_edges: list[UnsensableEdge]
    max_token_lag: int


class CircuitSensingState(TypedDict):
    """The state of circuit sensing. `circuits` are the armed circuits; `circuit_id` and `circuit_name` are those of the
    first. `paused_reason` says why a circuit that serves and whose sensing is enabled is not armed. `ws_throttled`
    counts firings that were recorded and not sent live. `note` says what a firing is."""

    note: str
    armed: bool
    paused_reason: str | None
    circuit_id: str | None
    circuit_name: str | None
    layers: list[int]
    sensable_edges: int
    unsensable_edges: list[UnsensableEdge]
    max_token_lag: int
    last_request_overhead_ms: float | None
    truncated_layers: list[int]
    requests_sensed: int
    requests_truncated: int
    events_recorded: int
    ws_dropped: int
    ws_throttled: int
    enabled_circuits: list[SensingIntent]
    circuits: list[SensedCircuitReport]


class CircuitSensingChange(TypedDict):
    """The outcome of enabling or disabling the sensing of a circuit."""

    circuit_id: str
    enabled: bool
    armed: bool
    unsensable_edges: list[UnsensableEdge]
    message: str
