"""The circuit document: its members by layer, its edges, and the rung that follows from the edges.

A circuit steers features of several layers at once. A member of the kind `cluster_ref` has the features of a cluster
in `expanded_members`. Its own `feature` counts too. If a document has a feature of a layer twice, the first one counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from steerserve.nouns.circuits.rules.shape import KIND, SHAPE
from steerserve.rules.bounds import CIRCUIT_LAYERS, CLUSTER_MEMBERS
from steerserve.rules.form import Form
from steerserve.rules.steering import documents, members
from steerserve.rules.steering.documents import DocumentFault, Place, as_number, part_of
from steerserve.rules.steering.evidence import rung_of
from steerserve.rules.steering.members import AuthoredMember, SaeReference, SensingOverrides
from steerserve.rules.steering.placed import clamp_warnings, is_clamped
from steerserve.rules.text import storable


class CircuitEdgeEnd(Form, frozen=True):
    """One end of an edge. `feature_idx` is null for an end that is a whole cluster."""

    layer: int
    feature_idx: int | None

    @property
    def name(self) -> str:
        feature = "cluster" if self.feature_idx is None else self.feature_idx
        return f"{feature}@{self.layer}"


@dataclass(frozen=True, slots=True)
class AuthoredEdge:
    """One edge of a circuit, as its document has it.

    Attributes:
        effect_size: how strongly an intervention at `up` changed `down`; None where nobody measured it.
        weight_prior: how strong the edge is by the weights of the model alone.
    """

    up: CircuitEdgeEnd
    down: CircuitEdgeEnd
    rung: int = 0
    kind: str | None = None
    effect_size: float | None = None
    weight_prior: float | None = None

    @property
    def key(self) -> str:
        return f"{self.up.name}->{self.down.name}"


@dataclass(frozen=True, slots=True)
class Circuit:
    """A circuit document that fits its shape.

    Attributes:
        layers: the layers of the members, in ascending order.
        members: layer -> the features that are steered there. `max_activation` is the largest one that the document has
            for the feature.
        unexpanded: the layers with a member whose features the document does not have.
        intensity: the intensity that the document asks for; None where it has none.
        intensity_range: the declared range; None where the document declares none.
    """

    name: str
    narrative: str | None
    model: str | None
    layers: tuple[int, ...]
    members: Mapping[int, tuple[AuthoredMember, ...]]
    saes: tuple[SaeReference, ...]
    edges: tuple[AuthoredEdge, ...] = ()
    unexpanded: frozenset[int] = frozenset()
    intensity: float | None = None
    intensity_range: tuple[float, float] | None = None
    sensing: SensingOverrides = field(default_factory=SensingOverrides)

    @property
    def rung(self) -> int:
        """The lowest rung of the edges; 0 without edges."""
        return min((edge.rung for edge in self.edges), default=0)

    @property
    def features(self) -> dict[int, tuple[int, ...]]:
        """Layer -> the indices of the features that are steered there."""
        return {
            layer: tuple(member.feature_idx for member in of_layer)
            for layer, of_layer in self.members.items()
        }

    @property
    def is_still(self) -> bool:
        """Whether all strengths are 0, so that serving the circuit changes nothing."""
        return all(member.value == 0 for of_layer in self.members.values() for member in of_layer)

    def sae(self, layer: int) -> SaeReference:
        """The SAE that the document declares for a layer."""
        declared = (sae for sae in self.saes if sae.layer == layer)
        return next(declared, SaeReference(layer=layer))


@dataclass(frozen=True, slots=True)
class ImportedCircuit:
    """A checked circuit, and the JSON text of its document, which is stored as it came."""

    circuit: Circuit
    document: str


# ------------------------------------------------------------- reading


def imported(document: Mapping[str, object]) -> ImportedCircuit:
    """The circuit in a document, to be stored.

    Raises:
        DocumentRefusal: UNKNOWN_KIND, VALIDATION_ERROR.
    """
    return ImportedCircuit(read(document), documents.written(document))


def read_text(text: str) -> Circuit:
    """The circuit in the stored text of a document.

    Raises:
        DocumentRefusal: UNKNOWN_KIND, VALIDATION_ERROR.
    """
    return read(json.loads(text))


def read(document: Mapping[str, object]) -> Circuit:
    """The circuit in a document.

    Raises:
        DocumentRefusal: UNKNOWN_KIND; VALIDATION_ERROR, whose details have the first faults.
    """
    if document.get("kind") not in (None, KIND):
        raise documents.unknown_kind(document, [KIND])
    documents.check_document(document, SHAPE)
    circuit = _circuit(document)
    faults = list(_faults(circuit))
    if faults:
        raise documents.invalid(faults[: documents.FAULTS_NAMED])
    return circuit


def warnings(circuit: Circuit, intensity: float) -> tuple[str, ...]:
    """What is remarkable about the values of a circuit at an intensity."""
    if circuit.is_still:
        return ("all strengths are 0, so the circuit steers nothing",)
    clamped = [
        f"{member.feature_idx} at layer {layer}"
        for layer, of_layer in circuit.members.items()
        for member in of_layer
        if is_clamped(member.value, intensity)
    ]
    return clamp_warnings(clamped, intensity)


def _circuit(document: Mapping[str, Any]) -> Circuit:
    budget = part_of(document, "budget")
    by_layer, unexpanded = _members(document["members"])
    layers = tuple(sorted(by_layer))
    return Circuit(
        name=document["name"],
        narrative=members.narrative(document),
        model=members.model_name(document),
        layers=layers,
        members={layer: by_layer[layer] for layer in layers if by_layer[layer]},
        saes=tuple(members.sae_reference(raw) for raw in document["saes"]),
        edges=tuple(_edge(raw) for raw in document.get("edges") or ()),
        unexpanded=unexpanded,
        intensity=members.declared_intensity(budget),
        intensity_range=members.declared_range(budget),
        sensing=members.sensing_overrides(document),
    )


def _of_entry(entry: Mapping[str, Any]) -> Iterator[AuthoredMember]:
    """The features of one entry of the members."""
    for raw in (*(entry.get("expanded_members") or ()), entry.get("feature")):
        if raw is not None:
            yield members.member(raw)


def _members(
    entries: Sequence[Mapping[str, Any]],
) -> tuple[dict[int, tuple[AuthoredMember, ...]], frozenset[int]]:
    """The features of each layer, each once, as its first entry has it, and the layers with an entry without
    features."""
    by_layer: dict[int, dict[int, AuthoredMember]] = {}
    unexpanded = set()
    for entry in entries:
        layer, features = int(entry["layer"]), list(_of_entry(entry))
        distinct = by_layer.setdefault(layer, {})
        if not features:
            unexpanded.add(layer)
        for member in features:
            first = distinct.setdefault(member.feature_idx, member)
            peaks = [one.max_activation for one in (first, member) if one.max_activation]
            distinct[member.feature_idx] = replace(first, max_activation=max(peaks, default=None))
    members_ = {layer: tuple(distinct.values()) for layer, distinct in by_layer.items()}
    return members_, frozenset(unexpanded)


def _edge(raw: Mapping[str, Any]) -> AuthoredEdge:
    kind = raw.get("type")
    return AuthoredEdge(
        up=_edge_end(raw["up"]),
        down=_edge_end(raw["down"]),
        rung=rung_of(raw.get("rung")),
        kind=None if kind is None else storable(kind[: members.LABEL_MAXIMUM]),
        effect_size=as_number(raw.get("effect_size")),
        weight_prior=as_number(raw.get("weight_prior")),
    )


def _edge_end(raw: Mapping[str, Any]) -> CircuitEdgeEnd:
    index = raw.get("feature_idx")
    if index is None or raw.get("kind") == "cluster":
        return CircuitEdgeEnd(int(raw["layer"]), None)
    return CircuitEdgeEnd(int(raw["layer"]), int(index))


def _faults(circuit: Circuit) -> Iterator[DocumentFault]:
    """The faults that no single field has."""
    place: Place = ("members",)
    if len(circuit.layers) > CIRCUIT_LAYERS:
        yield DocumentFault(
            place, f"{len(circuit.layers)} layers, where {CIRCUIT_LAYERS} are allowed"
        )
    if not circuit.members:
        yield DocumentFault(place, "no member has a feature")
    for layer, of_layer in circuit.members.items():
        if len(of_layer) > CLUSTER_MEMBERS:
            yield DocumentFault(
                place,
                f"{len(of_layer)} features at layer {layer}, where {CLUSTER_MEMBERS} are allowed",
            )
