"""What is known about steering several layers at once. Hazards are reported, and never change a value."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from steerserve.nouns.circuits.rules.document import AuthoredEdge, Circuit
from steerserve.rules.form import Form

HazardKind = Literal["compounding", "cancelling"]
MEASURED: Mapping[str, str] = MappingProxyType(
    {
        "source": "benchmarks/layers.py on the demo model, 2026-11-22",
        "one_layer_at_strength_5": "the loss of the text is 0.49 nats per token, +0.01 against unsteered text",
        "two_layers_at_strength_5": "the loss of the text is 0.50 nats per token, +0.02 against unsteered text",
        "note": (
            "Losses are nats per token under the unsteered model, 0.48 for unsteered text; "
            "at strength 20 0.49 with one layer and 0.51 with two; at strength 50 1.50 with one layer and 2.71 with "
            "two. The figures are of one small model and indicate only that effects on several layers add up."
        ),
    }
)
"""What `python -m benchmarks.layers` measured on the demo model."""


class HazardEnd(Form, frozen=True):
    """One end of an edge, with the value at which it is steered."""

    layer: int
    feature_idx: int | None
    value: float


class CircuitHazard(Form, frozen=True, kw_only=True):
    """Two steered features on different layers that are joined by an edge. `kind` is `compounding` where both values
    have the same sign. `label` says where the strength of the edge comes from."""

    kind: HazardKind
    edge_key: str
    up: HazardEnd
    down: HazardEnd
    label: str | None


def find_hazards(circuit: Circuit) -> list[CircuitHazard]:
    """The hazards of a circuit, one for each edge between two features of different layers that are steered by values
    other than 0."""
    hazards = []
    for edge in circuit.edges:
        up, down = (
            HazardEnd(end.layer, end.feature_idx, _value(circuit, end.layer, end.feature_idx))
            for end in (edge.up, edge.down)
        )
        if up.layer != down.layer and up.value and down.value:
            kind: HazardKind = "compounding" if (up.value > 0) == (down.value > 0) else "cancelling"
            hazards.append(
                CircuitHazard(kind=kind, edge_key=edge.key, up=up, down=down, label=_label(edge))
            )
    return hazards


def _value(circuit: Circuit, layer: int, feature: int | None) -> float:
    """The steering value of a member at intensity 1; 0 for anything that is no member."""
    of_layer = circuit.members.get(layer, ())
    return next((member.value for member in of_layer if member.feature_idx == feature), 0.0)


def _label(edge: AuthoredEdge) -> str | None:
    if edge.effect_size is not None:
        return f"validated:ES={edge.effect_size:g}"
    if edge.weight_prior is not None:
        return f"heuristic:weight_prior={edge.weight_prior:g}"
    return None
