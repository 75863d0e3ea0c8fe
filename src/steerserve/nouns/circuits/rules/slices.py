"""One layer of a circuit as a cluster document, for a circuit that cannot be served whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from steerserve.errors import Refusal
from steerserve.nouns.circuits.rules.document import Circuit
from steerserve.nouns.clusters import rules as cluster
from steerserve.nouns.clusters.rules import ImportedCluster
from steerserve.rules.steering import evidence
from steerserve.rules.steering.documents import part_of
from steerserve.rules.steering.members import SCHEMA_VERSION


def imported(
    text: str, circuit: Circuit, circuit_id: str, layer: int, intensity: float
) -> ImportedCluster:
    """The cluster of one layer of a circuit, from the stored text of the circuit's document."""
    return cluster.read(project(json.loads(text), circuit, circuit_id, layer, intensity))


def project(
    document: Mapping[str, Any], circuit: Circuit, circuit_id: str, layer: int, intensity: float
) -> dict[str, object]:
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
            "source_note": f"projection_of={circuit_id}; parent_rung={circuit.rung}; "
            f"parent_evidence={evidence.language(circuit.rung)}; partial_rendering=true"
        },
    }


def name(circuit_name: str, layer: int) -> str:
    """The name of the cluster, within the longest name of a cluster."""
    suffix = f" [L{layer} slice]"
    return circuit_name[: cluster.NAME_MAXIMUM - len(suffix)] + suffix


def incomplete(circuit: Circuit, layer: int, reason: str, why: str | None) -> Refusal:
    """The refusal of a circuit whose one layer cannot be served by a cluster."""
    offenders = [
        {"feature_idx": member.feature_idx, "layer": layer, "reason": reason}
        for member in circuit.members[layer]
    ]
    message = f"layer {layer} of the circuit cannot be served by a cluster"
    return Refusal(
        "SAE_SET_INCOMPLETE", f"{message}: {why}" if why else message, offenders=offenders
    )
