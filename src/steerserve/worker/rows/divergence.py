"""How far a completion is from the model without steering: the divergence of the distributions over the whole
vocabulary at each of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from steerserve.messages import Divergence

LOGITS_AT_ONCE = 1 << 22
"""The most logits that are widened to float64 at once."""


@dataclass(slots=True)
class Diverging:
    """The tokens that a row has written, and the logits from which they were drawn, before temperature, penalties and
    masks; these are kept on the host in their own dtype. All sums over the vocabulary are in float64."""

    wanted: Divergence
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    divergences: list[float] = field(default_factory=list)
    likelihoods: list[float] = field(default_factory=list)
    words: list[list[float]] = field(init=False)
    _logits: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.words = [[] for _ in self.wanted.words]

    @property
    def needs_plain(self) -> bool:
        """Whether the model has to read the tokens again without steering."""
        return bool(self.tokens)

    def take(self, token: int, logits: Tensor) -> None:
        """The token was drawn from the logits [vocabulary]."""
        self.tokens.append(token)
        self._logits.append(logits.detach().to("cpu", copy=True))

    def read_plain(self, logits: Tensor, tokens: Sequence[int]) -> None:
        """The logits [n, vocabulary] of the model without steering in the place of the next `tokens`."""
        size = max(1, LOGITS_AT_ONCE // logits.shape[-1])
        for at in range(0, len(tokens), size):
            self._compare(logits[at : at + size], tokens[at : at + size])

    def _compare(self, logits: Tensor, tokens: Sequence[int]) -> None:
        done = len(self.divergences)
        kept = torch.stack(self._logits[done : done + len(tokens)]).to(logits.device)
        steered, plain = kept.double().log_softmax(-1), logits.double().log_softmax(-1)
        chances = steered.exp()
        # a token without a chance adds nothing, also where the other model gives it none
        parts = torch.where(chances > 0, chances * (steered - plain), 0.0)
        self.divergences += parts.sum(-1).tolist()
        chosen = torch.tensor(list(tokens), device=logits.device)[:, None]
        self.likelihoods += plain.gather(1, chosen)[:, 0].tolist()
        for values, words in zip(self.words, self.wanted.words, strict=True):
            begun = [steered[:, first].logsumexp(-1) for first in words]
            values += torch.stack(begun).mean(0).tolist()
