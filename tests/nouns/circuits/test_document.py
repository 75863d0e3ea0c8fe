"""The circuit document: what is read from it, what is refused, and what only looks wrong."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from steerserve.errors import DocumentRefusal
from steerserve.nouns.circuits.rules import document as circuit
from steerserve.nouns.circuits.rules import hazards
from steerserve.nouns.circuits.rules.document import Circuit
from tests import ROOT

EXAMPLE: dict[str, Any] = {
    "kind": "mistudio.circuit-definition",
    "schema_version": "1",
    "name": "rain to umbrella",
    "model": {"hf_id": "acme/tiny-1b"},
    "saes": [
        {"layer": 6, "mistudio_sae_id": "sae_a", "n_features": 16384},
        {"layer": 9, "mistudio_sae_id": "sae_b", "n_features": 16384},
    ],
    "members": [
        {"layer": 6, "feature": {"feature_idx": 70, "strength": 8, "max_activation": 5.0}},
        {
            "layer": 9,
            "member_kind": "cluster_ref",
            "cluster_name": "umbrella words",
            "expanded_members": [{"feature_idx": 31, "strength": 6, "max_activation": 4.0}],
        },
    ],
    "edges": [
        {
            "up": {"layer": 6, "feature_idx": 70},
            "down": {"layer": 9, "feature_idx": 31},
            "rung": 2,
            "effect_size": 0.4,
        }
    ],
    "budget": {
        "intensity": 1.0,
        "intensity_range": [0.2, 1.4],
        "layers": {"6": {"B_dir": 8}, "9": {"B_dir": 6}},
    },
}


def example(**changes: Any) -> dict[str, Any]:
    return copy.deepcopy(EXAMPLE) | changes


def read(**changes: Any) -> Circuit:
    return circuit.read(example(**changes))


def feature(index: int, strength: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"feature_idx": index, "strength": strength, **more}


def edge(**more: Any) -> dict[str, Any]:
    return {"up": {"layer": 6, "feature_idx": 70}, "down": {"layer": 9, "feature_idx": 31}, **more}


# ------------------------------------------------------------------ reading


def test_the_example_is_read_whole() -> None:
    made = read()
    assert (made.name, made.model, made.layers, made.rung) == (
        "rain to umbrella",
        "acme/tiny-1b",
        (6, 9),
        2,
    )
    assert made.features == {6: (70,), 9: (31,)}
    assert (made.intensity, made.intensity_range) == (1.0, (0.2, 1.4))
    assert made.sae(6).sae_id == "sae_a"
    assert made.sae(7).sae_id is None
    assert made.edges[0].key == "70@6->31@9"
    assert not made.is_still


def test_a_member_steers_its_expansion_and_its_own_feature() -> None:
    entry = {"layer": 6, "feature": feature(5), "expanded_members": [feature(3), feature(4)]}
    assert read(members=[entry]).features == {6: (3, 4, 5)}


def test_of_a_feature_that_stands_twice_the_first_counts() -> None:
    members = [
        {"layer": 6, "feature": feature(3, 1.0)},
        {"layer": 9, "feature": feature(3, 9.0)},
        {"layer": 6, "expanded_members": [feature(3, 2.0), feature(4)]},
    ]
    made = read(members=members)
    assert [member.value for member in made.members[6]] == [1.0, 1.0]
    assert [member.value for member in made.members[9]] == [9.0]


def test_of_a_feature_that_stands_twice_the_largest_activation_counts() -> None:
    members = [
        {"layer": 6, "feature": feature(3, 1.0, max_activation=None)},
        {"layer": 6, "feature": feature(3, 2.0, max_activation=4.0)},
        {"layer": 6, "feature": feature(3, 2.0, max_activation=2.5)},
    ]
    (member,) = read(members=members).members[6]
    assert (member.strength, member.max_activation) == (1.0, 4.0)


@pytest.mark.shows("circuits.1")
@pytest.mark.parametrize(
    ("edges", "rung"),
    [
        ([], 0),
        (None, 0),
        ([edge(rung=3)], 3),
        ([edge(rung=3), edge(rung=1), edge(rung=2)], 1),
        ([edge(rung=3), edge()], 0),
        ([edge(rung=3), edge(rung=None)], 0),
    ],
)
def test_the_rung_is_the_lowest_rung_of_the_edges(edges: Any, rung: int) -> None:
    assert read(edges=edges).rung == rung


def test_a_failed_test_never_lowers_a_rung() -> None:
    assert read(edges=[edge(rung=2, tested_and_failed=[3, 3])]).rung == 2


def test_an_end_that_is_a_cluster_has_no_feature() -> None:
    ends = {"up": {"layer": 6, "kind": "cluster", "cluster_profile_id": "prof_1"}}
    made = read(edges=[edge(**ends)])
    assert made.edges[0].up.feature_idx is None
    assert made.edges[0].key == "cluster@6->31@9"


@pytest.mark.parametrize(
    ("budget", "intensity", "declared"),
    [
        (None, None, None),
        ({"intensity": 0.7, "intensity_range": [1.4, 0.2]}, 0.7, (0.2, 1.4)),
    ],
)
def test_the_intensity_and_its_range_come_from_the_budget(
    budget: Any, intensity: float | None, declared: tuple[float, float] | None
) -> None:
    made = read(budget=budget)
    assert (made.intensity, made.intensity_range) == (intensity, declared)


def test_strengths_of_0_are_warned_of() -> None:
    still = read(members=[{"layer": 6, "feature": feature(3, 0.0)}])
    assert circuit.warnings(still, 1.0) == ("all strengths are 0, so the circuit steers nothing",)


def test_a_member_without_features_is_known_as_unexpanded() -> None:
    members = [
        {"layer": 6, "feature": feature(3)},
        {"layer": 9, "member_kind": "cluster_ref", "cluster_name": "x", "expanded_members": None},
    ]
    made = read(members=members)
    assert (made.layers, made.features, made.unexpanded) == ((6, 9), {6: (3,)}, {9})


# ------------------------------------------------------------------ accepted


@pytest.mark.parametrize(
    "changes",
    [
        {"edges": []},
        {"edges": None, "budget": None, "narrative": None, "calibration": None, "discovery": None},
        {"model": None, "provenance": None, "faithfulness": None, "sensing": None},
        {"name": "n" * 200},
        {"edges": [edge()] * 200},
        {"edges": [edge(type="something new", coactivation=None, attribution=None, position=None)]},
        {"unknown": {"key": [1]}, "saes": [{"layer": 6, "unknown": 1}]},
        {"members": [{"layer": 6, "expanded_members": [feature(i) for i in range(20)]}]},
        {"members": [{"layer": 6, "feature": feature(1, 300.0)}]},
        {"saes": [{"layer": layer} for layer in range(16)]},
        {"saes": [{"mistudio_sae_id": "sae_a", "layer": 6, "n_features": None}]},
        {"saes": [{"source_hint": "hf:acme/tiny-saes/l9"}]},
        {"calibration": {"onset": 0.2, "sweet_spot": 1.0, "cliff": 1.4}},
        {"provenance": {"created_at": "2026-01-05T10:00:00.123456"}},
        {"provenance": {"created_at": "2026-01-05T10:00:00Z"}},
    ],
)
def test_a_document_may_have(changes: dict[str, Any]) -> None:
    read(**changes)


def test_kind_and_version_may_be_missing() -> None:
    document = example()
    del document["kind"], document["schema_version"], document["model"], document["budget"]
    circuit.read(document)


# ------------------------------------------------------------------ refused


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"schema_version": "2"}, ["schema_version"]),
        ({"schema_version": 1}, ["schema_version"]),
        ({"name": ""}, ["name"]),
        ({"name": " "}, ["name"]),
        ({"name": "n" * 500}, ["name"]),
        ({"name": None}, ["name"]),
        ({"narrative": "n" * 10_001}, ["narrative"]),
        ({"members": []}, ["members"]),
        ({"members": [{"layer": 6}]}, ["members"]),
        ({"saes": []}, ["saes"]),
        ({"saes": [{"layer": 6}] * 17}, ["saes"]),
        ({"edges": [edge()] * 201}, ["edges"]),
        (
            {"members": [{"layer": 6, "feature": feature(i)} for i in range(21)]},
            ["members"],
        ),
        (
            {
                "members": [
                    {"layer": 6, "expanded_members": [feature(i) for i in range(20)]},
                    {"layer": 6, "feature": feature(20)},
                ]
            },
            ["members"],
        ),
        (
            {"members": [{"layer": 6, "expanded_members": [feature(i) for i in range(21)]}]},
            ["members", 0, "expanded_members"],
        ),
        ({"members": [{"layer": i, "feature": feature(1)} for i in range(17)]}, ["members"]),
        ({"members": [{"layer": -1, "feature": feature(1)}]}, ["members", 0, "layer"]),
        ({"members": [{"feature": feature(1)}]}, ["members", 0, "layer"]),
        (
            {"members": [{"layer": 6, "feature": feature(1, 300.5)}]},
            ["members", 0, "feature", "strength"],
        ),
        (
            {"members": [{"layer": 6, "feature": feature(-1)}]},
            ["members", 0, "feature", "feature_idx"],
        ),
        ({"members": [{"layer": 6, "member_kind": "other"}]}, ["members", 0, "member_kind"]),
        ({"edges": [edge(rung=9)]}, ["edges", 0, "rung"]),
        ({"edges": [edge(up={"feature_idx": 3})]}, ["edges", 0, "up", "layer"]),
        ({"edges": [edge(effect_size="big")]}, ["edges", 0, "effect_size"]),
        ({"budget": {"intensity": 2.5}}, ["budget", "intensity"]),
        ({"budget": {"layers": {"6": {"B": "x"}}}}, ["budget", "layers", "6", "B"]),
        ({"calibration": {"onset": 0.1, "sweet_spot": 1}}, ["calibration", "cliff"]),
        ({"saes": [{"source_hint": "/home/me/saes"}]}, ["saes", 0, "source_hint"]),
    ],
)
def test_a_document_may_not_have(changes: dict[str, Any], place: list[Any]) -> None:
    with pytest.raises(DocumentRefusal) as raised:
        read(**changes)
    assert raised.value.code == "VALIDATION_ERROR"
    assert ["body", *place] in [fault["loc"] for fault in raised.value.details["errors"]]


@pytest.mark.parametrize(
    "kind", ["mistudio.circuit-definition/v1", "mistudio.cluster-definition", "", 7, False]
)
def test_another_kind_is_unknown(kind: Any) -> None:
    with pytest.raises(DocumentRefusal) as raised:
        read(kind=kind)
    assert raised.value.code == "UNKNOWN_KIND"


# ------------------------------------------------------------------ hazards


@pytest.mark.parametrize(
    ("up", "down", "fields", "expected"),
    [
        (8.0, 6.0, {"effect_size": 0.4}, ("compounding", "validated:ES=0.4")),
        (8.0, -6.0, {"effect_size": 0.4}, ("cancelling", "validated:ES=0.4")),
        (-8.0, -6.0, {"weight_prior": 0.25}, ("compounding", "heuristic:weight_prior=0.25")),
        (8.0, 6.0, {"effect_size": 0.4, "weight_prior": 1}, ("compounding", "validated:ES=0.4")),
        (8.0, 6.0, {}, ("compounding", None)),
        (8.0, 0.0, {"effect_size": 0.4}, None),
    ],
)
def test_an_edge_between_two_steered_layers_is_a_hazard(
    up: float, down: float, fields: dict[str, Any], expected: tuple[str, str | None] | None
) -> None:
    members = [
        {"layer": 6, "feature": feature(70, up)},
        {"layer": 9, "feature": feature(31, down)},
    ]
    reported = hazards.find_hazards(read(members=members, edges=[edge(**fields)]))
    assert [(one.kind, one.label) for one in reported] == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    "ends",
    [
        {"up": {"layer": 9, "feature_idx": 31}},
        {"up": {"layer": 6, "feature_idx": 71}},
        {"up": {"layer": 6, "kind": "cluster"}},
        {"up": {"layer": 5, "feature_idx": 70}},
    ],
)
def test_an_edge_that_does_not_join_two_steered_layers_is_no_hazard(ends: dict[str, Any]) -> None:
    assert hazards.find_hazards(read(edges=[edge(**ends, effect_size=0.4)])) == []


def test_the_measured_hazard_is_the_latest_result_that_was_kept() -> None:
    results = ROOT / "benchmarks" / "results"
    latest = max(results.glob("*-layers.json"))
    assert json.loads(latest.read_text())["measured_hazard"] == dict(hazards.MEASURED)
