"""The statistics of a contrast, against the formulas over all pairs of texts."""

from __future__ import annotations

import math
import random
from statistics import NormalDist, fmean, variance

import pytest
from sklearn.metrics import roc_auc_score

from steerserve.nouns.contrasts.rules import Comparison, Pooled, compare, contrast, held_out, holm

CASES = [
    ([3.0, 2.0, 2.0, 0.0], [1.0, 2.0, 0.0, 0.0, 0.0]),
    ([1.0, 1.0], [0.0, 0.0, 0.0]),
    ([0.0, 0.0, 1.0], [2.0, 3.0]),
    ([0.5, -1.0, 0.0, 2.0], [0.0, -2.0, 0.5]),
    ([4.0, 4.0, 4.0], [4.0, 4.0]),
    *(
        (
            [max(0.0, draw.gauss(shift, 1)) for _ in range(17)],
            [max(0.0, draw.gauss(0, 1)) for _ in range(23)],
        )
        for draw, shift in ((random.Random(i), i / 3) for i in range(6))
    ),
]


def compared(positives: list[float], negatives: list[float]) -> Comparison:
    first, second = ([value for value in side if value] for side in (positives, negatives))
    return compare(first, second, len(positives), len(negatives))


def wins(x: float, y: float) -> float:
    return 1.0 if x > y else 0.5 if x == y else 0.0


@pytest.mark.parametrize(("positives", "negatives"), CASES)
def test_auc_and_its_interval_are_those_of_all_pairs(
    positives: list[float], negatives: list[float]
) -> None:
    found = compared(positives, negatives)
    auc = fmean(wins(x, y) for x in positives for y in negatives)
    assert found.auc == pytest.approx(auc)
    labels = [True] * len(positives) + [False] * len(negatives)
    assert found.auc == pytest.approx(roc_auc_score(labels, positives + negatives))
    of_positives = [fmean(wins(x, y) for y in negatives) for x in positives]
    of_negatives = [fmean(wins(x, y) for x in positives) for y in negatives]
    spread = variance(of_positives) / len(positives) + variance(of_negatives) / len(negatives)
    half = NormalDist().inv_cdf(0.975) * math.sqrt(spread)
    assert found.low == pytest.approx(max(0.0, auc - half))
    assert found.high == pytest.approx(min(1.0, auc + half))


@pytest.mark.parametrize(("positives", "negatives"), CASES)
def test_p_is_that_of_ranks(positives: list[float], negatives: list[float]) -> None:
    together = sorted([*positives, *negatives])

    def rank(value: float) -> float:
        places = [place for place, other in enumerate(together, 1) if other == value]
        return fmean(places)

    m, n, total = len(positives), len(negatives), len(together)
    u = sum(map(rank, positives)) - m * (m + 1) / 2
    ties = sum(c**3 - c for c in (together.count(value) for value in set(together)))
    sigma = math.sqrt(m * n / 12 * (total + 1 - ties / (total * (total - 1))))
    expected = 1.0
    if sigma:
        z = (max(u, m * n - u) - m * n / 2 - 0.5) / sigma
        expected = min(1.0, 2 * (1 - NormalDist().cdf(z)))
    assert compared(positives, negatives).p == pytest.approx(expected, abs=1e-12)


def test_p_is_that_of_a_known_example() -> None:
    # by scipy.stats.mannwhitneyu(x, y, method="asymptotic"): statistic 17, p 0.11134688653314041
    found = compared([19, 22, 16, 29, 24], [20, 11, 17, 12])
    assert found.auc * 20 == pytest.approx(17)
    assert found.p == pytest.approx(0.11134688653314041)


@pytest.mark.parametrize(("positives", "negatives"), CASES)
def test_means_shares_and_effect(positives: list[float], negatives: list[float]) -> None:
    found = compared(positives, negatives)
    means = fmean(positives), fmean(negatives)
    assert (found.mean_positive, found.mean_negative) == pytest.approx(means)
    shares = [sum(map(bool, side)) / len(side) for side in (positives, negatives)]
    assert [found.share_positive, found.share_negative] == pytest.approx(shares)
    m, n = len(positives), len(negatives)
    pooled = ((m - 1) * variance(positives) + (n - 1) * variance(negatives)) / (m + n - 2)
    if pooled:
        assert found.effect == pytest.approx((means[0] - means[1]) / math.sqrt(pooled))
    else:
        assert found.effect == (math.inf if means[0] > means[1] else 0.0)


def test_groups_of_one_text_have_no_interval() -> None:
    found = compared([1.0], [0.0, 0.0])
    assert (found.auc, found.low, found.high) == (1.0, None, None)


def test_holm_is_the_step_down_correction() -> None:
    assert holm({7: 0.01, 8: 0.04, 9: 0.03, 2: 0.005}) == pytest.approx(
        {2: 0.02, 7: 0.03, 9: 0.06, 8: 0.06}
    )
    assert holm({1: 0.9, 2: 0.8}) == {2: 1.0, 1: 1.0}
    assert holm({}) == {}


def test_held_out_texts_are_a_share_and_never_all() -> None:
    assert [held_out(*case) for case in ((10, 0.3), (9, 0.3), (2, 0.3), (2, 0.99), (1, 0.5))] == [
        3,
        2,
        0,
        1,
        0,
    ]


def test_features_are_ranked_by_auc_then_by_effect_then_by_index() -> None:
    positives: list[Pooled] = [{1: 5.0, 2: 1.0, 3: 1.0, 4: 1.0}, {1: 6.0, 2: 1.5, 3: 1.5}]
    negatives: list[Pooled] = [{4: 2.0, 9: 1.0}, {9: 2.0}]
    held_positives: list[Pooled] = [{1: 1.0}]
    held_negatives: list[Pooled] = [{1: 2.0}]
    best, count = contrast(
        positives, negatives, held_positives, held_negatives, top=3, min_share=0.0
    )
    assert count == 5
    assert [one.index for one in best] == [1, 2, 3]
    assert best[0].found.effect > best[1].found.effect == best[2].found.effect
    assert [one.auc_held_out for one in best] == [0.0, 0.5, 0.5]
    only, count = contrast(positives, negatives, [], [], top=9, min_share=0.75)
    assert ([one.index for one in only], count) == ([1, 2, 3, 9], 4)
    assert {one.auc_held_out for one in only} == {None}
    correct = holm({one.index: one.found.p for one in only})
    assert {one.index: one.p_corrected for one in only} == correct


def test_features_that_fire_in_no_text_are_not_compared() -> None:
    assert contrast([{}, {}], [{}, {}], [{3: 1.0}], [{}], top=5, min_share=0.0) == ([], 0)
