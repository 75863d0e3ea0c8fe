"""Where a vector is measured, and which of the places is its best one."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steerserve.rules.steering import levers
from steerserve.rules.steering.levers import Damage, MeasuredStrength


@pytest.mark.parametrize(
    ("equals", "ranked", "measured"),
    [
        (range(1, 30), range(30), [4, 11, 19, 26]),
        ([3, 4, 5, 6], [5, 3, 4, 6, 1], [3, 4, 5, 6]),
        ([3, 5], [5, 3, 9, 1, 7], [1, 3, 5, 9]),
        ([2], [2], [2]),
        ([], [7, 1], [1, 7]),
    ],
)
def test_layers_are_spread_over_the_equal_ones_before_others_are_taken(
    equals: Sequence[int], ranked: Sequence[int], measured: list[int]
) -> None:
    assert levers.layers_to_measure(list(equals), list(ranked)) == measured


@pytest.mark.parametrize(
    ("breaks_at", "power", "tried"),
    [
        (2.1, 2, [2.0]),
        (3.0, 2, [2.0, 2.8]),
        (1.999, 2, [2.0, 1.8]),
        (0.6, 2, [2.0, 0.67, 0.55]),
        (0.6, 4, [2.0, 0.67, 0.5, 0.58]),
        (math.inf, 2, [2.0, 6.0, 18.0, 54.0]),
        (0.0, 2, [2.0, 0.67, 0.22, 0.073]),
    ],
)
def test_strengths_close_in_on_the_one_at_which_texts_break(
    breaks_at: float, power: int, tried: list[float]
) -> None:
    known: dict[float, float] = {}
    while (strength := levers.next_strength(known, 2.0, most=4)) is not None:
        known[strength] = (strength / breaks_at) ** power if breaks_at else math.inf
    assert list(known) == tried


def test_texts_may_break_by_chance_below_a_strength_at_which_they_do_not() -> None:
    known = {2.0: 0.1, 1.0: 1.5, 0.5: 0.1}
    assert levers.next_strength(known, 2.0, most=4) == pytest.approx(0.75)


@given(st.floats(0.001, 1000), st.lists(st.floats(0, 3), min_size=6, max_size=6))
def test_no_strength_is_tried_twice(first: float, damages: list[float]) -> None:
    known: dict[float, float] = {}
    for damage in damages:
        strength = levers.next_strength(known, first, most=6)
        if strength is None:
            break
        assert strength not in known
        known[strength] = damage


def test_repetition_is_damage_as_unlikely_tokens_are() -> None:
    def share(nll: float, repetition: float | None) -> float:
        return levers.broken_share(levers.damage(nll, 2.0, repetition, 0.1, ["a b"]))

    assert share(1.5, None) == 0.0
    assert share(2.5, 0.1) == pytest.approx(0.5)
    assert share(2.5, 0.25) == pytest.approx(1.0)


def row(layer: int, effect: float | None, *, is_unbroken: bool = True) -> MeasuredStrength:
    damage = Damage(
        nll_over_plain=0.0, repetition_over_plain=0.0, distinct=1.0, is_unbroken=is_unbroken
    )
    return MeasuredStrength(
        layer=layer,
        strength=1.0,
        texts=4,
        effect=effect,
        effect_low=effect,
        effect_high=effect,
        damage=damage,
        sample="",
    )


def test_the_best_place_has_the_largest_effect_of_unbroken_texts() -> None:
    rows = [row(1, 0.5), row(2, 0.9, is_unbroken=False), row(3, 0.7), row(4, None)]
    assert levers.best(rows) == rows[2]
    again = [*rows, row(1, 0.6)]
    assert levers.best_by_layer(again) == [rows[2], again[-1]]
    assert levers.best([row(1, 0.9, is_unbroken=False), row(2, None)]) is None


def test_an_effect_is_counted_in_standard_deviations_of_plain_texts() -> None:
    draw = random.Random(0).randrange
    # the plain scores have the mean 2 and the standard deviation 1; the first two texts moved by 3 and 5
    found = levers.scored([4.0, 7.0, None], [1.0, 2.0, 3.0], 3, draw)
    assert found is not None
    assert found[0] == pytest.approx(4.0)
    assert (found[1], found[2]) == pytest.approx((3.0, 5.0))
    assert levers.scored([4.0], [1.0], 1, draw) is None
    assert levers.scored([4.0, 4.0], [1.0, 1.0], 2, draw) is None
    assert levers.scored([None], [1.0, 2.0], 2, draw) is None
    # each text is compared with the mean of all plain texts of its prompt; the second prompt has none
    found = levers.scored([4.0, 9.0, 6.0, 9.0], [1.0, None, 3.0, None], 2, draw)
    assert found is not None
    assert found[0] == pytest.approx(3.0 / 2**0.5)


def test_an_effect_must_be_above_the_plain_one_and_above_all_random_directions() -> None:
    assert levers.is_above(0.5, 0.0, [0.4, -1.0])
    assert not levers.is_above(0.5, 0.5, [])
    assert not levers.is_above(0.5, 0.0, [0.4, 0.5])
