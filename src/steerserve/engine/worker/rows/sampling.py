"""Samples the next token of each row from its logits: temperature, nucleus, repetition penalty, a generator per row."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

import torch
from torch import Tensor

COLDEST = 1e-4
"""Temperatures below this are greedy, because logits divided by them leave the range of float32."""


@dataclass(slots=True)
class Sampler:
    """How one row samples. `seen` [vocabulary] marks the tokens of its prompt and completion; None without a repetition
    penalty."""

    temperature: float
    top_p: float
    repetition_penalty: float
    generator: torch.Generator
    seen: Tensor | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature < COLDEST or self.top_p == 0.0


def generator(seed: int | None, choice: int) -> torch.Generator:
    """The random generator of one row: seeded by (seed, choice), or by the system where `seed` is None.

    Choice 0 takes the seed itself, so its text is the same whether a request has one choice or more. The tensor library
    keeps 32 bits of a seed, so the seeds of further choices are hashes of 32 bits.
    """
    if seed is None:
        return torch.Generator().manual_seed(int.from_bytes(os.urandom(4), "little"))
    if choice:
        mixed = hashlib.blake2b(f"{seed}/{choice}".encode(), digest_size=4).digest()
        seed = int.from_bytes(mixed, "little")
    return torch.Generator().manual_seed(seed)


def sample(logits: Tensor, choices: list[Sampler]) -> list[int | None]:
    """One token per row.

    The draw from the nucleus (Holtzman et al. 2020, arXiv:1904.09751) is exact and needs no sort. Draw a token from the
    whole distribution. The token lies in the nucleus when the tokens that are more probable hold less than `top_p`
    together. Otherwise the nucleus is among these more probable tokens, so draw again from them.

    Args:
        logits: [rows, vocabulary], any float dtype. Not modified.
        choices: one per row.

    Returns:
        Token ids; None for a row whose logits are NaN or +infinite, or all -infinite.
    """
    logits = logits.float()
    logits = _penalised(logits, choices)
    peak = logits.amax(-1)
    finite = torch.isfinite(peak).tolist()
    tokens: list[int | None] = [
        token if ok else None for token, ok in zip(logits.argmax(-1).tolist(), finite, strict=True)
    ]
    open_rows = [i for i, c in enumerate(choices) if finite[i] and not c.is_greedy]
    if not open_rows:
        return tokens
    temperature = torch.tensor([choices[i].temperature for i in open_rows], device=logits.device)
    scaled = (logits[open_rows] - peak[open_rows, None]) / temperature[:, None]
    weights = scaled.softmax(-1)
    while open_rows:
        drawn, above = _draw(weights, [choices[i].generator for i in open_rows])
        keep: list[int] = []
        for place, (row, token, mass) in enumerate(zip(open_rows, drawn, above, strict=True)):
            tokens[row] = token
            if mass >= choices[row].top_p < 1.0:
                keep.append(place)
        if not keep:
            break
        weights = weights[keep]
        pivot = weights.gather(
            1, torch.tensor([[drawn[place]] for place in keep], device=weights.device)
        )
        weights = torch.where(weights > pivot, weights, 0.0)
        open_rows = [open_rows[place] for place in keep]
    return tokens


def _draw(weights: Tensor, generators: list[torch.Generator]) -> tuple[list[int], list[float]]:
    """Draw a token per row of `weights` [rows, vocabulary]. Returns the tokens, and for each the mass of the more
    probable tokens."""
    mass = weights.cumsum(-1)
    total = mass[:, -1:]
    uniform = torch.tensor(
        [[torch.rand((), generator=g).item()] for g in generators], device=weights.device
    )
    # a draw of exactly 0 must not pick a token of weight 0 at the front
    threshold = (uniform * total).clamp_min(torch.finfo(weights.dtype).tiny)
    drawn = torch.searchsorted(mass, threshold).clamp_max(weights.shape[1] - 1)
    chosen = weights.gather(1, drawn)
    # a sum over a single row is split among the threads, a running sum never: it does not depend on the other rows
    above = torch.where(weights > chosen, weights, 0.0).cumsum(-1)[:, -1]
    return drawn[:, 0].tolist(), above.tolist()


def _penalised(logits: Tensor, choices: list[Sampler]) -> Tensor:
    """The repetition penalty of Keskar et al. 2019 (arXiv:1909.05858): the logits of seen tokens are divided by the
    penalty when positive, and multiplied by it when negative."""
    rows = [i for i, c in enumerate(choices) if c.seen is not None]
    if not rows:
        return logits
    logits = logits.clone()
    for i in rows:
        seen, penalty = choices[i].seen, choices[i].repetition_penalty
        assert seen is not None
        scaled = torch.where(logits[i] > 0, logits[i] / penalty, logits[i] * penalty)
        logits[i] = torch.where(seen, scaled, logits[i])
    return logits
