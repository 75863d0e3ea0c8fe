"""Log-probabilities of tokens in full distributions over the vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from steerserve.messages import Distribution, TokenScore

TextOf = Callable[[int], str]

NO_CHANCE = ("NON_FINITE_LOGITS", "a reported token has a logit of -infinity")


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
