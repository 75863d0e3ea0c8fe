"""Which circuit holds which layer, and whether another circuit may serve beside it.

A circuit that serves claims each of its layers. Features of one layer add up, so two circuits on one layer are refused
unless the operator allows the overlap. Two circuits on one feature are always refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steerserve.errors import Refusal
from steerserve.nouns.circuits.rules.hazards import MEASURED

OVERRIDE = "allow_layer_overlap"
"""The parameter that allows a circuit to serve on the layers of another circuit."""

OVERRIDDEN = "allowed_layer_overlap"
"""The field of an answer that says that the parameter was needed."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A circuit that is to serve: layer -> the features that it steers there. `is_slice` says that one layer of the
    circuit is served by a cluster."""

    circuit_id: str
    name: str
    features: Mapping[int, Collection[int]]
    is_slice: bool = False


@dataclass(frozen=True, slots=True)
class LayerClaim:
    """One layer that a circuit holds. `is_composed` says that the circuit joined a layer that another circuit held."""

    circuit_id: str
    circuit_name: str
    layer: int
    features: tuple[int, ...]
    is_composed: bool = False
    is_slice: bool = False


def admit(wanted: Wanted, claims: Iterable[LayerClaim], *, allows_overlap: bool) -> tuple[int, ...]:
    """The layers that the circuit shares with other circuits from now on. A circuit never contends with itself.

    (1) Two circuits on one feature are refused, with or without the override. (2) A second circuit that serves one
    layer by a cluster is refused too, because only one cluster serves at a time. (3) Two circuits on one layer are
    refused without the override.

    Raises:
        Refusal: CIRCUIT_LAYER_CONTENTION.
    """
    others = [claim for claim in claims if claim.circuit_id != wanted.circuit_id]
    shared = [claim for claim in others if claim.layer in wanted.features]
    if any(_colliding(wanted, claim) for claim in shared):
        raise contention(wanted, shared)  # (1)
    slices = [claim for claim in others if claim.is_slice and wanted.is_slice]
    if slices:
        raise contention(wanted, slices)  # (2)
    if shared and not allows_overlap:
        raise contention(wanted, shared)  # (3)
    return tuple(sorted({claim.layer for claim in shared}))


def contention(wanted: Wanted, incumbents: Sequence[LayerClaim]) -> Refusal:
    """The refusal of a circuit because of claims of other circuits."""
    colliding = [
        {"layer": claim.layer, "feature_idx": feature, "incumbent": _name(claim)}
        for claim in incumbents
        for feature in _colliding(wanted, claim)
    ]
    is_second_slice = wanted.is_slice and any(claim.is_slice for claim in incumbents)
    layers = sorted({claim.layer for claim in incumbents} & wanted.features.keys())
    details: dict[str, Any] = {
        "contended_layers": layers,
        "incumbent": colliding[0]["incumbent"] if colliding else _name(incumbents[0]),
        "requested": {"id": wanted.circuit_id, "name": wanted.name},
        "all_incumbents": _all(incumbents),
        "overridable": not (colliding or is_second_slice),
        "measured_hazard": dict(MEASURED),
    }
    if colliding:
        details["colliding_keys"] = colliding
    elif is_second_slice:
        details["reason"] = "slice_fallback_is_single_active"
    else:
        details["override_param"] = OVERRIDE
        details["rung_header_suppressed_if_overridden"] = True
    return Refusal("CIRCUIT_LAYER_CONTENTION", _sentence(details), **details)


def composed(claims: Iterable[LayerClaim]) -> frozenset[int]:
    """The layers that several circuits hold now."""
    counted = Counter(claim.layer for claim in claims)
    return frozenset(layer for layer, count in counted.items() if count > 1)


def leaders(claims: Sequence[LayerClaim]) -> tuple[LayerClaim, ...]:
    """The claims that become the leading claim of their layer: of each layer without a claim that is not composed, the
    oldest claim. `claims` stand in the order in which they were made."""
    led = {claim.layer for claim in claims if not claim.is_composed}
    oldest: dict[int, LayerClaim] = {}
    for claim in claims:
        oldest.setdefault(claim.layer, claim)
    return tuple(claim for layer, claim in oldest.items() if layer not in led)


def _colliding(wanted: Wanted, claim: LayerClaim) -> list[int]:
    return sorted(set(wanted.features.get(claim.layer, ())) & set(claim.features))


def _name(claim: LayerClaim) -> dict[str, object]:
    return {"id": claim.circuit_id, "name": claim.circuit_name}


def _all(claims: Sequence[LayerClaim]) -> list[dict[str, object]]:
    layers: dict[str, set[int]] = {}
    names: dict[str, dict[str, object]] = {}
    for claim in claims:
        layers.setdefault(claim.circuit_id, set()).add(claim.layer)
        names[claim.circuit_id] = _name(claim)
    return [name | {"layers": sorted(layers[key])} for key, name in names.items()]


def _sentence(details: Mapping[str, Any]) -> str:
    if "colliding_keys" in details:
        keys = details["colliding_keys"]
        holders, ending = _holders([key["incumbent"] for key in keys])
        named = ", ".join(f"{key['feature_idx']} at layer {key['layer']}" for key in keys[:5])
        more = f" and {len(keys) - 5} more" if len(keys) > 5 else ""
        return f"{holders} steer{ending} the same features: {named}{more}; deactivate the other circuit first"
    holders, ending = _holders(details["all_incumbents"])
    if "reason" in details:
        return (
            f"one layer of {holders} is served by a cluster, and only one cluster serves at a time"
        )
    layers = details["contended_layers"]
    where = f"layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))}"
    return f"{holders} serve{ending} on {where}; {OVERRIDE}=true serves both circuits there"


def _holders(incumbents: Sequence[Mapping[str, object]]) -> tuple[str, str]:
    """The names of circuits, each once, and the ending of a verb that follows them."""
    names = {one["id"]: repr(one["name"]) for one in incumbents}
    return ", ".join(names.values()), "s" if len(names) == 1 else ""
