"""Effects: how far steered texts are from the model without steering, at each strength of a ladder.

All sums run over the generated tokens of all texts of one strength together.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec import UNSET, UnsetType, structs

from steerserve.rules.form import Form
from steerserve.rules.steering import levers
from steerserve.rules.steering.levers import Damage

TARGET_P95 = 1.0
"""The 95 % quantile of KL(steered || plain), in nats, at which a lever is calibrated."""
NGRAM = 4
"""The length of the runs of tokens whose repetition is counted (`seq-rep-4`, Welleck et al. 2020)."""
SAMPLES = 2
_UNITS: dict[str, Literal["activation", "raw", "intensity"]] = {
    "feature": "activation",
    "vector": "raw",
    "edits": "intensity",
}

STOCK_TEXTS = (
    "In the morning",
    "The first thing that people notice is",
    "She opened the letter and",
    "There are three reasons for this:",
    "After a long day at work, he",
    "The town lies",
    "It was late when they",
    "My favourite story begins with",
)
"""The prompts of a model without a chat template."""
STOCK_QUESTIONS = (
    "Tell me about your day.",
    "What should I know before I visit a new city?",
    "Write the beginning of a short story.",
    "Explain how bread is made.",
    "Give me some advice for a calm evening.",
    "What makes a good friend?",
    "Describe a picture that you like.",
    "How do I learn a new language?",
)
"""The prompts of a model with a chat template."""


@dataclass(frozen=True, slots=True)
class Written:
    """One text, and the numbers of each of its tokens: KL(steered || plain) in nats, and its log-probability under the
    model without steering. `words` has, for the target words and then for the control words, the mean over the words of
    the log-probability that the word begins there; it is empty without words. `states` are the mean values [width] of
    the sites that were read without steering, float32."""

    text: str
    tokens: Sequence[int]
    divergences: Sequence[float]
    likelihoods: Sequence[float]
    words: Sequence[Sequence[float]] = ()
    states: Sequence[bytes] = ()


class EffectRow(Form, frozen=True, kw_only=True):
    """The texts of one strength. `kl_median` and `kl_p95` are quantiles of KL(steered || plain) in nats over all
    tokens, `nll_under_plain` is the mean negative log-likelihood of a token under the model without steering, in nats.
    `repetition` is the mean share of repeated runs of four tokens; null where no text has four. The numbers of words
    are null where the request has none. `share_low` and `share_high` are the 95 % interval of `share_with_words`, by
    the bootstrap over the texts. `works` says whether the lever works at this strength; null without words, without
    steering, and for random directions. Results that an earlier version kept have no `damage`, interval and `works`."""

    strength: float
    texts: int
    tokens: int
    kl_median: float
    kl_p95: float
    nll_under_plain: float
    repetition: float | None
    target_logprob: float | None
    control_logprob: float | None
    share_with_words: float | None
    samples: list[str]
    share_low: float | UnsetType | None = UNSET
    share_high: float | UnsetType | None = UNSET
    damage: Damage | UnsetType = UNSET
    works: bool | UnsetType | None = UNSET


class Calibrated(Form, frozen=True, kw_only=True):
    """The strength at which `kl_p95` is the number here, by a straight line between the two strengths of `between`.
    Both are null where the ladder does not reach it, and `reason` says why."""

    kl_p95: float
    strength: float | None
    between: tuple[float, float] | None
    reason: str | None


class Suggested(Form, frozen=True, kw_only=True):
    """The dial of a lever: the strengths of the ladder on one side of 0 at which it works and the text is unbroken,
    from `low` to `high`, and the one nearest to 0 as `value`. All three are null where there is none, and without
    target words. `unit` says what a strength is: the value of an added feature (`activation`), of an added vector
    (`raw`), or the `intensity` of edits.

    `smallest_that_works` may break the text. `largest_unbroken` is the last strength before the first that breaks the
    text, seen from 0. `unit_max` is the largest activation of the feature that monitoring or a corpus has seen; null
    for other levers. Results that an earlier version kept lack these, and their dial ends where `kl_p95` reaches 1
    nat."""

    unit: Literal["activation", "raw", "intensity"]
    value: float | None
    low: float | None
    high: float | None
    smallest_that_works: float | UnsetType | None = UNSET
    largest_unbroken: float | UnsetType | None = UNSET
    unit_max: float | UnsetType | None = UNSET


class Supported(Form, frozen=True):
    """A stored document for which a result is evidence."""

    kind: Literal["profile", "cluster", "circuit"]
    id: str
    name: str


class EffectSummary(Form, frozen=True, kw_only=True):
    """A result without its figures. `digest` is the SHA-256 of the result."""

    digest: str
    model: str
    steering_state: str | None
    lever: dict[str, object]
    strengths: list[float]
    calibrated: Calibrated
    suggested: Suggested


def row(strength: float, texts: Sequence[Written], targets: Sequence[str]) -> EffectRow:
    """The figures of the texts of one strength."""
    divergences = sorted(value for text in texts for value in text.divergences)
    likelihoods = [value for text in texts for value in text.likelihoods]
    shares = [share for text in texts if (share := repetition(text.tokens)) is not None]
    found = [contains(text.text, targets) for text in texts]
    low, high = levers.share_interval(sum(found), len(found)) if targets else (None, None)
    return EffectRow(
        strength=strength,
        texts=len(texts),
        tokens=len(likelihoods),
        kl_median=quantile(divergences, 0.5),
        kl_p95=quantile(divergences, 0.95),
        nll_under_plain=-math.fsum(likelihoods) / len(likelihoods),
        repetition=_mean(shares),
        target_logprob=_mean(_words(texts, 0)),
        control_logprob=_mean(_words(texts, 1)),
        share_with_words=_mean(found) if targets else None,
        samples=[text.text for text in texts[:SAMPLES]],
        share_low=low,
        share_high=high,
        works=None,
    )


def judged(
    found: EffectRow,
    texts: Sequence[Written],
    plain: EffectRow,
    others: Sequence[EffectRow] | None = None,
) -> EffectRow:
    """The row of these texts, with what the steering did to them.

    Args:
        plain: the row of the texts without steering.
        others: the row of each random direction at the same strength; None where the row has no lever of its own.
    """
    damage = levers.damage(
        found.nll_under_plain,
        plain.nll_under_plain,
        found.repetition,
        plain.repetition,
        [text.text for text in texts],
    )
    share, low, before = found.share_with_words, found.share_low, plain.share_with_words
    works = None
    if others is not None and share is not None and before is not None and isinstance(low, float):
        highs = [one.share_high for one in others if isinstance(one.share_high, float)]
        works = levers.works(share, low, before, highs)
    return structs.replace(found, damage=damage, works=works)


def suggested(
    lever: Mapping[str, object], rows: Sequence[EffectRow], unit_max: float | None
) -> Suggested:
    """The dial of a lever, which has one of the fields `feature`, `vector` and `edits`, from judged rows."""
    (name,) = lever
    sides = [sorted(side, key=_size) for side in (_above(rows), _below(rows))]
    working = [[one.strength for one in side if one.works is True] for side in sides]
    good = [
        [one.strength for one in side if one.works is True and _unbroken(one)] for side in sides
    ]
    within = next(filter(None, good), [])
    # the side of the dial; where there is none, that of the strengths above 0
    side = sides[good.index(within)] if within else next(filter(None, sides), [])
    unbroken = [one.strength for one in itertools.takewhile(_unbroken, side)]
    return Suggested(
        unit=_UNITS[name],
        value=within[0] if within else None,
        low=min(within, default=None),
        high=max(within, default=None),
        smallest_that_works=next((found[0] for found in working if found), None),
        largest_unbroken=unbroken[-1] if unbroken else None,
        unit_max=unit_max,
    )


def _size(one: EffectRow) -> float:
    return abs(one.strength)


def _unbroken(one: EffectRow) -> bool:
    return isinstance(one.damage, Damage) and one.damage.is_unbroken


def calibrated(rows: Sequence[EffectRow]) -> Calibrated:
    """Where the 95 % quantile reaches TARGET_P95 first, going from 0 upwards, or downwards where no strength is above
    0. At the strength 0 the quantile is 0."""
    side = _above(rows) or _below(rows)
    before, low = 0.0, 0.0
    for one in sorted(side, key=_size):
        if one.kl_p95 >= TARGET_P95:
            part = (TARGET_P95 - low) / (one.kl_p95 - low)
            return Calibrated(
                kl_p95=TARGET_P95,
                strength=before + part * (one.strength - before),
                between=(before, one.strength),
                reason=None,
            )
        before, low = one.strength, one.kl_p95
    why = (
        f"kl_p95 is {low:.3g} at the strength {before:g}, the last one of the ladder"
        if side
        else "the ladder has no strength but 0"
    )
    return Calibrated(kl_p95=TARGET_P95, strength=None, between=None, reason=why)


def _above(rows: Sequence[EffectRow]) -> list[EffectRow]:
    return [one for one in rows if one.strength > 0]


def _below(rows: Sequence[EffectRow]) -> list[EffectRow]:
    return [one for one in rows if one.strength < 0]


def repetition(tokens: Sequence[int]) -> float | None:
    """The share of the runs of NGRAM tokens that stood in the text before; None for a shorter text."""
    runs = [tuple(tokens[at : at + NGRAM]) for at in range(len(tokens) - NGRAM + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else None


def contains(text: str, words: Sequence[str]) -> bool:
    """Whether the text has one of the words as a whole word, in capitals or not."""
    return any(
        re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) is not None
        for word in words
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """A quantile of numbers in their order, by a straight line between its two neighbours."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def _words(texts: Sequence[Written], which: int) -> list[float]:
    return [value for text in texts if len(text.words) > which for value in text.words[which]]


def _mean(numbers: Sequence[float]) -> float | None:
    return math.fsum(numbers) / len(numbers) if numbers else None
