"""Edits at the attached SAEs and the sites of a model: what is placed where, and what does not fit."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from steerserve.rules.steering import interventions
from steerserve.rules.steering.edits import (
    AllOf,
    AnyOf,
    Condition,
    Edit,
    Feature,
    Target,
)
from steerserve.rules.steering.placed import Placed
from steerserve.rules.steering.placing import ModelFacts, placed
from steerserve.rules.steering.positions import Positions, Selection
from steerserve.rules.steering.probe import Probe
from steerserve.rules.steering.vector import PROJECT, Direction, Vector
from tests.refusals import refusal_of
from tests.rules.steering.saes import Sae

LOW, HIGH = Sae("low", 1), Sae("high", 3)
SITES = ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post")
MODEL = ModelFacts(
    4,
    {**dict.fromkeys(SITES, 2), "embed": 2},
    {LOW.key: "resid_mid", HIGH.key: "resid_post"},
    {(LOW.key, 4): 20.0},
    vocabulary=100,
)


def direction(layer: int, site: str = "resid_post", *numbers: float) -> Direction:
    numbers = numbers or (3.0, float(layer))
    return Direction(layer, site, struct.pack(f"<{len(numbers)}f", *numbers))


def vector(name: str, *directions: Direction, operation: str = "add") -> Vector:
    return Vector(f"vec_{name}", name, name, directions, operation)


VECTORS = {
    one.name: one
    for one in (
        vector("kind", direction(1), direction(2), direction(3)),
        vector("one", direction(2)),
        vector("other", direction(2, "resid_post", 1.0, 1.0)),
        vector("mid", direction(2, "resid_mid"), direction(2, "resid_post")),
        vector("refusal", direction(2), operation=PROJECT),
        vector("deep", direction(9)),
        vector("wide", direction(2, "resid_post", 1.0, 2.0, 3.0)),
        vector("elsewhere", direction(2, "hook_z")),
        vector("token", direction(1, "embed")),
        vector("empty", direction(2, "resid_post", 0.0, -0.0)),
    )
}


PROBES = {
    one.name: one
    for one in (
        Probe("probe_b", "best", "b", (direction(0), direction(1)), (0.5, -2.0), 1),
        Probe("probe_l", "lone", "l", (direction(2, "resid_post", 3.0, 4.0),), (1.5,)),
        Probe("probe_u", "unknown", "u", (direction(0), direction(1)), (0.0, 0.0)),
        Probe("probe_d", "deep", "d", (direction(9),), (0.0,)),
        Probe("probe_f", "faint", "f", (direction(0, "resid_post", 1e-38, 0.0),), (0.0,)),
        Probe("probe_w", "biased", "w", (direction(0, "resid_post", 1e-38, 0.0),), (1e308,)),
    )
}


def place(*edits: dict[str, Any], **fields: Any) -> Placed:
    made = interventions.parse({"edits": list(edits), **fields})
    return placed(made.with_vectors(VECTORS, PROBES), (LOW, HIGH), MODEL)


def of(sae: str, index: int = 4) -> dict[str, Any]:
    return {"index": index, "sae_id": sae}


def edit_of(name: str, op: str = "add", **fields: Any) -> dict[str, Any]:
    return {
        "op": op,
        "vector": name,
        **({} if op in ("ablate", "swap") else {"value": 2}),
        **fields,
    }


def test_only_adding_a_feature_everywhere_goes_into_the_values() -> None:
    add = {"op": "add", "feature": of("low"), "value": 5}
    made = place(add, {**add, "value": 2}, {**add, "positions": "prompt"})
    prompt = Positions(Selection(names=("prompt",)))
    low = Feature(LOW.key, 4)
    assert made.values == {LOW.key: {4: 7.0}}
    assert made.edits == (Edit(low, Target(offset=5.0), positions=prompt, number=2),)
    assert made.added == (Edit(low, Target(offset=5.0)), Edit(low, Target(offset=2.0), number=1))


def test_a_vector_is_one_edit_for_each_of_its_layers_with_one_number() -> None:
    made = place(
        edit_of("one", "ablate"), edit_of("kind", unit="unit", layers={"from": 2, "to": 9})
    )
    assert made.values == {}
    assert made.edits == (
        Edit(direction(2), Target(offset=2.0), unit="unit", number=1),
        Edit(direction(3), Target(offset=2.0), unit="unit", number=1),
        Edit(direction(2), Target(factor=0.0)),
    )


@pytest.mark.parametrize(
    ("op", "fields", "target"),
    [
        ("set", {}, Target(factor=0.0, offset=2.0)),
        ("at_least", {}, Target(low=2.0)),
        ("at_most", {}, Target(high=2.0)),
        ("scale", {}, Target(factor=2.0)),
        ("ablate", {}, Target(factor=0.0)),
        ("ablate", {"value": 0.5}, Target(factor=0.5)),
        ("ablate", {"value": 2}, Target(factor=-1.0)),
    ],
)
def test_a_direction_has_the_targets_of_a_feature(
    op: str, fields: dict[str, Any], target: Target
) -> None:
    assert place(edit_of("one", op, **fields)).edits == (Edit(direction(2), target),)


def test_swap_writes_the_direction_at_the_same_place() -> None:
    other = direction(2, "resid_post", 1.0, 1.0)
    (edit,) = place(edit_of("one", "swap", to="other")).edits
    assert edit == Edit(direction(2), Target(factor=2.0), to=other)


def test_edits_are_in_the_order_of_the_pass_and_then_of_the_request() -> None:
    high = {"op": "set", "feature": of("high"), "value": 1}
    low = {"op": "set", "feature": of("low"), "value": 1}
    made = place(high, edit_of("kind", "ablate"), low, edit_of("mid", "ablate"))
    assert [(edit.number, edit.key or edit.at) for edit in made.edits] == [
        (2, LOW.key),
        (1, direction(1)),
        (3, direction(2, "resid_mid")),
        (1, direction(2)),
        (3, direction(2)),
        (0, HIGH.key),
        (1, direction(3)),
    ]


def test_a_value_in_the_unit_max_is_a_part_of_the_largest_activation() -> None:
    made = place({"op": "set", "feature": of("low"), "value": 0.5, "unit": "max"})
    assert made.edits == (Edit(Feature(LOW.key, 4), Target(factor=0.0, offset=10.0)),)


def test_a_probe_is_read_at_its_best_layer_or_else_at_its_only_one() -> None:
    """w · x + b is above a bound where x · w / |w| is above (bound - b) / |w|."""
    when = {"any": [{"probe": "lone", "above": 4}, {"probe": "best", "below": 1, "hold": 3}]}
    (edit,) = place(edit_of("one", "ablate", when=when)).edits
    best = direction(1)
    assert edit.when == AnyOf(
        (
            Condition(direction(2, "resid_post", 3.0, 4.0), above=(4 - 1.5) / 5.0),
            Condition(best, below=(1 + 2.0) / best.norm, hold=3),
        )
    )


def test_conditions_read_features_and_directions_below_the_edit() -> None:
    when = {
        "any": [
            {"feature": of("low"), "above": 1},
            {
                "all": [
                    {"vector": "kind", "below": 2},
                    {"vector": "mid", "above": 0, "hold": "rest"},
                ]
            },
        ]
    }
    (edit,) = place(edit_of("one", "ablate", when=when)).edits
    assert edit.when == AnyOf(
        (
            Condition(Feature(LOW.key, 4), above=1.0),
            AllOf(
                (
                    Condition(direction(2), below=2.0),
                    Condition(direction(2, "resid_post"), above=0.0, hold=None),
                )
            ),
        )
    )


def low(op: str = "set", index: int = 4, value: float | None = 1, **fields: Any) -> dict[str, Any]:
    return {"op": op, "feature": of("low", index), "value": value, **fields}


@pytest.mark.parametrize(
    ("edit", "code", "part"),
    [
        (low(index=10), "INVALID_FEATURE_INDEX", "feature.index"),
        ({**low(), "feature": of("third")}, "SAE_NOT_ATTACHED", "feature"),
        ({**low(), "feature": {"index": 4}}, "INVALID_INTERVENTION", "feature.sae_id"),
        (low(index=5, unit="max"), "INVALID_INTERVENTION", "unit"),
        (low("add", value=10.5, unit="max"), "INVALID_INTERVENTION", "value"),
        (low(positions={"tokens": [99, 100]}), "INVALID_INTERVENTION", "positions.tokens"),
        (
            edit_of("one", positions={"exclude": {"tokens": [100]}}),
            "INVALID_INTERVENTION",
            "positions.exclude.tokens",
        ),
        (edit_of("deep"), "VECTOR_MISMATCH", "vector"),
        (edit_of("wide"), "VECTOR_MISMATCH", "vector"),
        (edit_of("elsewhere"), "VECTOR_MISMATCH", "vector"),
        (edit_of("token"), "VECTOR_MISMATCH", "vector"),
        (edit_of("empty"), "INVALID_INTERVENTION", "vector"),
        (edit_of("refusal"), "INVALID_INTERVENTION", "op"),
        (edit_of("kind", layers=[1, 4]), "INVALID_INTERVENTION", "layers"),
        (edit_of("kind", layers={"from": 4, "to": 9}), "INVALID_INTERVENTION", "layers"),
        (edit_of("kind", "swap", to="one"), "INVALID_INTERVENTION", "to"),
        (edit_of("one", "swap", to="wide"), "VECTOR_MISMATCH", "to"),
        (
            low(when={"feature": of("high"), "above": 1}),
            "INVALID_INTERVENTION",
            "when.feature",
        ),
        (low(when={"vector": "one", "above": 1}), "INVALID_INTERVENTION", "when.vector"),
        (low(when={"probe": "lone", "above": 1}), "INVALID_INTERVENTION", "when.probe"),
        (low(when={"probe": "unknown", "above": 1}), "INVALID_INTERVENTION", "when.probe"),
        (
            low(when={"all": [{"probe": "deep", "above": 1}]}),
            "VECTOR_MISMATCH",
            "when.all[0].probe",
        ),
        (
            low(when={"all": [{"probe": "faint", "above": 3e38}]}),
            "INVALID_INTERVENTION",
            "when.all[0].above",
        ),
        (low(when={"probe": "biased", "below": 1}), "INVALID_INTERVENTION", "when.below"),
        (low(when={"vector": "mid", "above": 1}), "INVALID_INTERVENTION", "when.vector"),
        (low(when={"vector": "kind", "above": 1}), "INVALID_INTERVENTION", "when.vector"),
        (
            edit_of("one", when={"any": [{"vector": "wide", "above": 1}]}),
            "VECTOR_MISMATCH",
            "when.any[0].vector",
        ),
        (
            edit_of("one", when={"feature": of("low", 10), "above": 1}),
            "INVALID_FEATURE_INDEX",
            "when.feature.index",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_its_place(
    edit: dict[str, Any], code: str, part: str
) -> None:
    refusal = refusal_of(place, low(), edit)
    assert (refusal.code, refusal.param) == (code, f"interventions.edits[1].{part}")


def test_a_sum_beyond_the_bounds_says_what_the_edits_add() -> None:
    loud = {"op": "add", "feature": of("low"), "value": -150}
    refusal = refusal_of(place, loud, loud)
    assert refusal.message == (
        "interventions.edits[1].value: the values that the edits add to this feature sum up to -300; "
        "the sum must be from -200 to 200"
    )


def test_a_vector_that_must_be_projected_may_be_projected() -> None:
    assert len(place(edit_of("refusal", "ablate")).edits) == 1


def test_16_edits_at_one_site_are_allowed_and_17_are_not() -> None:
    many = [edit_of("one", "scale", value=1 + i) for i in range(1, 17)]
    assert len(place(*many, edit_of("one"), edit_of("kind", "ablate", layers=[1])).edits) == 18
    refusal = refusal_of(place, *many, edit_of("kind", "ablate"))
    assert (refusal.code, refusal.param) == ("TOO_MANY_EDITS", "interventions.edits")


@pytest.mark.parametrize(
    "idle",
    [
        low("scale", value=1),
        low("add", value=0, positions="prompt"),
        edit_of("one", value=0),
        edit_of("one", "ablate", value=0),
    ],
)
def test_edits_that_change_nothing_are_left_out(idle: dict[str, Any]) -> None:
    assert place(idle).edits == ()
