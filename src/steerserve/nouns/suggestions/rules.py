"""Labels of features by a language model: what it is asked, and what its answers mean.

A model sees texts in which the feature fires, with the tokens where it does, and names what they have in common. It
then sees other such texts among random ones, and says which of them the label fits: this is the detection score of
Paulo et al. 2024 (arXiv:2410.13928), here as balanced accuracy.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from steerserve.nouns.labels.rules import LENGTH_MAXIMUM
from steerserve.rules.text import line_fault

PROMPT_VERSION = 1
"""Changes with every change of what a model is asked."""
LABEL_TOKENS, DETECTION_TOKENS = 40, 80
"""The most tokens of the two answers."""
AROUND = 16
"""The tokens of an example on each side of the largest activation."""
MARKED_SHARE = 0.5
"""A token is marked where the activation is more than this share of the largest in its example."""

_NAMING = (
    "You explain features of a neural network. Each text below has tokens marked <<like this>>, at which the same "
    "feature is active. Answer with one short label, at most ten words, of what the marked tokens have in common. "
    "Answer with the label alone."
)
_DETECTING = (
    "A feature of a neural network has the label: {label}\n"
    "Answer with the numbers of those texts below in which something fits this label, separated by commas, or with "
    "`none`. Answer with the numbers alone."
)
_NUMBER = re.compile(r"[0-9]{1,4}")
_PREFIX = re.compile(r"^(label|answer)\s*:\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FeatureText:
    """Some tokens of a text, each with the activation of the feature there."""

    pieces: tuple[str, ...]
    values: tuple[float, ...]

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def largest(self) -> float:
        return max(self.values, default=0.0)

    @property
    def marked(self) -> str:
        """The text with its strongest tokens marked."""
        bound = self.largest * MARKED_SHARE
        return "".join(
            f"<<{piece}>>" if value > bound else piece
            for piece, value in zip(self.pieces, self.values, strict=True)
        )


def around(pieces: Sequence[str], values: Sequence[float]) -> FeatureText:
    """The tokens near the largest activation of a text."""
    at = max(range(len(values)), key=lambda i: (values[i], -i))
    first, end = max(0, at - AROUND), at + AROUND + 1
    return FeatureText(tuple(pieces[first:end]), tuple(values[first:end]))


def split(texts: Sequence[FeatureText], count: int) -> tuple[list[FeatureText], list[FeatureText]]:
    """The examples that a label is made of, `count` at most, and as many that are held out. Both are about equally
    strong."""
    ordered = sorted(texts, key=lambda one: -one.largest)[: 2 * count]
    return ordered[::2], ordered[1::2]


def naming(shown: Sequence[FeatureText], promoted: Sequence[str]) -> str:
    """The text that asks for a label."""
    lines = [f"{at}. {_line(one.marked)}" for at, one in enumerate(shown, 1)]
    if promoted:
        lines.append(
            f"The feature makes these next tokens likelier: {', '.join(map(repr, promoted))}"
        )
    return "\n".join([_NAMING, "", *lines])


def detecting(label: str, texts: Sequence[str]) -> str:
    """The text that asks which of these texts a label fits."""
    lines = [f"{at}. {_line(text)}" for at, text in enumerate(texts, 1)]
    return "\n".join([_DETECTING.format(label=label), "", *lines])


def label_of(answer: str) -> str | None:
    """The label in an answer; None where there is none that can be stored."""
    line = next((line.strip() for line in answer.splitlines() if line.strip()), "")
    label = _PREFIX.sub("", line).strip().strip("\"'`*").strip()
    if not label or len(label) > LENGTH_MAXIMUM or line_fault(label) is not None:
        return None
    return label


def mixed(
    held_out: Sequence[FeatureText], others: Sequence[str], seed: int
) -> tuple[list[str], list[bool]]:
    """The held-out texts and as many random ones in random order, and which are held-out texts."""
    pairs = [(one.text, True) for one in held_out]
    pairs += [(text, False) for text in others[: len(held_out)]]
    random.Random(seed).shuffle(pairs)  # noqa: S311 -- it must be repeatable
    return [text for text, _ in pairs], [fires for _, fires in pairs]


def balanced_accuracy(answer: str, truth: Sequence[bool]) -> float | None:
    """The mean of the share of texts with the feature that an answer names, and of those without it that it does not
    name; None where one of the two groups is empty."""
    named = {int(number) for number in _NUMBER.findall(answer)}
    hits = [(at in named) is fires for at, fires in enumerate(truth, 1)]
    groups = [
        [hit for hit, one in zip(hits, truth, strict=True) if one is fires]
        for fires in (True, False)
    ]
    if not all(groups):
        return None
    return sum(sum(group) / len(group) for group in groups) / 2


def _line(text: str) -> str:
    return " ".join(text.split())
