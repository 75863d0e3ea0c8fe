"""Cluster documents: which SAE they are bound to and may steer, the bounds of their intensity, and the gate."""

from __future__ import annotations

import json
from typing import Any

import pytest

from steerserve.errors import Refusal
from steerserve.nouns.clusters import rules as cluster
from steerserve.nouns.clusters.rules import Cluster
from steerserve.nouns.profiles.rules import Profile
from steerserve.rules.steering import activation as serving
from steerserve.rules.steering import documents
from steerserve.rules.steering import live as steering
from steerserve.rules.steering.dial import plan
from steerserve.rules.steering.intensity import Range
from steerserve.rules.steering.live import Live
from steerserve.rules.steering.members import AuthoredMember, SaeReference
from tests.refusals import refusal_of
from tests.rules.steering.saes import Sae

CONFIGURED = Range(0.5, 1.5)


FIRST, SECOND, WIDE = Sae("sae_a", 1), Sae("sae_b", 2), Sae("sae_w", 1, 20)
RAIN, WIND = AuthoredMember(3, 4.0), AuthoredMember(5, -2.0)


def made(
    layer: int | None = None,
    width: int | None = None,
    declared: tuple[float, float] | None = None,
) -> Cluster:
    return Cluster((RAIN, WIND), SaeReference("far", layer, width), declared)


def profile(facts: Cluster, sae_id: str | None = None, intensity: float = 1.0) -> Profile:
    return Profile("rain", facts.values, intensity, sae_id, facts.sae.layer, facts)


# ------------------------------------------------------------------ binding


@pytest.mark.parametrize(
    ("facts", "attached", "bound_to", "warnings"),
    [
        (made(), (), None, 1),
        (made(), (FIRST, SECOND), "sae_a", 0),
        (made(layer=2), (FIRST, SECOND), "sae_b", 0),
        (made(layer=7), (FIRST, SECOND), "sae_a", 1),
        (made(width=20), (FIRST, WIDE), "sae_w", 0),
        (made(layer=2, width=20), (SECOND, WIDE), "sae_w", 1),
        (made(width=11), (FIRST, WIDE), None, 1),
    ],
)
def test_an_import_is_bound_to_the_sae_that_fits_best(
    facts: Cluster, attached: tuple[Sae, ...], bound_to: str | None, warnings: int
) -> None:
    binding = cluster.bind(facts, attached)
    assert (binding.sae_id, len(binding.warnings)) == (bound_to, warnings)


@pytest.mark.parametrize(
    ("facts", "sae_id", "attached", "site"),
    [
        (made(), None, (FIRST, SECOND), FIRST),
        (made(layer=2), None, (FIRST, SECOND), SECOND),
        (made(), "sae_b", (FIRST, SECOND), SECOND),
        (made(), "sae_z", (FIRST, SECOND), None),
        (made(layer=1), "sae_z", (FIRST, SECOND), None),
        (made(layer=2, width=10), "sae_z", (FIRST, SECOND), SECOND),
        (made(layer=3, width=10), "sae_z", (FIRST, SECOND), None),
    ],
)
def test_a_bound_cluster_steers_its_sae_or_one_of_the_declared_layer_and_width(
    facts: Cluster, sae_id: str | None, attached: tuple[Sae, ...], site: Sae | None
) -> None:
    assert next(iter(facts.choice(sae_id).among(attached)), None) == site


# ------------------------------------------------------------------ the gate


@pytest.mark.parametrize(
    ("facts", "attached", "code"),
    [
        (made(), (), "SAE_NOT_ATTACHED"),
        (made(width=11), (FIRST,), "VALIDATION_ERROR"),
        (made(width=20), (FIRST,), "VALIDATION_ERROR"),
        (Cluster((AuthoredMember(10, 1.0),)), (FIRST,), "INVALID_FEATURE_INDEX"),
    ],
)
def test_a_cluster_that_does_not_fit_is_refused(
    facts: Cluster, attached: tuple[Sae, ...], code: str
) -> None:
    live = Live(epoch=3)
    refusal = refusal_of(serving.activate, live, "prof_1", profile(facts), attached)
    assert refusal.code == code


# ------------------------------------------------------------------ intensity


@pytest.mark.parametrize(
    ("declared", "highest"),
    [(None, 1.5), ((0.4, 1.6), 1.6), ((0.0, 5.0), 2.0), ((-1.0, 0.3), 0.3), ((-2.0, -1.0), 0.0)],
)
def test_an_operator_may_set_any_intensity_up_to_the_end_of_the_range(
    declared: tuple[float, float] | None, highest: float
) -> None:
    facts = made(declared=declared)
    for allowed in (0.0, highest / 2, highest):
        cluster.check_intensity(facts, "prof_1", allowed, CONFIGURED)
    for refused in (highest + 0.001, -0.1, float("nan")):
        refusal = refusal_of(cluster.check_intensity, facts, "prof_1", refused, CONFIGURED)
        assert refusal.code == "VALIDATION_ERROR"


@pytest.mark.shows("clusters.14", "steering-dial.5", "limits.21")
@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize(
    ("declared", "asked", "used"),
    [
        ((0.4, 1.6), "min", 0.4),
        ((0.4, 1.6), "max", 1.6),
        ((0.4, 1.6), 0.1, 0.1),
        ((0.4, 1.6), 1.0, 1.0),
        ((0.4, 1.6), 2.0, 1.6),
        (None, "min", 0.5),
        (None, "max", 1.5),
        (None, 0.2, 0.2),
        (None, 2.0, 1.5),
        ((0.5, 5.0), "max", 2.0),
        ((0.0, 2.0), "min", 0.0),
    ],
)
def test_the_dial_scales_authored_strengths_and_is_capped_at_the_end_of_the_range(
    is_named: bool, declared: tuple[float, float] | None, asked: Any, used: float
) -> None:
    # the intensity that the cluster steers at, and values set by hand since, do not count
    serves = serving.activate(
        Live(), "prof_1", profile(made(declared=declared), intensity=0.3), (FIRST,)
    )
    edited = steering.set_values(serves, FIRST.key, FIRST.d_sae, {3: 50.0, 8: 1.0})
    named = profile(made(declared=declared), intensity=0.3) if is_named else None
    planned = plan(asked, is_named, named, edited, (FIRST,), CONFIGURED)
    assert planned.echo == used
    assert planned.overlay == {FIRST.key: {3: 4.0 * used, 5: -2.0 * used}}


def test_a_named_cluster_without_an_intensity_has_its_own() -> None:
    named = profile(made(declared=(0.4, 1.6)), intensity=0.25)
    planned = plan(None, True, named, Live(), (FIRST,), CONFIGURED)
    assert (planned.overlay, planned.echo) == ({FIRST.key: {3: 1.0, 5: -0.5}}, None)


# ------------------------------------------------------------------ documents

MINIMAL: dict[str, Any] = {
    "kind": cluster.DEFINITION,
    "schema_version": "1",
    "name": "small",
    "members": [{"feature_idx": 1, "strength": 3}],
}


def refused(body: bytes) -> Refusal:
    return refusal_of(documents.parse, body, cluster.imported)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"schema_version": 1}, ["schema_version"]),
        ({"schema_version": "2"}, ["schema_version"]),
        ({"name": ""}, ["name"]),
        ({"name": "n" * 500}, ["name"]),
        ({"name": None}, ["name"]),
        ({"narrative": "x" * 10_001}, ["narrative"]),
        ({"members": []}, ["members"]),
        ({"members": [{"feature_idx": i, "strength": 1} for i in range(21)]}, ["members"]),
        ({"members": [{"feature_idx": 1}]}, ["members", 0, "strength"]),
        ({"members": {"1": 3}}, ["members"]),
        ({"sae": {"layer": -1}}, ["sae", "layer"]),
        ({"budget": {"intensity": 2.5}}, ["budget", "intensity"]),
        ({"budget": []}, ["budget"]),
        ({"provenance": {"source_note": "x" * 501}}, ["provenance", "source_note"]),
        ({"model": {"hf_id": 3}}, ["model", "hf_id"]),
    ],
)
def test_a_document_that_breaks_its_contract_is_refused(
    change: dict[str, Any], place: list[Any]
) -> None:
    refusal = refused(json.dumps(MINIMAL | change).encode())
    assert refusal.code == "VALIDATION_ERROR"
    assert refusal.details["errors"][0]["loc"] == ["body", *place]


def test_a_bundle_with_one_bad_definition_is_refused_as_a_whole() -> None:
    definitions = [MINIMAL, *[MINIMAL | {"members": []}] * 30]
    refusal = refused(json.dumps({"kind": cluster.BUNDLE, "definitions": definitions}).encode())
    assert [error["loc"][2] for error in refusal.details["errors"]] == list(range(1, 11))


@pytest.mark.parametrize("number", [b"NaN", b"-Infinity", b"1e999"])
@pytest.mark.parametrize("place", [b'"budget":{"intensity":%s}', b'"unknown":[%s]'])
def test_a_number_that_json_does_not_have_is_refused(number: bytes, place: bytes) -> None:
    body = json.dumps(MINIMAL).encode()[:-1] + b"," + place % number + b"}"
    assert refused(body).code == "VALIDATION_ERROR"


@pytest.mark.parametrize("kind", ["mistudio.circuit-definition", "other", 3, None])
def test_a_document_of_another_kind_is_refused(kind: Any) -> None:
    document = MINIMAL | {"kind": kind, "saes": [], "edges": []}
    assert refused(json.dumps(document).encode()).code == "UNKNOWN_KIND"


def test_a_document_that_leaves_out_its_kind_is_recognised_by_its_parts() -> None:
    bare = {key: value for key, value in MINIMAL.items() if key != "kind"}
    assert not documents.parse(json.dumps(bare).encode(), cluster.imported).is_bundle
    assert documents.parse(json.dumps({"definitions": [bare]}).encode(), cluster.imported).is_bundle


def test_several_definitions_without_a_kind_are_not_one_definition() -> None:
    refusal = refusal_of(cluster.definition, {"definitions": [MINIMAL, MINIMAL]})
    assert refusal.code == "UNKNOWN_KIND"


def test_a_feature_that_stands_twice_counts_with_its_first_entry() -> None:
    raw = [{"feature_idx": 3, "strength": 1}, {"feature_idx": 3, "strength": 2}]
    imported = cluster.definition({"name": "rain", "members": raw})
    assert imported.cluster.values == {3: 1.0}
    assert json.loads(imported.document)["members"] == raw


def test_the_end_of_the_range_decides_which_values_are_warned_of() -> None:
    strong = (AuthoredMember(1, 150.0), AuthoredMember(2, -120.0), AuthoredMember(3, 90.0))
    for declared, named in (((0.0, 1.5), "1"), ((0.0, 1.0), None), (None, "1, 2")):
        warnings = cluster.own_warnings(Cluster(strong, declared_range=declared), 1.0, CONFIGURED)
        assert [f"features {named} are" in warning for warning in warnings] == [True] * len(
            warnings
        )
        assert bool(warnings) is (named is not None)
