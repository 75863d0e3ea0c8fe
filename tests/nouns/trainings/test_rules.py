"""Judgements of directions on held-out examples, and the best layer."""

from __future__ import annotations

import pytest

from steerserve.nouns.trainings.rules import Examples, Judgement, aucs, best, equals, judged

EXAMPLES = Examples([True] * 4 + [False] * 4, [False, True, True, True] * 2)


def test_only_held_out_examples_are_judged() -> None:
    scores = [-9.0, 3.0, 2.0, 0.0, 9.0, 1.0, 0.0, -1.0]
    found = judged(EXAMPLES, scores)
    assert found.auc == (3 + 3 + 1.5) / 9
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.auc < found.high
    assert aucs(EXAMPLES, [scores, [-one for one in scores]]) == (0.5, found.auc)


def test_without_held_out_examples_nothing_is_known() -> None:
    none = Examples([True, False], [False, False])
    assert judged(none, [1.0, 0.0]) == Judgement()
    assert aucs(none, [[1.0, 0.0]]) is None


def test_scores_without_spread_have_no_separation() -> None:
    found = judged(EXAMPLES, [1.0] * 4 + [0.0] * 4)
    assert (found.auc, found.separation) == (1.0, None)


def test_the_best_layer_has_the_largest_auc_then_separation_then_is_the_lowest() -> None:
    layers, unknown = [2, 5, 7], [None] * 3

    def told(*figures: tuple[float, float | None]) -> list[Judgement]:
        return [Judgement(auc, separation=separation) for auc, separation in figures]

    assert best(layers, told((0.9, 9.0), (1.0, 2.0), (1.0, 1.0)), unknown) == 5
    assert best(layers, told((1.0, 2.0), (1.0, 2.0), (0.8, 2.0)), unknown) == 2
    assert best(layers, told((1.0, 2.0), (1.0, None), (1.0, 3.0)), unknown) == 5


@pytest.mark.parametrize(
    ("agreement", "layer"),
    [([0.2, 0.9, 0.9], 5), ([-0.5, None, None], 2), ([None, None, None], 5)],
)
def test_without_held_out_examples_the_best_layer_is_that_whose_halves_agree(
    agreement: list[float | None], layer: int
) -> None:
    assert best([2, 5, 7], [Judgement()] * 3, agreement) == layer


def test_layers_within_the_interval_of_the_best_one_are_its_equals() -> None:
    found = [Judgement(0.6, 0.4, 0.8), Judgement(0.9, 0.85, 0.95), Judgement(0.86, 0.7, 0.9)]
    assert equals(3, [2, 3, 5], found) == [3, 5]
    assert equals(2, [2], [Judgement()]) == []
