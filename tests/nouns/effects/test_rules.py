"""The figures of effects, against numpy and the definitions."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from steerserve.nouns.effects import rules
from steerserve.nouns.effects.rules import EffectRow, Written
from steerserve.rules.steering import levers


def text(divergences: list[float], content: str = "a sea", **more: object) -> Written:
    count = len(divergences)
    return Written(content, [*range(count)], divergences, [-1.0] * count, **more)  # type: ignore[arg-type]


def row(strength: float, p95: float) -> EffectRow:
    return structs.replace(rules.row(strength, [text([0.0])], ()), kl_p95=p95)


def test_quantiles_run_over_the_tokens_of_all_texts() -> None:
    draw = np.random.default_rng(2)
    groups = [draw.gamma(1.0, size=size).tolist() for size in (5, 9, 1)]
    found = rules.row(3.0, [text(one) for one in groups], ())
    every = np.concatenate(groups)
    assert found.kl_median == pytest.approx(np.quantile(every, 0.5))
    assert found.kl_p95 == pytest.approx(np.quantile(every, 0.95))
    assert (found.strength, found.texts, found.tokens) == (3.0, 3, 15)
    assert found.nll_under_plain == 1.0
    assert (found.target_logprob, found.share_with_words) == (None, None)


def test_words_are_counted_in_texts_and_over_tokens() -> None:
    texts = [
        text([1.0, 1.0], "The Sea. ", words=[[-1.0, -2.0], [-9.0, -9.0]]),
        text([1.0], "the seaside", words=[[-6.0], [-3.0]]),
    ]
    found = rules.row(1.0, texts, ["sea", "wave"])
    assert found.share_with_words == 0.5
    assert (found.target_logprob, found.control_logprob) == (-3.0, -7.0)
    assert found.samples == ["The Sea. ", "the seaside"]
    alone = rules.row(1.0, [text([1.0], words=[[-6.0]])], ["sea"])
    assert (alone.target_logprob, alone.control_logprob) == (-6.0, None)


@pytest.mark.parametrize(
    ("tokens", "share"),
    [
        ([1, 2, 3], None),
        ([1, 2, 3, 4], 0.0),
        ([7] * 8, 0.8),
        ([1, 2, 3, 4, 1, 2, 3, 4], 0.2),
    ],
)
def test_repetition_is_the_share_of_runs_of_four_that_were_there(
    tokens: list[int], share: float | None
) -> None:
    assert rules.repetition(tokens) == (share if share is None else pytest.approx(share))


@pytest.mark.parametrize(
    ("ladder", "strength", "between"),
    [
        ([(1, 0.5), (2, 1.5)], 1.5, (1.0, 2.0)),
        ([(2, 1.5), (1, 0.5), (0, 0.0)], 1.5, (1.0, 2.0)),
        ([(4, 2.0)], 2.0, (0.0, 4.0)),
        ([(-4, 2.0)], -2.0, (0.0, -4.0)),
        ([(-4, 2.0), (8, 1.0)], 8.0, (0.0, 8.0)),
        ([(1, 1.2), (2, 0.4), (3, 5.0)], 1 / 1.2, (0.0, 1.0)),
    ],
)
def test_a_lever_is_calibrated_where_the_quantile_first_reaches_one_nat(
    ladder: list[tuple[float, float]], strength: float, between: tuple[float, float]
) -> None:
    found = rules.calibrated([row(*one) for one in ladder])
    assert found.strength == pytest.approx(strength)
    assert (found.between, found.reason, found.kl_p95) == (between, None, 1.0)


@pytest.mark.parametrize("ladder", [[(1.0, 0.2), (3.0, 0.4)], [(0.0, 0.0)]])
def test_a_ladder_that_ends_before_one_nat_says_so(ladder: list[tuple[float, float]]) -> None:
    found = rules.calibrated([row(*one) for one in ladder])
    assert (found.strength, found.between) == (None, None)
    assert found.reason


def rung(strength: float, *, works: bool | None, is_unbroken: bool) -> EffectRow:
    made = row(strength, 0.0)
    plain = structs.replace(made, nll_under_plain=1.0 if is_unbroken else -1.0)
    return structs.replace(rules.judged(made, [text([0.0])], plain), works=works)


def rungs(*strengths: str) -> list[EffectRow]:
    """Rows as "strength marks": `w` works, `b` breaks the text."""
    made = [one.split(" ") for one in strengths]
    return [
        rung(float(number), works="w" in marks, is_unbroken="b" not in marks)
        for number, marks in made
    ]


@pytest.mark.parametrize(
    ("ladder", "low", "value", "high", "smallest", "unbroken"),
    [
        (["1 -", "2 w", "4 w", "8 wb"], 2, 2, 4, 2, 4),
        (["8 wb", "4 w", "2 w", "1 -"], 2, 2, 4, 2, 4),
        (["1 -", "2 wb", "4 wb"], None, None, None, 2, 1),
        (["1 -", "2 -"], None, None, None, None, 2),
        (["1 b", "2 wb"], None, None, None, 2, None),
        # the dial is on the side that works, and above 0 where both do
        (["-4 w", "-2 w", "2 -", "4 b"], -4, -2, -2, -2, -4),
        (["-2 w", "2 w", "4 wb"], 2, 2, 2, 2, 2),
        # a hole: what breaks the text is not the end of what works, but of what is known to be unbroken
        (["1 w", "2 wb", "4 w"], 1, 1, 4, 1, 1),
    ],
)
def test_the_dial_has_what_works_without_breaking_the_text(
    ladder: list[str],
    low: float | None,
    value: float | None,
    high: float | None,
    smallest: float | None,
    unbroken: float | None,
) -> None:
    found = rules.suggested({"feature": {"index": 1}}, rungs(*ladder), 6.5)
    assert (found.low, found.value, found.high) == (low, value, high)
    assert (found.smallest_that_works, found.largest_unbroken) == (smallest, unbroken)
    assert (found.unit, found.unit_max) == ("activation", 6.5)


def test_without_words_the_dial_says_only_where_the_text_breaks() -> None:
    ladder = [rung(1, works=None, is_unbroken=True), rung(2, works=None, is_unbroken=False)]
    found = rules.suggested({"vector": "calm"}, ladder, None)
    assert (found.low, found.value, found.high, found.smallest_that_works) == (None,) * 4
    assert (found.unit, found.largest_unbroken) == ("raw", 1)


@pytest.mark.parametrize(
    ("count", "plain", "others", "is_working"),
    [
        (3, 0.0, [0], True),
        (2, 0.0, [0], False),  # a resample may have none
        (3, 0.25, [0], False),
        (8, 0.75, [0], True),
        (8, 0.875, [0], False),  # an eighth more is too little
        (3, 0.0, [0, 1], False),  # a random direction brings the words too
        (8, 0.0, [3], True),
        (3, 0.0, [], True),
    ],
)
def test_a_lever_works_where_its_words_come_more_often_than_without_it_and_by_chance(
    count: int, plain: float, others: list[int], is_working: bool
) -> None:
    def written(found: int) -> list[Written]:
        return [text([0.0], "a sea" if at < found else "a farm") for at in range(8)]

    def told(found: int) -> EffectRow:
        return rules.row(2.0, written(found), ["sea"])

    before = structs.replace(told(0), share_with_words=plain)
    found = rules.judged(told(count), written(count), before, [told(one) for one in others])
    assert found.works is is_working


@pytest.mark.parametrize(("count", "texts"), [(0, 8), (3, 8), (8, 8), (17, 40), (1, 1)])
def test_the_interval_of_a_share_is_that_of_the_bootstrap(count: int, texts: int) -> None:
    found = [1.0] * count + [0.0] * (texts - count)
    drawn = np.random.default_rng(5).choice(found, size=(200_000, texts)).mean(axis=1)
    ends = np.quantile(drawn, [0.025, 0.975], method="inverted_cdf")
    assert levers.share_interval(count, texts) == tuple(ends)


@pytest.mark.parametrize(
    ("nll", "repetition", "is_unbroken"),
    [
        (3.0, 0.15, True),
        (3.01, 0.0, False),
        (2.0, 0.19, True),
        (2.0, 0.21, False),
        (2.0, None, True),
    ],
)
def test_a_text_is_broken_where_it_is_unlikely_or_repeats_itself(
    nll: float, repetition: float | None, is_unbroken: bool
) -> None:
    found = levers.damage(nll, 2.0, repetition, 0.05, ["A sea, a SEA", "the boat"])
    assert found.is_unbroken is is_unbroken
    assert found.nll_over_plain == pytest.approx(nll - 2.0)
    assert found.repetition_over_plain == (
        None if repetition is None else pytest.approx(repetition - 0.05)
    )
    assert found.distinct == pytest.approx(4 / 6)
    assert levers.damage(1.0, 1.0, None, None, ["..."]).distinct is None
