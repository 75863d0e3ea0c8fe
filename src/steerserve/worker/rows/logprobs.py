"""Log-probabilities of tokens in full distributions over the vocabulary, and those of the tokens that a row writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from steerserve.messages import Distribution, Logprobs, TokenScore, WrittenToken

TextOf = Callable[[int], str]


def distributions(
    logits: Tensor, tokens: Sequence[int], top: int, text_of: TextOf
) -> Iterator[Distribution]:
    """For each row of the logits [n, vocabulary], the log-probability of its token, and the `top` most probable tokens,
    most probable first."""
    logprobs = logits.float().log_softmax(-1)
    wanted = torch.tensor(list(tokens), device=logits.device)[:, None]
    chosen = logprobs.gather(1, wanted)[:, 0].tolist()
    largest = logprobs.topk(min(top, logprobs.shape[-1]))
    listed = zip(largest.indices.tolist(), largest.values.tolist(), strict=True)
    for logprob, (places, values) in zip(chosen, listed, strict=True):
        scores = [
            TokenScore(place, text_of(place), value)
            for place, value in zip(places, values, strict=True)
        ]
        yield Distribution(logprob, scores)


@dataclass(slots=True)
class Written:
    """The tokens that a row has written, each with its log-probability. `steered` has those under the logits from which
    the tokens were drawn, before temperature, penalties and masks; `plain` those of the model without steering, which
    reads the same tokens once the row has ended."""

    wanted: Logprobs
    text_of: TextOf
    tokens: list[int] = field(default_factory=list)
    steered: list[Distribution] = field(default_factory=list)
    plain: list[Distribution] = field(default_factory=list)

    @property
    def needs_plain(self) -> bool:
        """Whether the model has to read the tokens again without steering."""
        return self.wanted.has_plain and bool(self.tokens)

    def take(self, token: int, logits: Tensor) -> None:
        """The token was drawn from the logits [vocabulary]."""
        self.tokens.append(token)
        if self.wanted.has_steered:
            self.steered += distributions(logits[None], [token], self.wanted.top, self.text_of)

    def read_plain(self, logits: Tensor, tokens: Sequence[int]) -> None:
        """The logits [n, vocabulary] of the model without steering in the place of the next `tokens`."""
        self.plain += distributions(logits, tokens, self.wanted.top, self.text_of)

    def told(self) -> list[WrittenToken]:
        """The tokens as the answer has them."""
        return [
            WrittenToken(
                token,
                self.text_of(token),
                self.steered[at] if self.wanted.has_steered else None,
                self.plain[at] if self.wanted.has_plain else None,
            )
            for at, token in enumerate(self.tokens)
        ]
