"""Decides which features are active at a token, and in which order they are listed."""

from __future__ import annotations

import torch
from torch import Tensor


def is_active(values: Tensor, out: Tensor | None = None) -> Tensor:
    """Whether each value is the value of an active feature. Every value but 0 is, because abstopk gives values below 0
    too. The answers are written into `out` where it is there: 1 and 0 where its dtype is a number."""
    return torch.ne(values, 0, out=out)


def is_finite(values: Tensor) -> Tensor:
    """Whether all values of each row of `values` [rows, n] are finite: then the largest and the smallest are."""
    return torch.isfinite(values.amax(-1)) & torch.isfinite(values.amin(-1))


def largest(values: Tensor, count: int) -> list[tuple[int, float]]:
    """Places and values of the `count` largest of `values` [n] by magnitude, the largest first, equals by place."""
    sizes = values.abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    top = sizes.topk(min(count + 1, len(sizes)))
    places = top.indices[:count].sort().values
    if len(sizes) > count and top.values[count - 1] == top.values[count]:
        # `topk` does not promise which of several equal values it takes
        above = (sizes > top.values[count]).nonzero()[:, 0]
        equal = (sizes == top.values[count]).nonzero()[: count - len(above), 0]
        places = torch.cat([above, equal])
    places = places[sizes[places].sort(descending=True, stable=True).indices]
    return list(zip(places.tolist(), values[places].tolist(), strict=True))
