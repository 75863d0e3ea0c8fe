"""When a lever works, when a steered text is broken, and what one vector does at some layers and strengths.

A lever works at a strength where its words come clearly more often than without steering, and more often than with
every random direction of its length; or, where a probe reads the texts, where they are clearly further on the side of
the positive examples. A text is broken where the model without steering finds it much less likely than its own texts,
or where it repeats itself much more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

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
        is_unbroken=_share(over, repeated) <= 1,
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
    return share >= plain + SHARE_OVER_PLAIN and is_above(low, plain, random_highs)


# ---------------------------------------------------------------------------------------------------- one vector

LAYERS = 4
"""The layers at which a vector is measured, where a client names none."""
ALIKE = 0.1
"""How far the AUC of a layer may be below the best one, and the layer still be measured before worse ones. It is about
one text of ten; and the layer that tells texts apart best is seldom the one where a direction steers best."""
NEAR = 1.07
"""The smallest factor between two strengths that are tried."""
CLOSE = 0.6
"""The share of the damage of broken texts at which unbroken ones show that no stronger lever needs to be tried."""
AIM = 0.85
"""The share of the damage of broken texts at which the next strength is aimed."""
STEP = 3.0
"""The largest factor between a strength and the next one."""
FIRST_LENGTH = 0.15
"""The length of what the first strength of the first layer adds, as a share of the mean length of the values of the
site."""
EXAMPLES_MINIMUM = 8
"""The texts of each group from which a probe of steered texts is trained."""
RESAMPLES = 500
"""The resamples of the bootstrap of a mean."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is written to measure a vector: at each place one text of the first `prompts` of all prompts (None: of
    all), at up to `strengths` places of a layer where the client names none; then about `texts` texts at places of the
    `finalists` best layers, because few texts do not tell which place is the best; last about `confirmed` texts at the
    best place, as many with each random direction there, and as many without steering, because with fewer texts the
    intervals of a lever and of a random direction overlap. Each prompt is continued as often as that takes."""

    prompts: int | None
    strengths: int
    finalists: int
    texts: int
    confirmed: int


SHORT = Effort(prompts=4, strengths=3, finalists=1, texts=16, confirmed=40)
"""A training ends with this."""
WHOLE = Effort(prompts=None, strengths=4, finalists=2, texts=32, confirmed=64)
"""A measurement that is asked for."""


class LeverPlace(Form, frozen=True):
    """A layer and a strength of a vector that is added."""

    layer: int
    strength: float


class RandomEffect(Form, frozen=True, kw_only=True):
    """The effect of one random direction of the vector's length at the place of `best`, with its 95 % interval."""

    effect: float
    effect_low: float
    effect_high: float


class MeasuredStrength(Form, frozen=True, kw_only=True):
    """So many texts with a vector at one layer and one strength. `effect` is null where all texts are blank; its 95 %
    interval is that of the bootstrap over the texts."""

    layer: int
    strength: float
    texts: int
    effect: float | None
    effect_low: float | None
    effect_high: float | None
    damage: Damage
    sample: str


class ProbeOfTexts(Form, frozen=True):
    """The probe that reads steered texts, without steering: its layer, and its AUC on the half of the examples that it
    was not trained on."""

    layer: int
    auc_held_out: float


class Measured(Form, frozen=True, kw_only=True):
    """What a vector does when it is added at one of some layers, at some strengths.

    The effect `by` words is the share of the texts that have one of `words`, `plain` the same share without steering.
    The effect `by` a probe is the mean score of the texts under `probe`, less that of the texts without steering, in
    standard deviations of these; `plain` is 0. `best` is the place with the largest effect among those whose texts are
    unbroken; null where there is none. A training continues few prompts at each place, and more at the best one.
    `works` says whether the vector works there: its effect is clearly above `plain` and above every direction of
    `random`."""

    model: str
    by: Literal["words", "probe"]
    words: list[str]
    probe: ProbeOfTexts | None
    plain: float
    layers: list[MeasuredStrength]
    best: LeverPlace | None
    works: bool
    random: list[RandomEffect]
    tokens: int
    temperature: float
    seed: int


def too_few(texts: int) -> str:
    """Why a vector is not measured whose smaller group has so many texts."""
    return f"a group has {texts} texts; a probe of steered texts needs {EXAMPLES_MINIMUM}"


def layers_to_measure(equals: Sequence[int], ranked: Sequence[int]) -> list[int]:
    """At most LAYERS layers. They are spread evenly over the layers that tell the examples apart about equally well.
    Where there are too few of these, the next best layers follow.

    Args:
        equals: the layers that are about as good as the best one, rising.
        ranked: all layers, the best first.
    """
    if len(equals) > LAYERS:
        step = len(equals) / LAYERS
        return [equals[int((number + 0.5) * step)] for number in range(LAYERS)]
    others = [layer for layer in ranked if layer not in equals]
    return sorted([*equals, *others[: LAYERS - len(equals)]])


def broken_share(of: Damage) -> float:
    """The damage as a share of the damage of broken texts, at least 0. Above 1 the texts are broken."""
    return _share(of.nll_over_plain, of.repetition_over_plain)


def _share(nll_over_plain: float, repetition_over_plain: float | None) -> float:
    repeated = (repetition_over_plain or 0.0) / REPETITION_OVER_PLAIN
    return max(0.0, nll_over_plain / NLL_OVER_PLAIN, repeated)


def next_strength(tried: Mapping[float, float], first: float, most: int) -> float | None:
    """The next strength of a search for the strongest one that leaves texts unbroken, with two digits.

    Damage grows about as the square of the strength. So the search scales the strength whose damage is nearest to AIM,
    and stays between the strongest unbroken and the weakest broken strength. It ends (None) after `most` strengths,
    where an unbroken strength has CLOSE of the damage of broken texts, and where two strengths have none between them.

    Args:
        tried: for each strength so far the damage of its texts, as `broken_share` says.
        first: the strength that is tried first.
    """
    if not tried:
        return rounded(first)
    broken = min((one for one, damage in tried.items() if damage > 1), default=math.inf)
    whole = max((one for one, damage in tried.items() if damage <= 1 and one < broken), default=0.0)
    if len(tried) >= most or tried.get(whole, 0.0) >= CLOSE or broken < NEAR * NEAR * whole:
        return None
    ends = [one for one in (whole, broken) if one in tried]
    nearest = min(ends, key=lambda one: abs(math.log(aimed(tried[one]))))
    found = nearest * aimed(tried[nearest])
    if whole and not NEAR * whole <= found <= broken / NEAR:
        found = math.sqrt(whole * broken)
    return rounded(min(found, broken / NEAR))


def aimed(damage: float) -> float:
    """The factor from a strength with this damage to the one with the damage that is aimed at."""
    return min(STEP, max(1 / STEP, math.sqrt(AIM / max(damage, 1e-9))))


def rounded(strength: float) -> float:
    return float(f"{strength:.2g}")


def best(rows: Sequence[MeasuredStrength]) -> MeasuredStrength | None:
    """The row with the largest effect among those whose texts are unbroken."""
    return next(iter(best_by_layer(rows)), None)


def best_by_layer(rows: Sequence[MeasuredStrength]) -> list[MeasuredStrength]:
    """Of each layer the row with the largest effect among those whose texts are unbroken, the largest first."""
    unbroken = [one for one in rows if one.effect is not None and one.damage.is_unbroken]
    ranked = sorted(unbroken, key=lambda one: one.effect or 0.0)
    by_layer = {one.layer: one for one in ranked}
    return sorted(by_layer.values(), key=lambda one: -(one.effect or 0.0))


def scored(
    scores: Sequence[float | None],
    plain: Sequence[float | None],
    prompts: int,
    draw: Callable[[int], int],
) -> tuple[float, float, float] | None:
    """The mean score of steered texts, each less the mean score of the texts without steering of its prompt, in
    standard deviations of the texts without steering, and its 95 % interval; None where no prompt has both texts, and
    where the plain ones do not differ.

    Args:
        scores: the scores of steered texts; None for a blank text. The texts of all prompts come first, then further
            ones of all prompts.
        plain: the same without steering, of so many `prompts`. `scores` may be those of the first prompts only.
        draw: a random number from 0 to below its argument.
    """
    known = [one for one in plain if one is not None]
    spread = stdev(known) if len(known) > 1 else 0.0
    own = [[one for one in plain[at::prompts] if one is not None] for at in range(prompts)]
    moved = [
        (one - fmean(before)) / spread
        for place, one in enumerate(scores)
        if spread and one is not None and (before := own[place % prompts])
    ]
    if not moved:
        return None
    count = len(moved)
    means = sorted(fmean(moved[draw(count)] for _ in range(count)) for _ in range(RESAMPLES))
    edge = int(_TAIL * RESAMPLES)
    return fmean(moved), means[edge], means[-1 - edge]


def is_above(low: float, plain: float, random_highs: Sequence[float]) -> bool:
    """Whether the lower end of the interval of an effect is above the effect without steering, and above the upper
    ends of all random directions."""
    return low > plain and all(low > high for high in random_highs)
