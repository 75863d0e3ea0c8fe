"""Attribution of a difference of logits to features by gradients: through all layers behind the site, and not along the
direct path only (gradient times activation, Shrikumar et al. 2016, arXiv:1605.01713; integrated gradients, Sundararajan
et al. 2017, arXiv:1703.01365)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor

from steerserve.messages import Attributed, FeatureContribution, Refused
from steerserve.nouns.lens.rules import AttributionMethod
from steerserve.worker.model.unembedding import LogitDifference, Unembedding
from steerserve.worker.rows.goals import NOT_FINITE, StateReading
from steerserve.worker.rows.lens import check_unembedding
from steerserve.worker.rows.rows import BatchRow
from steerserve.worker.rows.tail import Tail, check_stream
from steerserve.worker.sae.canonical import Sae
from steerserve.worker.sae.sites import Site

ROWS_AT_ONCE = 4096
"""The most decoder rows that are widened to float32 at once."""

Parts = Generator[None, None, Attributed | Refused]


class GradientAttribution(StateReading):
    """Attributes a difference of logits after the last token of the row's prompt to the features of `sae` at the
    positions from `first` on.

    The contribution of a feature is a x <d, g>: its activation a, what an activation of 1 adds to the value of the
    site there d, and the gradient g of the difference by this value. With `steps`, g is the mean gradient over so many
    equal steps from the value without any feature to the value itself.

    `sites` has the site of the SAE, the stream after the last layer, and the stream that enters the first layer of
    the tail, where this is another one. `open_tail` makes the tail for this stream.
    """

    needs_logits = True

    def __init__(
        self,
        sites: Sequence[Site],
        sae: Sae,
        difference: LogitDifference,
        top: int,
        first: int,
        method: AttributionMethod,
        steps: int,
        unembedding: Unembedding,
        text_of: Callable[[int], str],
        open_tail: Callable[[Tensor], Tail],
    ) -> None:
        super().__init__(sites)
        self._sae = sae
        self._difference = difference
        self._top = top
        self._first = first
        self._method = method
        self._steps = steps if method == "integrated" else 1
        self._unembedding = unembedding
        self._text_of = text_of
        self._open_tail = open_tail
        self._parts: list[list[Tensor]] = [[] for _ in sites]
        self._last: Tensor | None = None
        self._seen = 0
        self._work: Parts | None = None

    def copied(self, number: int, value: Tensor) -> Callable[[], None]:
        if number == 1:
            return partial(setattr, self, "_last", value[-1:].clone())
        return partial(self._parts[number].append, value.clone())

    def work(self, row: BatchRow) -> Attributed | Refused | None:
        """Raises:
        Refusal: SAE_INCOMPATIBLE as `check_unembedding` and `check_stream`.
        """
        if self._work is None:
            self._work = self._run(row)
        try:
            next(self._work)
        except StopIteration as ended:
            return cast("Attributed | Refused", ended.value)
        return None

    def _run(self, row: BatchRow) -> Parts:
        assert self.logits is not None
        assert self._last is not None
        own = self.logits.float()
        if not bool((own < torch.inf).all()):  # NaN compares false
            return row.refused(*NOT_FINITE)
        check_unembedding(self._unembedding, self._last, own)
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
        error = float((gradient * missing).sum(dtype=torch.float64))
        return self._answer(row, active, contributions, whole - float(ablated[0]), error)

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
        assert self._last is not None
        # the values of the last run are the model's own
        check_stream(tail.behind[-1], self._last[0])
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

    def _answer(
        self,
        row: BatchRow,
        active: list[tuple[Tensor, Tensor]],
        contributions: Tensor,
        effect: float,
        error: float,
    ) -> Attributed:
        assert self.logits is not None
        assert self._last is not None
        places = torch.cat(
            [torch.full((len(one),), self._first + at) for at, (one, _) in enumerate(active)]
        )
        features, held = (torch.cat(part).cpu() for part in zip(*active, strict=True))
        largest = contributions.abs().sort(descending=True, stable=True).indices[: self._top]
        listed = [
            FeatureContribution(
                int(features[i]), float(held[i]), float(contributions[i]), int(places[i])
            )
            for i in largest.tolist()
        ]
        last = row.prompt[-1]
        difference = self._difference
        uncapped = None
        if self._unembedding.softcap is not None:
            uncapped = difference.compute(self._unembedding.uncapped(self._last)[0])
        return Attributed(
            row.request,
            row.choice,
            row.position,
            self._named(last),
            self._named(difference.target),
            None if difference.against is None else self._named(difference.against),
            listed,
            len(features),
            float(contributions.sum(dtype=torch.float64)),
            difference.compute(self.logits.float()),
            uncapped,
            self._method,
            effect,
            error,
        )

    def _named(self, token: int) -> tuple[int, str]:
        return token, self._text_of(token)
