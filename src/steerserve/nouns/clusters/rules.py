"""Cluster documents: their shape, what they steer, which attached SAE they fit, and the bounds of their intensity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from steerserve.errors import Refusal
from steerserve.rules.bounds import BUNDLE_DEFINITIONS, CLUSTER_MEMBERS
from steerserve.rules.field_faults import refuse_value
from steerserve.rules.form import Form
from steerserve.rules.saes.attachment import AttachedSae, ClusterChoice
from steerserve.rules.steering import documents, members
from steerserve.rules.steering.documents import fields, items, one_of
from steerserve.rules.steering.intensity import WHOLE, Range, find_limits
from steerserve.rules.steering.members import (
    AuthoredMember,
    SaeReference,
    SensingOverrides,
)
from steerserve.rules.steering.placed import LISTED, clamp_warnings, is_clamped, listed
from steerserve.rules.text import shown

DEFINITION = "mistudio.cluster-definition"
BUNDLE = "mistudio.cluster-bundle"
KINDS = (DEFINITION, BUNDLE)
NAME_MAXIMUM = 120

_DEFINITION = fields(
    {
        "name": members.name_shape(NAME_MAXIMUM),
        "members": items(members.MEMBER, 1, CLUSTER_MEMBERS),
    },
    {
        "kind": one_of(DEFINITION),
        "schema_version": one_of(members.SCHEMA_VERSION),
        "narrative": members.NARRATIVE,
        "display_token": documents.text(),
        "model": members.MODEL,
        "sae": members.SAE,
        "budget": fields({}, members.BUDGET_FIELDS),
        "provenance": members.PROVENANCE,
    },
)
_BUNDLE = fields(
    {"definitions": items(_DEFINITION, 1, BUNDLE_DEFINITIONS)},
    {"schema_version": one_of(members.SCHEMA_VERSION)},
)


class OfferedPack(Form, frozen=True):
    """A public pack of clusters on the model hub. `last_modified` is as the hub writes it."""

    repo_id: str
    likes: int | None
    downloads: int | None
    last_modified: str | None
    tags: list[str]


@dataclass(frozen=True, slots=True)
class Cluster:
    """The facts of a stored cluster document that the service uses.

    Attributes:
        members: its features, each once.
        sae: the SAE whose features they are.
        declared_range: the range of the intensity; None where the document declares none.
        display_token: a short word for the cluster, without the marks of a tokenizer.
        sensing: what the author wants for the sensing of the cluster.
    """

    members: tuple[AuthoredMember, ...]
    sae: SaeReference = field(default_factory=SaeReference)
    declared_range: tuple[float, float] | None = None
    display_token: str | None = None
    budget_b: float | None = None
    formula_id: str | None = None
    sensing: SensingOverrides = field(default_factory=SensingOverrides)

    @property
    def values(self) -> dict[int, float]:
        """Feature -> steering value at intensity 1."""
        return {member.feature_idx: member.value for member in self.members}

    def is_wide(self, sae: AttachedSae) -> bool:
        """Whether an SAE has the declared number of features."""
        return self.sae.n_features in (None, sae.d_sae)

    def choice(self, sae_id: str | None) -> ClusterChoice:
        """The attached SAEs that fit this cluster, which is bound to an SAE or, with None, to none."""
        return ClusterChoice(sae_id, self.sae.layer, self.sae.n_features)


@dataclass(frozen=True, slots=True)
class ImportedCluster:
    """A checked definition, with the fields of its record. `document` is the JSON text of the definition as it came."""

    name: str
    description: str | None
    model_id: str | None
    intensity: float
    document: str
    cluster: Cluster


@dataclass(frozen=True, slots=True)
class ReadClusters:
    """The definitions of one document, which is a definition or a bundle."""

    clusters: tuple[ImportedCluster, ...]
    is_bundle: bool


@dataclass(frozen=True, slots=True)
class Binding:
    """The SAE that a cluster is bound to; None while it is unbound. The warnings say what does not agree."""

    sae_id: str | None
    warnings: tuple[str, ...] = ()


# ------------------------------------------------------------- importing


def imported(document: Mapping[str, object]) -> ReadClusters:
    """The clusters in a document, which is checked as a whole.

    Raises:
        DocumentRefusal: UNKNOWN_KIND, VALIDATION_ERROR.
    """
    found = definitions(document)
    return ReadClusters(tuple(map(read, found)), is_bundle=found[0] is not document)


def definitions(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The definitions of a definition or a bundle, which is checked as a whole.

    Raises:
        DocumentRefusal: UNKNOWN_KIND, VALIDATION_ERROR.
    """
    kind = document.get("kind")
    if kind is None and not document.keys() & {"saes", "edges"}:
        kind = next((k for k, part in _PARTS.items() if part in document), None)
    if kind == DEFINITION:
        documents.check_document(document, _DEFINITION)
        return [document]
    if kind == BUNDLE:
        documents.check_document(document, _BUNDLE)
        return list(document["definitions"])
    raise documents.unknown_kind(document, KINDS)


_PARTS = {BUNDLE: "definitions", DEFINITION: "members"}
"""The kind of a document that leaves out its kind -> the key by which the document is recognised."""


def definition(document: Mapping[str, object]) -> ImportedCluster:
    """One definition, which is not a bundle.

    Raises:
        DocumentRefusal: UNKNOWN_KIND, VALIDATION_ERROR.
    """
    if document.get("kind") == BUNDLE:
        raise documents.unknown_kind(document, (DEFINITION,))
    found = definitions(document)
    if len(found) > 1:
        raise documents.unknown_kind(document, (DEFINITION,))
    return read(found[0])


def read(document: Mapping[str, Any]) -> ImportedCluster:
    """The cluster of a checked definition. A feature that is named twice counts with its first entry."""
    budget = document.get("budget")
    by_feature: dict[int, AuthoredMember] = {}
    for raw in document["members"]:
        member = members.member(raw)
        by_feature.setdefault(member.feature_idx, member)
    plain = documents.part_of(document, "budget")
    cluster = Cluster(
        tuple(by_feature.values()),
        members.sae_reference(document.get("sae")),
        members.declared_range(budget),
        members.display_word(document.get("display_token")),
        documents.as_number(plain.get("B")),
        plain.get("formula_id"),
        members.sensing_overrides(document),
    )
    intensity = members.declared_intensity(budget)
    return ImportedCluster(
        document["name"],
        members.narrative(document),
        members.model_name(document),
        1.0 if intensity is None else intensity,
        documents.written(document),
        cluster,
    )


# ------------------------------------------------------------- binding


def bind(cluster: Cluster, attached: Sequence[AttachedSae]) -> Binding:
    """The attached SAE that an imported cluster is bound to. (1) Without an attached SAE it stays unbound, (2) also
    where the declared number of features is another one. (3) A declared layer that is another one is only a warning."""
    if not attached:
        return Binding(None, ("no SAE is attached, so the cluster is not bound to one",))  # (1)
    sae = cluster.choice(None).among(attached)[0]
    if not cluster.is_wide(sae):
        why = (
            f"the cluster is made for an SAE with {cluster.sae.n_features} features; "
            f"{sae.sae_id} has {sae.d_sae}, so the cluster is not bound to it"
        )
        return Binding(None, (why,))  # (2)
    return Binding(sae.sae_id, _other_layer(cluster, sae))  # (3)


def site_warnings(cluster: Cluster, bound_to: str | None, sae: AttachedSae) -> tuple[str, ...]:
    """What does not agree between a cluster and the SAE that it steers."""
    other: tuple[str, ...] = ()
    if bound_to is not None and not sae.is_named(bound_to):
        other = (f"the cluster is bound to SAE {bound_to!r}; it steers {sae.sae_id!r}",)
    return other + _other_layer(cluster, sae)


def own_warnings(cluster: Cluster, intensity: float, configured: Range) -> tuple[str, ...]:
    """What is remarkable about the values of a cluster, whatever SAE is attached."""
    warnings: list[str] = []
    highest = find_limits(cluster.declared_range, WHOLE).highest
    above = [m.feature_idx for m in cluster.members if is_clamped(m.value, highest)]
    warnings += clamp_warnings(above, highest)
    warnings += strength_warnings(cluster)
    most = find_limits(cluster.declared_range, configured).highest
    if intensity > most:
        warnings.append(f"the intensity {intensity:g} is above {most:g}, the end of its range")
    return tuple(warnings)


def strength_warnings(cluster: Cluster) -> tuple[str, ...]:
    """A warning about a cluster that steers nothing."""
    is_nothing = not any(member.value for member in cluster.members)
    return ("all strengths are 0, so the cluster steers nothing",) if is_nothing else ()


def _other_layer(cluster: Cluster, sae: AttachedSae) -> tuple[str, ...]:
    if cluster.sae.layer in (None, sae.layer):
        return ()
    return (f"the cluster is made for layer {cluster.sae.layer}; the SAE is at layer {sae.layer}",)


# ------------------------------------------------------------- activating


def check_fits(cluster: Cluster, profile_id: str, sae: AttachedSae) -> None:
    """The hard gate. (1) The SAE has the number of features that the document declares, and (2) every member is one of
    them.

    Raises:
        Refusal: VALIDATION_ERROR, INVALID_FEATURE_INDEX.
    """
    if not cluster.is_wide(sae):
        why = f"the cluster is made for {cluster.sae.n_features} features; {sae.sae_id} has {sae.d_sae}"
        raise refuse_value(  # (1)
            ["path", "cluster_id"],
            why,
            profile_id=profile_id,
            declared_n_features=cluster.sae.n_features,
            attached_d_sae=sae.d_sae,
        )
    bad = [one.feature_idx for one in cluster.members if one.feature_idx >= sae.d_sae]
    if bad:
        raise Refusal(  # (2)
            "INVALID_FEATURE_INDEX",
            f"features {listed(bad)} are outside [0, {sae.d_sae}) of {sae.sae_id}",
            feature_idx=bad[0],
            bad_indices=bad[:LISTED],
            d_sae=sae.d_sae,
            attached_d_sae=sae.d_sae,
        )


# ------------------------------------------------------------- intensity


def check_intensity(cluster: Cluster, profile_id: str, intensity: float, configured: Range) -> None:
    """An operator may set any intensity from 0 to the end of the range. The floor of the range counts only for `min`.

    Raises:
        Refusal: VALIDATION_ERROR.
    """
    allowed = find_limits(cluster.declared_range, configured)
    if 0.0 <= intensity <= allowed.highest:
        return
    why = f"{intensity:g} is outside [0, {allowed.highest:g}]"
    raise refuse_value(
        ["body", "intensity"],
        why,
        f"intensity: {why}",
        profile_id=profile_id,
        intensity=intensity,
        range=[allowed.lowest, allowed.highest],
    )


def not_a_cluster(profile_id: str, source_kind: str) -> Refusal:
    """The refusal of a profile that is no cluster."""
    name = shown(profile_id)
    why = f"{name} is no cluster; its kind is {source_kind}"
    place = ["path", "cluster_id"]
    return refuse_value(place, why, profile_id=name, source_kind=source_kind)
