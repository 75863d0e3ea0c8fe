"""The logit lens: the residual stream after a layer, read as the model reads it after the last one (nostalgebraist,
"interpreting GPT: the logit lens", 2020); trained lenses map the stream before that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from steerserve.errors import Refusal
from steerserve.messages import LensLayer, LensRead, LensToken, Refused
from steerserve.worker.model.unembedding import Unembedding
from steerserve.worker.rows.goals import NOT_FINITE, StateReading
from steerserve.worker.rows.lens_files import TrainedLens
from steerserve.worker.rows.rows import BatchRow
from steerserve.worker.sae.sites import Site

STEP_LOGITS = 1 << 22
"""The most logits that one step computes for a lens."""

TOLERANCE = 0.02
"""The largest difference between the model's logits and those of its unembedding, relative to the length of the
logits less their mean. In bfloat16 it is about 0.005."""


class Lens(StateReading):
    """Reads the stream after each of `layers`, as `trained` maps it where there is a trained lens. `sites` has the
    sites of these layers, and then the site of the last layer, at which the unembedding is compared with the model's
    own logits."""

    needs_logits = True

    def __init__(
        self,
        sites: Sequence[Site],
        layers: Sequence[int],
        top: int,
        unembedding: Unembedding,
        text_of: Callable[[int], str],
        trained: TrainedLens | None = None,
    ) -> None:
        super().__init__(sites)
        self._layers = layers
        self._trained = trained
        self._top = top
        self._unembedding = unembedding
        self._text_of = text_of
        self._parts: list[list[Tensor]] = [[] for _ in layers]
        self._last: Tensor | None = None
        self._read: list[list[list[LensToken]]] = []

    def copied(self, number: int, value: Tensor) -> Callable[[], None]:
        if number == len(self._layers):
            return partial(setattr, self, "_last", value[-1:].clone())
        return partial(self._parts[number].append, value.clone())

    def work(self, row: BatchRow) -> LensRead | Refused | None:
        """Read some positions of one layer.

        Raises:
            Refusal: SAE_INCOMPATIBLE as `check_unembedding`, INVALID_LENS as `TrainedLens.translated`.
        """
        if not self._read:
            assert self._last is not None
            assert self.logits is not None
            check_unembedding(self._unembedding, self._last, self.logits)
            self._read.append([])
        number, found = len(self._read) - 1, self._read[-1]
        if len(self._parts[number]) > 1:
            self._parts[number] = [torch.cat(self._parts[number])]
        (stream,) = self._parts[number]
        size = max(1, STEP_LOGITS // self._unembedding.vocabulary)
        some = stream[len(found) : len(found) + size]
        if self._trained is not None:
            some = self._trained.translated(self._layers[number], some)
        logits = self._unembedding.logits(some)
        if not bool((logits < torch.inf).all()):  # NaN compares false
            return row.refused(*NOT_FINITE)
        found.extend(self._listed(logits))
        if len(found) < len(row.prompt):
            return None
        self._parts[number] = []
        if len(self._read) < len(self._layers):
            self._read.append([])
            return None
        tokens = [(token, self._text_of(token)) for token in row.prompt]
        layers = [LensLayer(*read) for read in zip(self._layers, self._read, strict=True)]
        kind = "logit" if self._trained is None else self._trained.kind
        return LensRead(row.request, row.choice, tokens, layers, kind)

    def _listed(self, logits: Tensor) -> list[list[LensToken]]:
        best = logits.softmax(-1).topk(min(self._top, logits.shape[-1]))
        return [
            [
                LensToken(token, self._text_of(token), probability)
                for token, probability in zip(tokens, probabilities, strict=True)
            ]
            for tokens, probabilities in zip(
                best.indices.tolist(), best.values.tolist(), strict=True
            )
        ]


def check_unembedding(unembedding: Unembedding, stream: Tensor, logits: Tensor) -> None:
    """Check that the unembedding makes the model's own logits [vocabulary] of the stream [1, hidden] after the last
    layer.

    Raises:
        Refusal: SAE_INCOMPATIBLE where the architecture does more to the stream, or to the logits, than is known here.
    """
    own = logits.float().to(unembedding.device)
    difference = (unembedding.logits(stream)[0] - own).norm() / (own - own.mean()).norm()
    if difference > TOLERANCE:
        raise Refusal(
            "SAE_INCOMPATIBLE",
            "the logits of this architecture are not its final norm and output embedding over the residual stream: "
            f"they differ by {float(difference):.1%}",
            difference=float(difference),
        )
