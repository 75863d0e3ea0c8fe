"""One layer of a circuit as a cluster document, for a circuit that cannot be served whole."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from steerserve.rules import cluster, evidence
from steerserve.rules.circuit import Circuit
from steerserve.rules.documents import part_of
from steerserve.rules.members import SCHEMA_VERSION

_PROJECTION = "projection_of"
_NAME = re.compile(r" \[L[0-9]+ s[lice]*\]?( \([0-9]+\))?$")


def project(
    document: Mapping[str, Any], circuit: Circuit, circuit_id: str, layer: int, intensity: float
) -> dict[str, Any]:
    """The cluster document of one layer. Its name ends in the layer, its budget is the budget of the layer with the
    intensity and the range of the circuit, and its provenance says that it is a part."""
    declared = (sae for sae in document["saes"] if sae.get("layer") == layer)
    budget = dict(part_of(part_of(part_of(document, "budget"), "layers"), str(layer)))
    budget["intensity"] = intensity
    if circuit.intensity_range is not None:
        budget["intensity_range"] = list(circuit.intensity_range)
    return {
        "kind": cluster.DEFINITION,
        "schema_version": SCHEMA_VERSION,
        "name": name(circuit.name, layer),
        "narrative": circuit.narrative,
        "model": dict(part_of(document, "model")),
        "sae": dict(next(declared, {"layer": layer})),
        "members": [
            {
                "feature_idx": member.feature_idx,
                "strength": member.strength,
                "sign": member.sign,
                "label": member.label,
                "max_activation": member.max_activation,
            }
            for member in circuit.members[layer]
        ],
        "budget": budget,
        "provenance": {
            "source_note": f"{_PROJECTION}={circuit_id}; parent_rung={circuit.rung}; "
            f"parent_evidence={evidence.language(circuit.rung)}; partial_rendering=true"
        },
    }


def circuit_of(document: Mapping[str, Any]) -> str | None:
    """The id of the circuit that a cluster document is a layer of; None for any other document."""
    note = str(part_of(document, "provenance").get("source_note"))
    key, _, circuit_id = note.partition(";")[0].partition("=")
    return circuit_id if key == _PROJECTION else None


def layer_of(document: Mapping[str, Any]) -> Any:
    """The layer that a cluster document declares."""
    return part_of(document, "sae").get("layer")


def is_name(cluster_name: str) -> bool:
    """Whether a cluster may be a layer of a circuit by its name. A number after the name may have cut off the end of
    the word `slice`."""
    return _NAME.search(cluster_name) is not None


def name(circuit_name: str, layer: int) -> str:
    """The name of the cluster, within the longest name of a cluster."""
    suffix = f" [L{layer} slice]"
    return circuit_name[: cluster.NAME_MAXIMUM - len(suffix)] + suffix
