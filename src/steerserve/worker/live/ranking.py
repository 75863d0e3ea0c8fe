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
    return largest_of_each(values[None], count)[0]


def largest_of_each(values: Tensor, count: int) -> list[list[tuple[int, float]]]:
    """`largest` of each row of `values` [rows, n], with a few transfers for all rows."""
    width = values.shape[-1]
    sizes = values.abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    top = sizes.topk(min(count + 1, width))
    places = top.indices[:, :count].sort().values
    if width > count:
        # `topk` does not promise which of several equal values it takes
        least = top.values[:, count - 1]
        tied = (least == top.values[:, count]).nonzero()[:, 0]
        if len(tied):
            places[tied] = _first_of_equals(sizes[tied], least[tied, None], count)
    order = sizes.gather(1, places).sort(descending=True, stable=True).indices
    places = places.gather(1, order)
    found = zip(places.tolist(), values.gather(1, places).tolist(), strict=True)
    return [list(zip(*row, strict=True)) for row in found]


def _first_of_equals(sizes: Tensor, least: Tensor, count: int) -> Tensor:
    """The places [rows, count] of all sizes above the least one and, of those equal to it, of the first ones."""
    above, equal = sizes > least, sizes == least
    left = count - above.sum(-1, keepdim=True)
    taken = above | (equal & (equal.cumsum(-1) <= left))
    return taken.nonzero()[:, 1].reshape(-1, count)
