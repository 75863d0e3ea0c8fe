"""How far one completion is from the model without steering: the divergence of the distributions over the whole
vocabulary at each of its tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from steerserve.errors import Refusal
from steerserve.parts.divergence.form import Diverged, Divergence
from steerserve.parts.row_part import Read, RowFacts, RowPart, SiteRead
from steerserve.worker.rows.distributions import NO_CHANCE

LOGITS_AT_ONCE = 1 << 22
"""The most logits that are widened to float64 at once."""


class DivergenceRow(RowPart):
    """Keeps the logits from which the tokens were drawn, before temperature, penalties and masks, on the host in their
    own dtype. All sums over the vocabulary are in float64."""

    def __init__(self, form: Divergence, facts: RowFacts) -> None:
        self._form = form
        if form.sites:
            self.plain_part = self._plain = _PlainStates(facts.sites(form.sites, True), facts)
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
        states = self._plain.means() if self._form.sites else []
        return Diverged(self._tokens, self._divergences, self._likelihoods, self._words, states)


class _PlainStates(RowPart):
    """Sums the values of sites at the tokens that a row has written, in the row that reads them again. No kept
    beginning stands for these tokens."""

    def __init__(self, read: SiteRead, facts: RowFacts) -> None:
        self.reads = (read,)
        self._facts = facts
        self._sums: list[Tensor] = []

    def span(self, read: Read, start: int, end: int) -> tuple[int, int]:
        return max(start, len(self._facts.prompt)), end

    def read_values(self, read: Read, values: Sequence[Tensor], first: int) -> None:
        begin = first - len(self._facts.prompt)
        end = begin + len(values[0])
        wanted = [at - begin for at in self._counted() if begin <= at < end]
        if wanted:
            parts = [value[wanted].float().sum(0).cpu() for value in values]
            before = self._sums or [torch.zeros_like(part) for part in parts]
            self._sums = [a + b for a, b in zip(before, parts, strict=True)]

    def means(self) -> list[bytes]:
        """The mean of each site [width], float32, little-endian.

        Raises:
            Refusal: NON_FINITE_LOGITS.
        """
        count = len(self._counted())
        means = [total / count for total in self._sums]
        if not all(bool(mean.isfinite().all()) for mean in means):
            raise Refusal("NON_FINITE_LOGITS", "the model produced NaN or infinite states")
        return [mean.numpy().astype("<f4").tobytes() for mean in means]

    def _counted(self) -> list[int]:
        """The numbers of the written tokens that count."""
        out = self._facts.out
        text = [at for at, token in enumerate(out) if token not in self._facts.special]
        return text or list(range(len(out)))
