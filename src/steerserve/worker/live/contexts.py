"""The text around the tokens that were monitored last. It is kept in memory only, and only where the operator wants
it, because it is text of users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from steerserve.messages import FeatureContext, Window
from steerserve.nouns.cluster_sensing import rules as sensing
from steerserve.nouns.cluster_sensing.rules import Decode
from steerserve.worker.live.ranking import is_active
from steerserve.worker.rows.rows import BatchRow

AROUND = 16
"""The number of tokens that are kept on each side of a monitored token."""
LISTED = 64
"""The most features that are kept of one token: the largest by magnitude."""

Place = tuple[BatchRow, int]
"""A row and a position in it."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A monitored token at `position` of a choice. It is `tokens[at]` of the tokens around it."""

    label: str
    choice: int
    position: int
    tokens: tuple[int, ...]
    at: int


class ContextRing:
    """The last `size` monitored tokens of one SAE, each with its largest features."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._features = np.full((size, LISTED), -1, dtype=np.int32)
        self._values = np.zeros((size, LISTED), dtype=np.float32)
        self._kept: list[Kept] = []
        self._next = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, places: Sequence[Place], values: Tensor, named: Tensor | None) -> None:
        """Keep tokens with their values [n, features] of the named features, or of all features."""
        top = values.abs().topk(min(LISTED, values.shape[1])).indices
        largest = values.gather(1, top)
        features = top if named is None else named[top]
        features = torch.where(is_active(largest), features, -1)
        width = top.shape[1]
        indices, activations = features.cpu().numpy(), largest.float().cpu().numpy()
        for number, (row, position) in enumerate(places):
            self._features[self._next] = -1
            self._features[self._next, :width] = indices[number]
            self._values[self._next, :width] = activations[number]
            self._kept[self._next : self._next + 1] = [_kept(row, position)]
            self._next = (self._next + 1) % self.size

    def strongest(self, feature: int, k: int, decode: Decode) -> list[FeatureContext]:
        """The `k` kept tokens with the largest values of a feature by magnitude, the largest first."""
        rows, columns = (self._features == feature).nonzero()
        values = self._values[rows, columns]
        best = np.argsort(-np.abs(values), kind="stable")[:k]
        return [_context(self._kept[rows[one]], float(values[one]), decode) for one in best]


def _kept(row: BatchRow, position: int) -> Kept:
    first = max(0, position - AROUND)
    end = min(position + AROUND + 1, len(row.prompt) + len(row.out))
    tokens = tuple(row.token_at(place) for place in range(first, end))
    return Kept(row.label or "", row.choice, position, tokens, position - first)


def _context(kept: Kept, value: float, decode: Decode) -> FeatureContext:
    made = sensing.context(kept.tokens, kept.at, kept.at, AROUND, decode)
    window = Window(made.token_ids, made.text, made.parts)
    return FeatureContext(kept.label, kept.choice, kept.position, value, window)
