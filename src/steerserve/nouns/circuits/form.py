"""What the routes of circuits answer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from msgspec import UNSET, UnsetType

from steerserve.control.steering.views import Values
from steerserve.nouns.circuits.rules.binding import Verdict
from steerserve.nouns.circuits.rules.document import CircuitEdgeEnd
from steerserve.nouns.circuits.rules.hazards import CircuitHazard
from steerserve.rules.form import Form

ServingMode = Literal["full", "slice_fallback"]
FULL: ServingMode = "full"
SLICE: ServingMode = "slice_fallback"


class LayerVerdict(Form, frozen=True):
    """How a layer of a circuit is bound to the attached SAEs: `warn` where the SAE may be another one than declared,
    `block` where the SAE has another feature space, `unbound` where none is attached there. `reason` says why."""

    layer: int
    sae_id: str | None
    verdict: Verdict
    reason: str | None


class CircuitRecord(Form, frozen=True, kw_only=True):
    """A circuit as it is now. `rung` is its evidence, and `rung_language` the phrase for it; `rung_next_step` is the
    test that would raise it. `serveable` says whether the attached SAEs can serve it whole. `serving_mode` and
    `steering` are null where the circuit does not serve, or where this was not looked at. `composed_layers` are the
    layers that it serves together with other circuits."""

    id: str
    name: str
    description: str | None
    rung: int
    rung_language: str
    rung_next_step: str | None
    validated: bool
    edge_count: int
    layers: tuple[int, ...]
    serveable: bool
    is_active: bool
    serving_mode: ServingMode | None
    intensity: float
    steering: bool | None
    composed_layers: tuple[int, ...]
    per_sae_warnings: list[LayerVerdict]
    created_at: datetime
    updated_at: datetime


class CircuitList(Form, frozen=True):
    """A page of circuits, the newest first, and how many circuits fit the request."""

    circuits: list[CircuitRecord]
    active_circuit_id: str | None
    total: int


class SteeredMember(Form, frozen=True):
    """A feature that a circuit steers at a layer, with its label in the document and its value at intensity 1."""

    layer: int
    feature_idx: int
    label: str | None
    value: float


class CircuitEdgeRecord(Form, frozen=True, kw_only=True):
    """An edge of a circuit with its evidence and the phrase for it. `effect_size` says how strongly an intervention at
    `up` changed `down`, and `weight_prior` how strong the edge is by the weights of the model alone; each is null where
    the document does not have it."""

    edge_key: str
    up: CircuitEdgeEnd
    down: CircuitEdgeEnd
    edge_type: str | None
    rung: int
    rung_language: str
    effect_size: float | None
    weight_prior: float | None


class ImportedCircuitRecord(CircuitRecord, frozen=True, kw_only=True):
    """The circuit that was imported."""

    warnings: tuple[str, ...]


class CircuitDetailRecord(CircuitRecord, frozen=True, kw_only=True):
    """A circuit with its members by layer, its edges and its hazards. `dial_range` has the lowest and the highest
    intensity that the dial can have. `sensing_enabled` says whether an operator wants its edges to be sensed."""

    dial_range: tuple[float, float]
    sensing_enabled: bool
    members: list[SteeredMember]
    edges: list[CircuitEdgeRecord]
    hazards: list[CircuitHazard]


class ActivatedCircuit(CircuitRecord, frozen=True, kw_only=True):
    """The outcome of an activation. `applied_per_layer` has the live values of the circuit by layer; null where one
    layer is served as a cluster, which is `slice_layer` then. `allowed_layer_overlap` is there where the operator
    allowed an overlap that the activation used."""

    bound_layers: tuple[int, ...]
    slice_layer: int | None
    applied_per_layer: dict[str, Values] | None
    hazards: list[CircuitHazard]
    warnings: tuple[str, ...]
    acknowledged_unvalidated: bool
    allowed_layer_overlap: Literal[True] | UnsetType = UNSET


class DeactivatedCircuit(CircuitRecord, frozen=True, kw_only=True):
    """The circuit that was ended; `cleared_steering` says whether it served."""

    cleared_steering: bool


class RedialledCircuit(CircuitRecord, frozen=True, kw_only=True):
    """The circuit with its new intensity. `reapplied` says that the intensity is live now. `superseded` says that it
    was applied, and that the steering was changed again since."""

    reapplied: bool
    superseded: bool
    warnings: tuple[str, ...]


class ClaimedLayer(Form, frozen=True, kw_only=True):
    """A layer that a circuit holds, and the features that it steers there. `composed` says that several circuits hold
    the layer."""

    layer: int
    circuit_id: str
    circuit_name: str
    composed: bool
    steering_keys: list[int]


class ReleasedClaims(Form, frozen=True):
    """The layers that a circuit held and that are free now."""

    circuit_id: str
    released_layers: tuple[int, ...]
    warnings: tuple[str, ...]


class DeletedCircuit(Form, frozen=True):
    """The circuit that was deleted."""

    circuit_id: str
    deleted: Literal[True]


@dataclass(frozen=True, slots=True)
class CircuitsHealth:
    """The circuits that serve, and whether their claims agree with them. `reasons` say where they do not.
    `claim_faults` counts the readings and writings of claims that the database refused."""

    serving: int
    layers_served: int
    layers_composed: int
    claims_degraded: bool
    reasons: tuple[str, ...]
    claim_faults: int
