"""Sampling with a steered residual stream, and how fluent the samples are.

Steering: after a layer, h' = h + strength * W_dec[feature] at every position, BOS and prompt too. Each row of a batch
has its own vector, so that many features are tried at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM

from tools.demo.language_model import special_ids


@dataclass(frozen=True, slots=True)
class StorySampling:
    """The sampling options with which stories are drawn."""

    temperature: float = 1.0
    top_p: float = 0.95
    max_new_tokens: int = 160

    def as_dict(self) -> dict[str, float]:
        """The fields by name."""
        return asdict(self)


@contextmanager
def steered(model: LlamaForCausalLM, layer: int, vectors: Tensor | None) -> Iterator[None]:
    """Add vectors [rows, d_in] to the output of a layer at every position while the context is open."""
    if vectors is None:
        yield
        return

    def add(_module: object, _inputs: object, output: Tensor | tuple[Tensor, ...]) -> object:
        if isinstance(output, tuple):
            return (output[0] + vectors[:, None, :], *output[1:])
        return output + vectors[:, None, :]

    hook = model.model.layers[layer].register_forward_hook(add)
    try:
        yield
    finally:
        hook.remove()


def _draw(logits: Tensor, sampling: StorySampling, generator: torch.Generator) -> Tensor:
    """Draw one token id per row of logits [rows, vocabulary], by temperature and top-p."""
    shares = torch.softmax(logits / sampling.temperature, dim=-1)
    ordered, places = shares.sort(dim=-1, descending=True)
    ordered = ordered * (ordered.cumsum(-1) - ordered < sampling.top_p)
    drawn = torch.multinomial(ordered, 1, generator=generator)
    return places.gather(-1, drawn)[:, 0]


@torch.no_grad()
def sample(
    model: LlamaForCausalLM,
    prompt: Sequence[int],
    rows: int,
    sampling: StorySampling,
    seed: int,
    layer: int = 0,
    vectors: Tensor | None = None,
) -> list[list[int]]:
    """Draw `rows` continuations of a prompt of token ids, each up to and including EOS."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.tensor([list(prompt)] * rows)
    cache, done, drawn = DynamicCache(), torch.zeros(rows, dtype=torch.bool), []
    eos = special_ids(model)[1]
    with steered(model, layer, vectors):
        for _ in range(sampling.max_new_tokens):
            out = model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
            chosen = _draw(out.logits[:, -1].float(), sampling, generator)
            drawn.append(torch.where(done, eos, chosen))
            done |= chosen == eos
            tokens = chosen[:, None]
            if done.all():
                break
    table = torch.stack(drawn, dim=1).tolist()
    return [row[: row.index(eos) + 1] if eos in row else row for row in table]


@torch.no_grad()
def continuation_loss(
    model: LlamaForCausalLM, prompt: Sequence[int], continuations: Sequence[Sequence[int]]
) -> list[float]:
    """The mean loss of each continuation under the unsteered model, in nats per token."""
    start, losses, eos = len(prompt), [], special_ids(model)[1]
    width = max(map(len, continuations))
    table = torch.tensor([[*prompt, *row, *[eos] * (width - len(row))] for row in continuations])
    for part, rows in zip(table.split(64), torch.arange(len(table)).split(64), strict=True):
        logits = model(part, use_cache=False).logits[:, start - 1 : -1].float()
        nats = torch.nn.functional.cross_entropy(
            logits.transpose(1, 2), part[:, start:], reduction="none"
        )
        for place, row in enumerate(rows.tolist()):
            losses.append(float(nats[place, : len(continuations[row])].mean()))
    return losses
