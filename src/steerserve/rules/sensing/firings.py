"""What is recorded of a firing: the events of cluster sensing and of circuit sensing, and their public form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from steerserve.rules.instant import iso

CONTEXT = "context_"
"""The names of all fields with text or tokens of a request begin with this."""

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
    firing: Any = field(repr=False)


def cluster_body(row: FiringRow) -> dict[str, object]:
    """A recorded firing of a cluster as clients get it."""
    fired: ClusterFiring = row.firing
    return {
        "id": row.id,
        "profile_id": row.subject,
        "request_id": fired.request_id,
        "choice": fired.choice,
        "phase": fired.phase,
        "pos_start": fired.pos_start,
        "pos_end": fired.pos_end,
        "fired_members": [[index, peak] for index, peak in fired.fired_members],
        "fired_count": fired.fired_count,
        "score": fired.score,
        **_common(row, fired),
    }


def edge_body(row: FiringRow) -> dict[str, object]:
    """A recorded firing of an edge as clients get it."""
    fired: EdgeFiring = row.firing
    return {
        "id": row.id,
        "circuit_id": row.subject,
        "request_id": fired.request_id,
        "choice": fired.choice,
        "phase": fired.phase,
        "edge_key": fired.edge_key,
        "up": asdict(fired.up),
        "down": asdict(fired.down),
        "token_lag": fired.token_lag,
        "edge_rung": fired.edge_rung,
        "edge_rung_language": fired.edge_rung_language,
        "edge_type": fired.edge_type,
        **_common(row, fired),
    }


def without_context(body: Mapping[str, object]) -> dict[str, object]:
    """The body of an event without text and tokens of the request, whatever such fields there are."""
    return {name: value for name, value in body.items() if not name.startswith(CONTEXT)}


def _common(row: FiringRow, fired: Firing) -> dict[str, object]:
    ids, parts = fired.context_token_ids, fired.context_parts
    return {
        "ambient_fired_count": fired.ambient_fired_count,
        "context_text": fired.context_text,
        "context_token_ids": None if ids is None else list(ids),
        "context_parts": None if parts is None else asdict(parts),
        "summary": fired.summary,
        "truncated": fired.truncated,
        "created_at": iso(row.created_at),
    }
