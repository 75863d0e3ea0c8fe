"""What the routes of circuit sensing answer, and its live event."""

from __future__ import annotations

from typing import ClassVar

from steerserve import messages as m
from steerserve.control.sensing.sensing_views import SensingIntent, context_of
from steerserve.nouns.circuit_sensing.rules import UnsensableEdge
from steerserve.rules.events import LiveEvent
from steerserve.rules.form import Form
from steerserve.rules.sensing.firings import (
    EdgeFiring,
    EdgeFiringFacts,
    EdgeFiringRecord,
    FiredFeature,
)


class CircuitFired(LiveEvent, frozen=True):
    """An edge of a circuit fired."""

    wire: ClassVar = "circuit:sensing:event"
    content: ClassVar = "firing"
    firing: EdgeFiringFacts


class EdgeFirings(Form, frozen=True):
    """Recorded firings, the newest first. `total` counts all that fit the request."""

    total: int
    events: list[EdgeFiringRecord]


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
        *context_of(fired.window),
        edge_key=fired.edge.name,
        up=_feature(fired.up),
        down=_feature(fired.down),
        edge_rung=fired.edge.rung,
        edge_rung_language=fired.edge.phrase,
        edge_type=fired.edge.kind,
    )


def _feature(fire: m.FeatureFiring) -> FiredFeature:
    return FiredFeature(fire.layer, fire.feature, fire.position, fire.activation)
