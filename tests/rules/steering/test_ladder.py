"""A lever at several strengths, and random directions in its place."""

from __future__ import annotations

import random
from functools import partial

import pytest

from steerserve.rules.steering import ladder
from steerserve.rules.steering.edits import Edit, Feature, Target
from steerserve.rules.steering.placed import Placed
from steerserve.rules.steering.positions import Positions, Selection
from steerserve.rules.steering.vector import Direction, packed
from tests.refusals import refusal_of

KEY = "sae_a@1"
FEATURE, OTHER = Feature(KEY, 3), Feature(KEY, 4)
DIRECTION = Direction(2, "resid_post", packed([3.0, 0.0, 4.0, 0.0]))
OUTPUT = Positions(Selection(names=("generated",)))
ADDED = Edit(FEATURE, Target(offset=1.5))
LEVER = Placed(
    {KEY: {3: 1.5}},
    (
        Edit(DIRECTION, Target(offset=2.0), unit="residual"),
        Edit(OTHER, Target(offset=-1.0), positions=OUTPUT),
    ),
    (ADDED,),
)
PLACES, WIDTHS = {KEY: (1, "resid_post")}, {"resid_post": 4}


def draw(seed: int = 1) -> ladder.Draw:
    return partial(random.Random(seed).gauss, 0.0, 1.0)


def test_a_lever_at_a_strength_is_multiplied() -> None:
    values, edits = ladder.at(LEVER, 4.0)
    assert values == {KEY: {3: 6.0}}
    assert [edit.target.offset for edit in edits] == [8.0, -4.0]
    assert ladder.at(LEVER, 0.0) == ({}, ())


def test_random_directions_are_as_long_as_those_of_the_lever() -> None:
    assert ladder.needs_norms(LEVER) == [FEATURE, OTHER]
    made = ladder.randomised(LEVER, {FEATURE: 2.0, OTHER: 0.5}, PLACES, WIDTHS, draw())
    assert made is not None
    assert made.values == {}
    first, second, third = made.edits
    at = [one.at for one in made.edits]
    assert all(isinstance(one, Direction) for one in at)
    assert [(one.layer, one.site, one.width) for one in at if isinstance(one, Direction)] == [
        (1, "resid_post", 4),
        (2, "resid_post", 4),
        (1, "resid_post", 4),
    ]
    norms = [one.norm for one in at if isinstance(one, Direction)]
    assert norms == pytest.approx([2.0, 5.0, 0.5])
    assert (first.target, second.unit, third.positions) == (ADDED.target, "residual", OUTPUT)
    again = ladder.randomised(LEVER, {FEATURE: 2.0, OTHER: 0.5}, PLACES, WIDTHS, draw())
    assert again == made
    other = ladder.randomised(LEVER, {FEATURE: 2.0, OTHER: 0.5}, PLACES, WIDTHS, draw(2))
    assert other != made


def test_an_edit_that_reads_a_feature_has_no_counterpart() -> None:
    lever = Placed({}, (Edit(FEATURE, Target(factor=0.0)),))
    assert ladder.needs_norms(lever) == []
    assert ladder.randomised(lever, {}, PLACES, WIDTHS, draw()) is None


def test_an_ablation_of_a_direction_has_one() -> None:
    to = Direction(2, "resid_post", packed([1.0, 0.0, 0.0, 0.0]))
    lever = Placed({}, (Edit(DIRECTION, Target(factor=2.0), to=to),))
    made = ladder.randomised(lever, {}, PLACES, WIDTHS, draw())
    assert made is not None
    (edit,) = made.edits
    assert isinstance(edit.at, Direction)
    assert edit.to is not None
    assert (edit.at.norm, edit.to.norm) == (pytest.approx(5.0), pytest.approx(1.0))


@pytest.mark.parametrize(
    ("lever", "strengths", "where"),
    [
        (LEVER, [1.0, 134.0], "strengths[1]"),
        (Placed({}, (Edit(FEATURE, Target(offset=1.0)),)), [-201.0], "strengths[0]"),
        (Placed({}, (Edit(DIRECTION, Target(offset=3e38)),)), [0.0, 2.0], "strengths[1]"),
    ],
)
def test_strengths_beyond_the_bounds_are_refused(
    lever: Placed, strengths: list[float], where: str
) -> None:
    refusal = refusal_of(ladder.check_strengths, lever, strengths)
    assert (refusal.code, refusal.param) == ("INVALID_PARAMETER", where)
