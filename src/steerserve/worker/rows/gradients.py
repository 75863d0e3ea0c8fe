"""Attribution of a difference of logits to features by gradients: through all layers behind the site, and not along the
direct path only (gradient times activation, Shrikumar et al. 2016, arXiv:1605.01713; integrated gradients, Sundararajan
et al. 2017, arXiv:1703.01365)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial

import torch
from msgspec import structs
from torch import Tensor

from steerserve.messages import Attributed, Refused
from steerserve.nouns.lens.rules import AttributionMethod
from steerserve.worker.model.unembedding import LogitDifference, Unembedding
from steerserve.worker.rows.attribution import FeatureAttribution
from steerserve.worker.rows.goals import NOT_FINITE, PartedReading
from steerserve.worker.rows.lens import check_unembedding
from steerserve.worker.rows.rows import BatchRow
from steerserve.worker.rows.tail import Tail, check_stream
from steerserve.worker.sae.canonical import Sae
from steerserve.worker.sae.sites import Site

ROWS_AT_ONCE = 4096
"""The most decoder rows that are widened to float32 at once."""


class GradientAttribution(FeatureAttribution, PartedReading):
    """Attributes a difference of logits after the last token of the row's prompt to the features of `sae` at the
    positions from `first` on.

    The contribution of a feature is a x <d, g>: its activation a, what an activation of 1 adds to the value of the
    site there d, and the gradient g of the difference by this value. With `steps`, g is the mean gradient over so many
    equal steps from the value without any feature to the value itself.

    `sites` has the site of the SAE, the stream after the last layer, and the stream that enters the first layer of
    the tail, where this is another one. `open_tail` makes the tail for this stream.
    """

    def __init__(
        self,
        sites: Sequence[Site],
        sae: Sae,
        difference: LogitDifference,
        top: int,
        unembedding: Unembedding,
        text_of: Callable[[int], str],
        *,
        first: int,
        method: AttributionMethod,
        steps: int,
        open_tail: Callable[[Tensor], Tail],
    ) -> None:
        super().__init__(sites, sae, difference, top, unembedding, text_of)
        self._first = first
        self._method = method
        self._steps = steps
        self._open_tail = open_tail
        self._parts: list[list[Tensor]] = [[] for _ in sites]

    def copied(self, number: int, value: Tensor) -> Callable[[], None]:
        if number == 1:
            return partial(self._last.__setitem__, number, value[-1:].clone())
        return partial(self._parts[number].append, value.clone())

    def work_in_parts(self, row: BatchRow) -> Generator[None, None, Attributed | Refused]:
        """Raises:
        Refusal: SAE_INCOMPATIBLE as `check_unembedding` and `check_stream`.
        """
        assert self.logits is not None
        stream, own = self._last[1], self.logits.float()
        if not bool((own < torch.inf).all()):  # NaN compares false
            return row.refused(*NOT_FINITE)
        check_unembedding(self._unembedding, stream, own)
        read = torch.cat(self._parts[0])
        entering = torch.cat(self._parts[2]) if len(self._parts) > 2 else read
        self._parts = []
        values = read[self._first :].float()
        active, written = yield from self._encoded(values)
        tail = self._open_tail(entering.float())
        yield from tail.prepare()
        whole, gradient = yield from self._gradient(tail, values, written)
        ablated, _ = yield from tail.run(
            (values - written)[None], self._difference, has_gradient=False
        )
        contributions = yield from self._contributions(values, active, gradient)
        if not bool(torch.isfinite(contributions).all()):
            return row.refused(*NOT_FINITE)
        missing = values - written - self._sae.without_features(values)
        places = [torch.full((len(one),), self._first + at) for at, (one, _) in enumerate(active)]
        features, held = (torch.cat(part).cpu() for part in zip(*active, strict=True))
        answer = self._answer(row, stream, (features, held, torch.cat(places)), contributions)
        return structs.replace(
            answer,
            method=self._method,
            effect=whole - float(ablated[0]),
            error=float((gradient * missing).sum(dtype=torch.float64)),
        )

    def _encoded(
        self, values: Tensor
    ) -> Generator[None, None, tuple[list[tuple[Tensor, Tensor]], Tensor]]:
        """The active features of each position with their activations, and what all of them write [T, width]."""
        active, written = [], []
        for value in values:
            activations = self._sae.encode(value[None])[0]
            features = activations.nonzero()[:, 0]
            held = activations[features]
            total = torch.zeros_like(value)
            scale = self._sae.row_scale(value[None]).flatten()
            for some, numbers in zip(
                features.split(ROWS_AT_ONCE), held.split(ROWS_AT_ONCE), strict=True
            ):
                rows = self._sae.written(some).to(value.device)
                total = total + numbers @ rows * scale
                yield
            active.append((features, held))
            written.append(total)
        return active, torch.stack(written)

    def _gradient(
        self, tail: Tail, values: Tensor, written: Tensor
    ) -> Generator[None, None, tuple[float, Tensor]]:
        """The difference of the run itself, and the mean gradient [T, width]."""
        total, whole, at_once = torch.zeros_like(values), 0.0, tail.runs()
        steps = list(range(1, self._steps + 1))
        for first in range(0, len(steps), at_once):
            shares = torch.tensor(steps[first : first + at_once], device=values.device)
            left = (1 - shares / self._steps)[:, None, None]
            found, gradient = yield from tail.run(
                values - left * written, self._difference, has_gradient=True
            )
            assert gradient is not None
            total = total + gradient.sum(0)
            whole = float(found[-1])
        # the values of the last run are the model's own
        check_stream(tail.behind[-1], self._last[1][0])
        return whole, total / self._steps

    def _contributions(
        self, values: Tensor, active: list[tuple[Tensor, Tensor]], gradient: Tensor
    ) -> Generator[None, None, Tensor]:
        """What the active features of all positions add, float32 on the host."""
        parts = [torch.zeros(0)]
        for value, (features, held), slope in zip(values, active, gradient, strict=True):
            scale = self._sae.row_scale(value[None]).flatten()
            for some, numbers in zip(
                features.split(ROWS_AT_ONCE), held.split(ROWS_AT_ONCE), strict=True
            ):
                rows = self._sae.written(some).to(value.device)
                parts.append(((rows @ slope) * numbers * scale).cpu())
                yield
        return torch.cat(parts)
