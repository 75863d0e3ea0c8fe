"""Which attached SAE serves each layer of a circuit, and whether the circuit can be served whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from steerserve.errors import Refusal
from steerserve.nouns.circuits.rules.document import Circuit
from steerserve.rules.saes.attachment import AttachedSae
from steerserve.rules.steering.placed import Values

Verdict = Literal["bind", "warn", "block", "unbound"]
BIND: Verdict = "bind"
WARN: Verdict = "warn"
BLOCK: Verdict = "block"
UNBOUND: Verdict = "unbound"


@dataclass(frozen=True, slots=True)
class LayerBinding:
    """How one layer of a circuit is bound.

    Attributes:
        verdict: BIND; WARN if the SAE may be another one than declared; BLOCK if the SAE has another feature space;
            UNBOUND without exactly one SAE at the layer.
        sae_id: the attached SAE, or else the SAE that the document declares.
        key: the name of the attached SAE in the engine; None if no SAE serves the layer.
        d_sae: how many features the attached SAE has.
    """

    layer: int
    verdict: Verdict
    sae_id: str | None = None
    reason: str | None = None
    key: str | None = None
    d_sae: int | None = None

    @property
    def is_bound(self) -> bool:
        return self.verdict in (BIND, WARN)


@dataclass(frozen=True, slots=True)
class Declared:
    """What a circuit document says about one layer.

    Attributes:
        sae_id: the id that the SAE had where the document was made.
        n_features: how many features the SAE has; None where the document does not declare it.
        highest: the highest index of a member; -1 if the layer has none.
        is_expanded: whether the document has the features of all members of the layer.
    """

    layer: int
    sae_id: str | None = None
    n_features: int | None = None
    highest: int = -1
    is_expanded: bool = True


@dataclass(frozen=True, slots=True)
class CircuitOutline:
    """What lists show of a circuit, beside its columns. `needs` are in the order of the layers."""

    needs: tuple[Declared, ...]
    edge_count: int = 0
    intensity_range: tuple[float, float] | None = None

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(need.layer for need in self.needs)


def outline(circuit: Circuit) -> CircuitOutline:
    return CircuitOutline(declared(circuit), len(circuit.edges), circuit.intensity_range)


def declared(circuit: Circuit) -> tuple[Declared, ...]:
    """What a circuit needs at each of its layers."""
    return tuple(
        Declared(
            layer,
            circuit.sae(layer).sae_id,
            circuit.sae(layer).n_features,
            max((member.feature_idx for member in circuit.members.get(layer, ())), default=-1),
            layer not in circuit.unexpanded,
        )
        for layer in circuit.layers
    )


def bind(needs: Sequence[Declared], attached: Sequence[AttachedSae]) -> tuple[LayerBinding, ...]:
    """The binding of every layer of a circuit to the SAEs that are attached now."""
    return tuple(_bound(need, attached) for need in needs)


def is_serveable(bindings: Sequence[LayerBinding]) -> bool:
    """Whether the circuit can be served whole."""
    return all(binding.is_bound for binding in bindings)


def bound_layers(bindings: Sequence[LayerBinding]) -> tuple[int, ...]:
    return tuple(binding.layer for binding in bindings if binding.is_bound)


def check_indices(circuit: Circuit, attached: Sequence[AttachedSae]) -> None:
    """Check that the SAE at each layer has every feature of the circuit there. A layer whose SAE declares another
    feature space is not checked: it is blocked.

    Raises:
        Refusal: INVALID_FEATURE_INDEX naming the first offender.
    """
    for need in declared(circuit):
        sae = _serving(need, attached)
        if sae is None or need.n_features not in (None, sae.d_sae):
            continue
        for member in circuit.members.get(need.layer, ()):
            if member.feature_idx >= sae.d_sae:
                raise Refusal(
                    "INVALID_FEATURE_INDEX",
                    f"feature index {member.feature_idx} at layer {need.layer} is outside [0, {sae.d_sae}) "
                    "of the attached SAE",
                    feature_idx=member.feature_idx,
                    layer=need.layer,
                    sae_id=sae.sae_id,
                    d_sae=sae.d_sae,
                )


def incomplete(circuit: Circuit, bindings: Sequence[LayerBinding], message: str) -> Refusal:
    """The refusal of a circuit with layers that no SAE serves. Its offenders are the members of these layers."""
    offenders: list[dict[str, object]] = []
    for binding in bindings:
        if binding.is_bound:
            continue
        at = {"layer": binding.layer, "sae_id": binding.sae_id, "reason": binding.reason}
        of_layer = circuit.members.get(binding.layer, ())
        indices: list[int | None] = [*(member.feature_idx for member in of_layer)] or [None]
        offenders += [{"feature_idx": index, **at} for index in indices]
    return Refusal("SAE_SET_INCOMPLETE", message, offenders=offenders)


def values_at(circuit: Circuit, bindings: Sequence[LayerBinding]) -> dict[str, Values]:
    """Key of an SAE -> the values of the members there at intensity 1, before any clamp."""
    return {
        binding.key: {member.feature_idx: member.value for member in circuit.members[binding.layer]}
        for binding in bindings
        if binding.key is not None and binding.layer in circuit.members
    }


def _bound(need: Declared, attached: Sequence[AttachedSae]) -> LayerBinding:
    there = [sae for sae in attached if sae.layer == need.layer]
    sae = _serving(need, attached)
    if sae is None:
        missing = f"no SAE is attached at layer {need.layer}"
        several = (
            f"{len(there)} SAEs are attached at layer {need.layer}, and none is the declared one"
        )
        return LayerBinding(need.layer, UNBOUND, need.sae_id, several if there else missing)
    fault = _fault(need, sae)
    if fault is not None:
        return LayerBinding(need.layer, BLOCK, sae.sae_id, fault)
    differs = need.sae_id is not None and not sae.is_named(need.sae_id)
    reason = f"the document declares the SAE {need.sae_id!r}" if differs else None
    verdict = WARN if differs else BIND
    return LayerBinding(need.layer, verdict, sae.sae_id, reason, sae.key, sae.d_sae)


def _serving(need: Declared, attached: Sequence[AttachedSae]) -> AttachedSae | None:
    """The attached SAE of a layer: the only one, or else the one that has the declared id."""
    there = [sae for sae in attached if sae.layer == need.layer]
    if len(there) > 1:
        there = [sae for sae in there if need.sae_id and sae.is_named(need.sae_id)]
    return there[0] if len(there) == 1 else None


def _fault(need: Declared, sae: AttachedSae) -> str | None:
    if need.n_features not in (None, sae.d_sae):
        return f"the document declares {need.n_features} features, and the attached SAE has {sae.d_sae}"
    if need.highest >= sae.d_sae:
        return f"the document names feature {need.highest}, and the last one of the attached SAE is {sae.d_sae - 1}"
    if not need.is_expanded:
        return "the document does not have the features of a member of this layer"
    return None
