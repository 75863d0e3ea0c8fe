"""How far one completion is from the model without steering: the divergence of the distributions over the whole
vocabulary at each of its tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from steerserve.errors import Refusal
from steerserve.parts.divergence.form import Diverged, Divergence
from steerserve.parts.row_part import RowFacts, RowPart
from steerserve.worker.rows.distributions import NO_CHANCE

LOGITS_AT_ONCE = 1 << 22
"""The most logits that are widened to float64 at once."""


class DivergenceRow(RowPart):
    """Keeps the logits from which the tokens were drawn, before temperature, penalties and masks, on the host in their
    own dtype. All sums over the vocabulary are in float64."""

    def __init__(self, form: Divergence, _facts: RowFacts) -> None:
        self._form = form
        self._tokens: list[int] = []
        self._logits: list[Tensor] = []
        self._divergences: list[float] = []
        self._likelihoods: list[float] = []
        self._words: list[list[float]] = [[] for _ in form.words]

    @property
    def needs_plain(self) -> bool:
        return bool(self._tokens)

    def draw(self, token: int, logits: Tensor, readings: Sequence[float]) -> None:
        self._tokens.append(token)
        self._logits.append(logits.detach().to("cpu", copy=True))

    def read_plain(self, tokens: Sequence[int], logits: Tensor) -> None:
        size = max(1, LOGITS_AT_ONCE // logits.shape[-1])
        for at in range(0, len(tokens), size):
            self._compare(logits[at : at + size], tokens[at : at + size])

    def _compare(self, logits: Tensor, tokens: Sequence[int]) -> None:
        """Compare the logits [n, vocabulary] of the model without steering with those that are kept."""
        done = len(self._divergences)
        kept = torch.stack(self._logits[done : done + len(tokens)]).to(logits.device)
        steered, plain = kept.double().log_softmax(-1), logits.double().log_softmax(-1)
        chances = steered.exp()
        # a token without a chance adds nothing, also where the other model gives it none
        parts = torch.where(chances > 0, chances * (steered - plain), 0.0)
        self._divergences += parts.sum(-1).tolist()
        chosen = torch.tensor(list(tokens), device=logits.device)[:, None]
        self._likelihoods += plain.gather(1, chosen)[:, 0].tolist()
        for values, words in zip(self._words, self._form.words, strict=True):
            begun = [steered[:, first].logsumexp(-1) for first in words]
            values += torch.stack(begun).mean(0).tolist()

    def chunk(self, *, is_last: bool) -> Diverged | None:
        """Raises:
        Refusal: NON_FINITE_LOGITS where a token has no chance without steering.
        """
        if not is_last:
            return None
        if not all(map(math.isfinite, (*self._divergences, *self._likelihoods))):
            raise Refusal(*NO_CHANCE)
        return Diverged(self._tokens, self._divergences, self._likelihoods, self._words)
