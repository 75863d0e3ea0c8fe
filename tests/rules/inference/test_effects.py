"""The figures of effects, against numpy and the definitions."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from steerserve.rules.inference import effects as rules
from steerserve.rules.inference.effects import EffectRow, Written


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


@pytest.mark.parametrize(
    ("ladder", "low", "value", "high"),
    [
        ([(-4.0, 2.0), (-2.0, 0.0), (2.0, 0.5), (4.0, 1.5)], -3.0, 3.0, 3.0),
        ([(1.0, 0.2), (3.0, 0.4)], 0.0, None, 3.0),
        ([(-2.0, 2.0)], -1.0, -1.0, 0.0),
        ([(-5.0, 0.1), (0.0, 0.0), (2.0, 2.0)], -5.0, 1.0, 1.0),
    ],
)
def test_the_dial_ends_where_the_text_breaks_or_where_the_ladder_does(
    ladder: list[tuple[float, float]], low: float, value: float | None, high: float
) -> None:
    found = rules.suggested({"vector": "calm"}, [row(*one) for one in ladder])
    assert (found.unit, found.low, found.value, found.high) == ("raw", low, value, high)
