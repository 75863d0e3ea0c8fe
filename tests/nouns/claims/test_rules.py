"""Which circuit may serve beside which: the order of the gates, and the details of each refusal."""

from __future__ import annotations

from typing import Any

import pytest

from steerserve.errors import Refusal
from steerserve.nouns.circuits.rules.hazards import MEASURED
from steerserve.nouns.claims import rules as claims
from steerserve.nouns.claims.rules import LayerClaim, Wanted
from tests.refusals import refusal_of

WANTED = Wanted("circ_b", "second", {2: (7, 8), 3: (9,)})
SLICE = Wanted("circ_b", "second", {2: (7, 8)}, is_slice=True)


def held(layer: int, *features: int, by: str = "circ_a", **more: Any) -> LayerClaim:
    return LayerClaim(by, f"name of {by}", layer, features, **more)


def refusal(wanted: Wanted, *there: LayerClaim, allows_overlap: bool = False) -> Refusal:
    refused = refusal_of(claims.admit, wanted, there, allows_overlap=allows_overlap)
    assert refused.code == "CIRCUIT_LAYER_CONTENTION"
    return refused


@pytest.mark.parametrize("allows_overlap", [False, True])
@pytest.mark.parametrize(
    "there",
    [
        (),
        (held(4, 7),),
        (held(1, 9), held(4, 8)),
        # a circuit never contends with itself
        (held(2, 7, 8, by="circ_b"), held(3, 9, by="circ_b")),
        # a slice on another layer
        (held(5, 1, is_slice=True),),
    ],
)
def test_circuits_on_disjoint_layers_share_nothing(
    there: tuple[LayerClaim, ...], allows_overlap: bool
) -> None:
    assert claims.admit(WANTED, there, allows_overlap=allows_overlap) == ()


def test_another_feature_of_a_held_layer_is_contention_that_can_be_overridden() -> None:
    refused = refusal(WANTED, held(2, 1), held(5, 1))
    assert refused.details == {
        "contended_layers": [2],
        "incumbent": {"id": "circ_a", "name": "name of circ_a"},
        "requested": {"id": "circ_b", "name": "second"},
        "all_incumbents": [{"id": "circ_a", "name": "name of circ_a", "layers": [2]}],
        "overridable": True,
        "override_param": "allow_layer_overlap",
        "rung_header_suppressed_if_overridden": True,
        "measured_hazard": dict(MEASURED),
    }
    assert claims.admit(WANTED, [held(2, 1), held(5, 1)], allows_overlap=True) == (2,)


@pytest.mark.parametrize("allows_overlap", [False, True])
def test_the_same_feature_of_a_layer_is_a_collision_that_nothing_overrides(
    allows_overlap: bool,
) -> None:
    there = (held(2, 8, 1), held(3, 4), held(3, 9, by="circ_c"))
    details = refusal(WANTED, *there, allows_overlap=allows_overlap).details
    assert details["colliding_keys"] == [
        {"layer": 2, "feature_idx": 8, "incumbent": {"id": "circ_a", "name": "name of circ_a"}},
        {"layer": 3, "feature_idx": 9, "incumbent": {"id": "circ_c", "name": "name of circ_c"}},
    ]
    assert details["overridable"] is False
    assert details["contended_layers"] == [2, 3]
    assert details["all_incumbents"] == [
        {"id": "circ_a", "name": "name of circ_a", "layers": [2, 3]},
        {"id": "circ_c", "name": "name of circ_c", "layers": [3]},
    ]
    assert "override_param" not in details
    assert "rung_header_suppressed_if_overridden" not in details


def test_a_collision_names_only_the_circuits_that_steer_the_same_feature() -> None:
    refused = refusal(WANTED, held(2, 1), held(2, 8, by="circ_c"), allows_overlap=True)
    assert refused.details["incumbent"] == {"id": "circ_c", "name": "name of circ_c"}
    assert [one["id"] for one in refused.details["all_incumbents"]] == ["circ_a", "circ_c"]
    assert refused.message == (
        "'name of circ_c' steers the same features: 8 at layer 2; deactivate the other circuit first"
    )


def test_a_contention_names_every_circuit_that_serves_there() -> None:
    refused = refusal(WANTED, held(2, 1), held(3, 1, by="circ_c"))
    assert refused.message == (
        "'name of circ_a', 'name of circ_c' serve on layers 2, 3;"
        " allow_layer_overlap=true serves both circuits there"
    )


def test_the_same_index_on_another_layer_is_no_collision() -> None:
    assert "colliding_keys" not in refusal(WANTED, held(3, 7, 8)).details


@pytest.mark.parametrize("allows_overlap", [False, True])
@pytest.mark.parametrize("layer", [2, 5])
def test_a_second_slice_is_refused_on_every_layer(layer: int, allows_overlap: bool) -> None:
    there = held(layer, 1, is_slice=True)
    details = refusal(SLICE, there, allows_overlap=allows_overlap).details
    assert details["reason"] == "slice_fallback_is_single_active"
    assert details["overridable"] is False
    assert "override_param" not in details
    assert "colliding_keys" not in details


def test_a_slice_beside_a_whole_circuit_on_another_layer_is_admitted() -> None:
    assert claims.admit(SLICE, [held(3, 1)], allows_overlap=False) == ()


def test_a_sentence_names_at_most_five_colliding_features() -> None:
    wanted = Wanted("circ_b", "second", {2: range(20)})
    assert "and 15 more" in refusal(wanted, held(2, *range(20))).message


def test_a_layer_is_composed_while_several_circuits_hold_it() -> None:
    there = [held(2, 1), held(3, 4), held(2, 7, by="circ_b", is_composed=True)]
    assert claims.composed(there) == {2}
    # the composed claim alone makes no layer composed
    assert claims.composed(there[1:]) == frozenset()


def test_the_oldest_claim_left_on_a_layer_becomes_its_leading_claim() -> None:
    led = held(3, 4)
    older = held(2, 7, by="circ_b", is_composed=True)
    newer = held(2, 9, by="circ_c", is_composed=True)
    assert claims.leaders([led, older, newer]) == (older,)
    assert claims.leaders([led]) == ()
