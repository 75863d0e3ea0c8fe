"""When a lever works, and when a steered text is broken.

A lever works at a strength where its words come clearly more often than without steering, and more often than with
every random direction of its length. A text is broken where the model without steering finds it much less likely than
its own texts, or where it repeats itself much more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from steerserve.rules.form import Form

SHARE_OVER_PLAIN = 0.25
"""How many more of the texts must have the words than of those without steering."""
NLL_OVER_PLAIN = 1.0
"""How many nats less likely a token of an unbroken text may be, under the model without steering, than one of its own
texts."""
REPETITION_OVER_PLAIN = 0.15
"""How much larger the share of repeated runs of four tokens may be in an unbroken text."""
_TAIL = 0.025
"""The part of the distribution on each side of an interval of 95 %."""
_WORD = re.compile(r"\w+")


class Damage(Form, frozen=True, kw_only=True):
    """What steering does to the texts of one strength beside its effect. `nll_over_plain` is how many nats less likely
    a token is under the model without steering than a token of its own texts, `repetition_over_plain` how much larger
    the share of repeated runs of four tokens is (null where the texts have no such runs), and `distinct` the share of
    the words of all texts together that are different words (distinct-1, Li et al. 2016; null without words).
    `is_unbroken` is true within the bounds of both differences."""

    nll_over_plain: float
    repetition_over_plain: float | None
    distinct: float | None
    is_unbroken: bool


def damage(
    nll: float,
    plain_nll: float,
    repetition: float | None,
    plain_repetition: float | None,
    texts: Sequence[str],
) -> Damage:
    """The damage of texts, from their mean negative log-likelihood in nats and their repetition, and from those of the
    texts without steering."""
    over = nll - plain_nll
    repeated = None if repetition is None else repetition - (plain_repetition or 0.0)
    return Damage(
        nll_over_plain=over,
        repetition_over_plain=repeated,
        distinct=distinct(texts),
        is_unbroken=over <= NLL_OVER_PLAIN and (repeated or 0.0) <= REPETITION_OVER_PLAIN,
    )


def distinct(texts: Sequence[str]) -> float | None:
    """The share of the words of all texts that are different words; None without words."""
    words = [word for text in texts for word in _WORD.findall(text.lower())]
    return len(set(words)) / len(words) if words else None


def share_interval(count: int, texts: int) -> tuple[float, float]:
    """The 95 % interval of a share of texts, by the bootstrap over the texts.

    A resample of n texts of which `count` have the words is a draw of the binomial distribution with the probability
    count / n, so the percentiles of the bootstrap are its quantiles, without any drawing.
    """
    share, below = count / texts, 0.0
    low = high = texts
    for found in range(texts + 1):
        below += math.comb(texts, found) * share**found * (1 - share) ** (texts - found)
        if below > _TAIL:
            low = min(low, found)
        if below >= 1 - _TAIL:
            high = found
            break
    return low / texts, high / texts


def works(share: float, low: float, plain: float, random_highs: Sequence[float]) -> bool:
    """Whether a lever works at a strength.

    Args:
        share: of the texts with the lever, those with one of the words; `low` is the lower end of its interval.
        plain: of the texts without steering, those with one of the words.
        random_highs: for each random direction at this strength, the upper end of the interval of its share.
    """
    return (
        low > plain
        and share >= plain + SHARE_OVER_PLAIN
        and all(low > high for high in random_highs)
    )
