"""Which features of the demo's SAEs fire one after the other in the documents of its corpus."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LAG = 8
"""The most tokens from the firing of an upstream feature to the firing of a downstream feature."""
SHUFFLES = 200


@dataclass(frozen=True, slots=True)
class Node:
    """One feature of an SAE."""

    layer: int
    feature: int


@dataclass(frozen=True, slots=True)
class Stories:
    """Documents with the activations of both SAEs: `acts[layer]` is float32 [tokens, d_sae], `ends` has the end of each
    document in these tokens."""

    rows: list[list[int]]
    acts: Mapping[int, Tensor]
    ends: list[int]

    def fires(self, node: Node, theta: float) -> Tensor:
        """Where a feature fires, bool [tokens]."""
        return self.acts[node.layer][:, node.feature] > theta

    def maximum(self, node: Node) -> float:
        """The largest activation of a feature."""
        return float(self.acts[node.layer][:, node.feature].max())

    def mean(self, node: Node) -> float:
        """The mean activation of a feature over all tokens."""
        return float(self.acts[node.layer][:, node.feature].mean())


def soon(fires: Tensor, ends: Sequence[int], *, is_before: bool = False) -> Tensor:
    """Where a feature fires at one of the next LAG tokens of the same document, bool [tokens]; with `is_before`, at one
    of the LAG tokens before."""
    found = torch.zeros_like(fires)
    begin = 0
    for end in ends:
        part = fires[begin:end]
        for lag in range(1, min(LAG + 1, len(part))):
            if is_before:
                found[begin + lag : end] |= part[:-lag]
            else:
                found[begin : end - lag] |= part[lag:]
        begin = end
    return found


def co_activation(
    stories: Stories, up: Node, down: Node, thetas: Mapping[Node, float], seed: int
) -> dict[str, float]:
    """`support`: the firings of `up` that `down` follows. `lift`: the share of these among the firings of `up`, over
    the share among all tokens. `pmi`: the binary logarithm of the lift. `spearman`: the rank correlation of the largest
    activations in each document. `null_percentile`: the share of shuffles, in which the firings of `up` are moved along
    the documents, with less support."""
    first = stories.fires(up, thetas[up])
    follows = soon(stories.fires(down, thetas[down]), stories.ends)
    support = int((first & follows).sum())
    base = float(follows.float().mean())
    lift = support / max(1, int(first.sum())) / base if base else 0.0
    generator = torch.Generator().manual_seed(seed)
    moves = torch.randint(LAG + 1, len(first) - LAG, (SHUFFLES,), generator=generator).tolist()
    less = sum(int((first.roll(move) & follows).sum()) < support for move in moves)
    return {
        "pmi": round(math.log2(lift), 3) if lift else 0.0,
        "lift": round(lift, 3),
        "spearman": round(spearman(largest(stories, up), largest(stories, down)), 3),
        "support": support,
        "null_percentile": less / SHUFFLES,
    }


def largest(stories: Stories, node: Node) -> Tensor:
    """The largest activation of a feature in each document."""
    begins = [0, *stories.ends[:-1]]
    column = stories.acts[node.layer][:, node.feature]
    return torch.stack([column[b:e].max() for b, e in zip(begins, stories.ends, strict=True)])


def spearman(one: Tensor, other: Tensor) -> float:
    """The rank correlation of two samples; equal values share their mean rank."""
    ranks = torch.stack([_ranks(one), _ranks(other)])
    return float(torch.corrcoef(ranks)[0, 1].nan_to_num())


def _ranks(sample_: Tensor) -> Tensor:
    _, places, counts = sample_.unique(return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).float()
    return (ends - (counts - 1) / 2)[places]
