"""What is recorded of a firing: the events of cluster sensing and of circuit sensing, and their public form."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from steerserve.rules.form import Form

FiringPhase = Literal["prefill", "decode"]

LIMIT_DEFAULT = 50
LIMIT_MAXIMUM = 500
FLUSH_EVENTS = 5
"""The most events that are sent live for one choice of a request: the newest."""
FLUSH_SECONDS = 0.1
"""The least time between two choices whose events are sent live. The record has the others too."""
PRUNE_SECONDS = 600
"""The least time between two prunings that readers cause."""


@dataclass(frozen=True, slots=True)
class ContextParts:
    """The text before, in and after an event."""

    before: str
    span: str
    after: str


@dataclass(frozen=True, slots=True)
class Firing:
    """What both kinds of events have. `ambient_fired_count` counts the active features of the whole SAE; None where
    that was not measured."""

    request_id: str
    choice: int
    phase: str
    summary: str
    truncated: bool
    ambient_fired_count: int | None = None
    context_text: str | None = None
    context_token_ids: tuple[int, ...] | None = None
    context_parts: ContextParts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFiring(Firing):
    """Members of a cluster that fired together at the positions `pos_start` to `pos_end`, each as (feature, peak)."""

    pos_start: int
    pos_end: int
    fired_members: tuple[tuple[int, float], ...]
    score: float

    @property
    def fired_count(self) -> int:
        return len(self.fired_members)


@dataclass(frozen=True, slots=True)
class FiredFeature:
    layer: int
    feature_idx: int
    pos: int
    act: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeFiring(Firing):
    """An edge of a circuit that fired, with the rung and its phrase as they were then."""

    edge_key: str
    up: FiredFeature
    down: FiredFeature
    edge_rung: int
    edge_rung_language: str
    edge_type: str | None = None

    @property
    def token_lag(self) -> int:
        return self.down.pos - self.up.pos


@dataclass(frozen=True, slots=True)
class FiringRow:
    """One event in the record. `subject` is the id of the cluster or circuit."""

    id: int
    subject: str
    created_at: datetime
    firing: Firing = field(repr=False)


class FiringEnd(Form, frozen=True, kw_only=True):
    """What stands last in the records of both kinds of firings. `truncated` says that later firings of the request were
    not recorded. In these records `choice` is the number of the choice of the request. `ambient_fired_count` counts the
    active features of the whole SAE, and is null where that was not measured."""

    summary: str
    truncated: bool
    created_at: datetime


class ClusterFiringFacts(FiringEnd, frozen=True):
    """Members of a cluster that fired together at the positions `pos_start` to `pos_end`, which count from the
    beginning of the prompt. `fired_members` has each feature with its largest activation."""

    id: int
    profile_id: str
    request_id: str
    choice: int
    phase: FiringPhase
    pos_start: int
    pos_end: int
    fired_members: tuple[tuple[int, float], ...]
    fired_count: int
    score: float
    ambient_fired_count: int | None


class EdgeFiringFacts(FiringEnd, frozen=True):
    """An edge of a circuit that fired: its downstream feature, `token_lag` tokens after its upstream feature. A firing
    is an observation, and says nothing about causes. `edge_rung` and its phrase are the evidence of the edge then."""

    id: int
    circuit_id: str
    request_id: str
    choice: int
    phase: FiringPhase
    edge_key: str
    up: FiredFeature
    down: FiredFeature
    token_lag: int
    edge_rung: int
    edge_rung_language: str
    edge_type: str | None
    ambient_fired_count: int | None


class ClusterFiringRecord(ClusterFiringFacts, frozen=True):
    """A recorded firing of a cluster. The text and the tokens around it are null where they are not kept."""

    context_text: str | None
    context_token_ids: tuple[int, ...] | None
    context_parts: ContextParts | None


class EdgeFiringRecord(EdgeFiringFacts, frozen=True):
    """A recorded firing of an edge. The text and the tokens around it are null where they are not kept."""

    context_text: str | None
    context_token_ids: tuple[int, ...] | None
    context_parts: ContextParts | None


def cluster_facts(row: FiringRow) -> ClusterFiringFacts:
    """A recorded firing of a cluster, without the text around it."""
    return ClusterFiringFacts(**_cluster(row))


def cluster_record(row: FiringRow) -> ClusterFiringRecord:
    """A recorded firing of a cluster, with the text around it."""
    return ClusterFiringRecord(**_cluster(row), **_context(row.firing))


def edge_facts(row: FiringRow) -> EdgeFiringFacts:
    """A recorded firing of an edge, without the text around it."""
    return EdgeFiringFacts(**_edge(row))


def edge_record(row: FiringRow) -> EdgeFiringRecord:
    """A recorded firing of an edge, with the text around it."""
    return EdgeFiringRecord(**_edge(row), **_context(row.firing))


def _cluster(row: FiringRow) -> dict[str, Any]:
    own = _named(row.firing, "pos_start", "pos_end", "fired_members", "fired_count", "score")
    return _common(row) | own | {"profile_id": row.subject}


def _edge(row: FiringRow) -> dict[str, Any]:
    evidence = ("edge_rung", "edge_rung_language", "edge_type")
    own = _named(row.firing, "edge_key", "up", "down", "token_lag", *evidence)
    return _common(row) | own | {"circuit_id": row.subject}


def _common(row: FiringRow) -> dict[str, object]:
    measured = ("ambient_fired_count", "summary", "truncated")
    common = _named(row.firing, "request_id", "choice", "phase", *measured)
    return common | {"id": row.id, "created_at": row.created_at}


def _context(fired: Firing) -> dict[str, Any]:
    return _named(fired, "context_text", "context_token_ids", "context_parts")


def _named(fired: Firing, *names: str) -> dict[str, object]:
    return {name: getattr(fired, name) for name in names}
