"""Running figures of the features of one SAE."""

from __future__ import annotations

import torch
from torch import Tensor

from steerserve.messages import FeatureCount
from steerserve.worker.live.ranking import is_active
from steerserve.worker.model import native


class RunningCounts:
    """Running figures of each feature of one SAE over the tokens observed, [d_sae] in float64.

    Means and sums of squares are merged batch by batch (Chan, Golub and LeVeque 1983), which stays exact where features
    are rare or far from 0.
    """

    def __init__(self, d_sae: int, device: torch.device) -> None:
        def filled(value: float) -> Tensor:
            return torch.full((d_sae,), value, dtype=torch.float64, device=device)

        self.tokens = 0
        self.count, self.mean, self.squares, self.active = (filled(0.0) for _ in range(4))
        self.least, self.greatest = filled(torch.inf), filled(-torch.inf)

    def add(self, values: Tensor, features: Tensor | None) -> None:
        """Count tokens by their values [n, features] of the named features, or of all features."""
        new = float(len(values))
        mean, squares, active, least, greatest = _figures(values)
        at = slice(None) if features is None else features
        before = self.count[at]
        total = before + new
        step = mean - self.mean[at]
        self.tokens += len(values)
        self.squares[at] += squares + step.square() * before * new / total
        self.mean[at] += step * new / total
        self.count[at] = total
        self.active[at] += active
        self.least[at] = torch.minimum(self.least[at], least.double())
        self.greatest[at] = torch.maximum(self.greatest[at], greatest.double())

    def read(self, features: list[int] | None, metric: str | None, k: int) -> list[FeatureCount]:
        """The figures of the named features that were observed, or of all features that were active at least once. The
        features are in the order of their indices. With a metric, only the `k` features with the largest metric are
        read, the largest first and equals by index.

        While the target stays the same, all its features are observed at the same tokens. The metric `count` therefore
        ranks by the number of tokens at which a feature was active.
        """
        index = self.active.nonzero()[:, 0]
        if features is not None:
            index = torch.tensor(sorted(set(features)), dtype=torch.long, device=self.count.device)
            index = index[self.count[index] > 0]
        count = self.count[index]
        active = self.active[index]
        ratio = active / count
        mean, greatest = self.mean[index], self.greatest[index]
        if metric is not None:
            ranked = {"mean": mean, "max": greatest, "active_ratio": ratio, "count": active}[metric]
            best = ranked.sort(descending=True, stable=True).indices[:k]
        else:
            best = torch.arange(len(index), device=index.device)
        std = (self.squares[index] / count).sqrt()
        columns = [mean, std, self.least[index], greatest, ratio]
        figures = torch.stack(columns, dim=1)[best].tolist()
        counted = zip(index[best].tolist(), count[best].long().tolist(), figures, strict=True)
        return [FeatureCount(i, count, *figure) for i, count, figure in counted]


def _figures(values: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Of each feature of values [n, features] in float32: the mean, and the sum of the squares of the differences from
    it, in float64; at how many tokens it is active, its least and its greatest value."""
    is_plain = values.device.type == "cpu" and values.is_contiguous() and values.shape[1] % 16 == 0
    kernels = native.kernels() if is_plain else None
    if kernels is not None:
        return kernels.figures(values)
    # sum differences from the mean in float32: such sums stay exact where the mean is large
    centre = values.mean(0)
    apart = values - centre
    rest = apart.sum(0, dtype=torch.float64) / len(values)
    squares = apart.square_().sum(0, dtype=torch.float64) - rest.square() * len(values)
    # sums of ones are exact in float32, and much faster than sums of truth values
    active = is_active(values, torch.empty_like(values)).sum(0)
    mean = centre.double() + rest
    return mean, squares.clamp_min(0.0), active, values.amin(0), values.amax(0)
