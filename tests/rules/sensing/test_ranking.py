"""The order of features by their value, by the share of their own maximum, and by their rarity."""

from __future__ import annotations

from array import array

import pytest

from steerserve.rules.sensing.ranking import Rank, Scales, best

# feature 0 fires at half of all tokens, 1 at one of 64, 2 never did
SCALES = Scales(array("f", [100.0, 10.0, 0.0]), array("I", [512, 16, 0]), 1024)
ACTIVE = [(0, 80.0), (1, 6.0), (2, 0.5)]


@pytest.mark.parametrize(
    ("rank", "order"), [("value", [0, 1, 2]), ("share", [2, 0, 1]), ("rarity", [2, 1, 0])]
)
def test_features_are_ranked(rank: Rank, order: list[int]) -> None:
    assert [index for index, _ in best(ACTIVE, rank, SCALES, 3)] == order
    assert best(ACTIVE, rank, SCALES, 1)[0][0] == order[0]


def test_the_weights_are_shares_and_bits() -> None:
    assert SCALES.weight("share", 0, 80.0) == pytest.approx(0.8)
    assert SCALES.weight("share", 0, 200.0) == 1.0
    assert SCALES.weight("rarity", 0, 80.0) == pytest.approx(0.8)
    assert SCALES.weight("rarity", 1, 5.0) == pytest.approx(0.5 * 6)
    assert SCALES.weight("rarity", 2, 5.0) == pytest.approx(11)
    assert SCALES.weight("rarity", 1, -5.0) == -5.0


def test_how_often_a_feature_fires_is_compared_with_the_corpus() -> None:
    assert SCALES.figure("share", 1, 1 / 32, "active_ratio") == pytest.approx(2)
    assert SCALES.figure("rarity", 1, 0.5, "active_ratio") == pytest.approx(3)
    assert SCALES.figure("rarity", 1, 5.0, "max") == SCALES.weight("rarity", 1, 5.0)
