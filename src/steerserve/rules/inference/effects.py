"""Effects: how far steered texts are from the model without steering, at each strength of a ladder.

All sums run over the generated tokens of all texts of one strength together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from steerserve.rules.form import Form

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
    the log-probability that the word begins there; it is empty without words."""

    text: str
    tokens: Sequence[int]
    divergences: Sequence[float]
    likelihoods: Sequence[float]
    words: Sequence[Sequence[float]] = ()


class EffectRow(Form, frozen=True, kw_only=True):
    """The texts of one strength. `kl_median` and `kl_p95` are quantiles of KL(steered || plain) in nats over all
    tokens, `nll_under_plain` is the mean negative log-likelihood of a token under the model without steering, in nats.
    `repetition` is the mean share of repeated runs of four tokens; null where no text has four. The numbers of words
    are null where the request has none."""

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


class Calibrated(Form, frozen=True, kw_only=True):
    """The strength at which `kl_p95` is the number here, by a straight line between the two strengths of `between`.
    Both are null where the ladder does not reach it, and `reason` says why."""

    kl_p95: float
    strength: float | None
    between: tuple[float, float] | None
    reason: str | None


class Suggested(Form, frozen=True, kw_only=True):
    """The dial of a lever. Between the strengths `low` and `high`, with 0 among them, `kl_p95` stays below its target,
    as far as was measured. `value` is the strength at which it reaches the target, which is one of the two; null where
    the ladder does not reach it. `unit` says what a strength is: the value of an added feature (`activation`) or of an
    added vector (`raw`), or the `intensity` of edits."""

    unit: Literal["activation", "raw", "intensity"]
    value: float | None
    low: float
    high: float


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
    )


def suggested(lever: Mapping[str, object], rows: Sequence[EffectRow]) -> Suggested:
    """The dial of a lever, which has one of the fields `feature`, `vector` and `edits`."""
    (name,) = lever
    ends = []
    for side in (_below(rows), _above(rows)):
        found = _calibrated(side)
        last = max((one.strength for one in side), key=abs, default=0.0)
        ends.append(last if found.strength is None else found.strength)
    return Suggested(unit=_UNITS[name], value=calibrated(rows).strength, low=ends[0], high=ends[1])


def calibrated(rows: Sequence[EffectRow]) -> Calibrated:
    """Where the 95 % quantile reaches TARGET_P95 first, going from 0 upwards, or downwards where no strength is above
    0. At the strength 0 the quantile is 0."""
    return _calibrated(_above(rows) or _below(rows))


def _above(rows: Sequence[EffectRow]) -> list[EffectRow]:
    return [one for one in rows if one.strength > 0]


def _below(rows: Sequence[EffectRow]) -> list[EffectRow]:
    return [one for one in rows if one.strength < 0]


def _calibrated(side: Sequence[EffectRow]) -> Calibrated:
    """Where the rows of one side of 0 reach TARGET_P95 first."""
    before, low = 0.0, 0.0
    for one in sorted(side, key=lambda one: abs(one.strength)):
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
