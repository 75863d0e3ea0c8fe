"""Direct attribution of a difference of logits to the features that are active at one token (Elhage et al. 2021, "A
mathematical framework for transformer circuits"; here with the scale of the final norm held as it is)."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from steerserve.messages import Attributed, FeatureContribution, Refused
from steerserve.worker.model.unembedding import LogitDifference, Unembedding
from steerserve.worker.rows.goals import NOT_FINITE, StateReading
from steerserve.worker.rows.lens import check_unembedding
from steerserve.worker.rows.rows import BatchRow
from steerserve.worker.sae.canonical import Sae
from steerserve.worker.sae.sites import Site

FEATURES_AT_ONCE = 4096
"""The most decoder rows that are widened to float32 at once."""


class FeatureAttribution(StateReading, ABC):
    """Attributes a difference of logits after the last token of the row's prompt to features of `sae`. The answer has
    the `top` largest contributions."""

    needs_logits = True

    def __init__(
        self,
        sites: Sequence[Site],
        sae: Sae,
        difference: LogitDifference,
        top: int,
        unembedding: Unembedding,
        text_of: Callable[[int], str],
    ) -> None:
        super().__init__(sites)
        self._sae = sae
        self._difference = difference
        self._top = top
        self._unembedding = unembedding
        self._text_of = text_of
        self._last: dict[int, Tensor] = {}

    def _answer(
        self,
        row: BatchRow,
        stream: Tensor,
        active: tuple[Tensor, Tensor, Tensor],
        contributions: Tensor,
    ) -> Attributed:
        """The answer from the stream behind the last layer [1, hidden], and from the active features, with their
        activations, their positions and their contributions, each [active]."""
        assert self.logits is not None
        features, held, positions = active
        largest = contributions.abs().sort(descending=True, stable=True).indices[: self._top]
        difference, uncapped = self._difference, None
        if self._unembedding.softcap is not None:
            uncapped = difference.compute(self._unembedding.uncapped(stream)[0])
        return Attributed(
            row.request,
            row.choice,
            row.position,
            self._named(row.prompt[-1]),
            self._named(difference.target),
            None if difference.against is None else self._named(difference.against),
            [
                FeatureContribution(
                    int(features[i]), float(held[i]), float(contributions[i]), int(positions[i])
                )
                for i in largest.tolist()
            ],
            len(features),
            float(contributions.sum(dtype=torch.float64)),
            difference.compute(self.logits.float()),
            uncapped,
        )

    def _named(self, token: int) -> tuple[int, str]:
        return token, self._text_of(token)


class Attribution(FeatureAttribution):
    """Attributes a difference of logits after the last token of the row's prompt, along the direct path.

    The contribution of a feature is a x <n(d), w> x s: its activation a, its decoder row d as the SAE adds it to the
    stream at this token, n the final norm with the scale of this token and without its bias, w the row of the output
    embedding of the target less that of the other token (or less the mean row), and s the scale of the logits. The
    softcap of the logits is left out.

    `sites` has the site of the SAE, and the stream after the last layer. `sae` has its encoder on the device of its
    site.
    """

    def copied(self, number: int, value: Tensor) -> Callable[[], None]:
        return partial(self._last.__setitem__, number, value[-1:].clone())

    def work(self, row: BatchRow) -> Attributed | Refused | None:
        """Raises:
        Refusal: SAE_INCOMPATIBLE as `check_unembedding`.
        """
        assert self.logits is not None
        value, stream = self._last[0], self._last[1]
        own = self.logits.float()
        if not bool((own < torch.inf).all()):  # NaN compares false
            return row.refused(*NOT_FINITE)
        check_unembedding(self._unembedding, stream, own)
        activations = self._sae.encode(value)[0]
        active = activations.nonzero()[:, 0]
        held = activations[active].cpu()
        contributions = self._contributions(value, stream, active) * held
        places = torch.full((len(active),), row.position)
        return self._answer(row, stream, (active, held, places), contributions)

    def _contributions(self, value: Tensor, stream: Tensor, active: Tensor) -> Tensor:
        """What an activation of 1 of each active feature adds to the difference, float32 [active] on the host."""
        model = self._unembedding
        target, against = self._difference.target, self._difference.against
        other = model.mean_row if against is None else model.row(against)
        read = model.pushed(model.row(target) - other) * model.factor(stream)[0]
        read = read.cpu() * (model.scale * self._sae.row_scale(value).cpu().flatten())
        parts = [self._sae.written(part).cpu() @ read for part in active.split(FEATURES_AT_ONCE)]
        return torch.cat(parts) if parts else torch.zeros(0)
