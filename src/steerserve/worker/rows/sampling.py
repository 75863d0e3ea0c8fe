"""Samples the next token of each row from its logits: temperature, nucleus, repetition penalty, a generator per row."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from steerserve.worker.model import native

COLDEST = 1e-4
"""Temperatures below this are greedy, because logits divided by them leave the range of float32."""
TINY = torch.finfo(torch.float32).tiny
BLOCK = 512
"""Logits in a block, of which first only the largest is found."""
NEAR = 1e-3
"""A sum of probabilities in float32 is off by much less, in whatever order they are added."""
AHEAD = 16
"""Random numbers that are made together: a call of the generator takes as long for one."""


@dataclass(slots=True)
class Sampler:
    """How one row samples. `seen` [vocabulary] marks the tokens of its prompt and completion; None without a repetition
    penalty."""

    temperature: float
    top_p: float
    repetition_penalty: float
    generator: torch.Generator
    seen: Tensor | None = None
    _ahead: list[float] = field(default_factory=list, init=False, repr=False)
    _drawn: list[float] = field(default_factory=list, init=False, repr=False)

    @property
    def is_greedy(self) -> bool:
        return self.temperature < COLDEST or self.top_p == 0.0

    def uniform(self) -> float:
        """The next random number of the generator, at least 0 and below 1, in float32."""
        if not self._ahead:
            self._ahead = torch.rand(AHEAD, generator=self.generator).tolist()[::-1]
        self._drawn.append(self._ahead.pop())
        return self._drawn[-1]

    def begin_draw(self) -> None:
        """A token is about to be drawn."""
        self._drawn.clear()

    def undo(self) -> None:
        """No token was drawn: the random numbers since `begin_draw` come again."""
        self._ahead += self._drawn[::-1]
        self._drawn.clear()


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

    Args:
        logits: [rows, vocabulary], any float dtype. Not modified.
        choices: one per row.

    Returns:
        Token ids; None for a row whose logits are NaN or +infinite, or all -infinite.
    """
    logits = _penalised(logits, choices)
    kernels = native.kernels() if logits.device.type == "cpu" else None
    if kernels is not None and kernels.may_draw(logits):
        return _compiled(kernels, logits, choices)
    logits = logits.float()
    peak = logits.amax(-1, keepdim=True)
    tokens = [0] * len(choices)
    greedy = [i for i, choice in enumerate(choices) if choice.is_greedy]
    if greedy:
        largest = _largest(_of(logits, greedy), _of(peak, greedy)).tolist()
        for row, token in zip(greedy, largest, strict=True):
            tokens[row] = token
    drawing = [i for i, choice in enumerate(choices) if not choice.is_greedy]
    if drawing:
        chosen = [choices[i] for i in drawing]
        temperature = torch.tensor([[choice.temperature] for choice in chosen])
        scaled = _of(logits, drawing) - _of(peak, drawing)
        weights = scaled.div_(temperature.to(logits.device)).softmax(-1)
        for row, token in zip(drawing, _drawn(weights, chosen), strict=True):
            tokens[row] = token
    finite = torch.isfinite(peak[:, 0]).tolist()
    return [token if ok else None for token, ok in zip(tokens, finite, strict=True)]


def _compiled(
    kernels: native.Kernels, logits: Tensor, choices: Sequence[Sampler]
) -> list[int | None]:
    """The same tokens as those of `sample` without compiled functions, which take a quarter of the time."""
    temperatures = [0.0 if choice.is_greedy else choice.temperature for choice in choices]
    peaks, tokens, scaled = kernels.peaks(logits, temperatures)
    drawing = [row for row, temperature in enumerate(temperatures) if temperature]
    if drawing:
        draws = [
            native.Draw(limit=choices[row].top_p, row=place, floor=-1.0)
            for place, row in enumerate(drawing)
        ]
        weights = scaled.softmax(-1)
        while draws:
            for draw in draws:
                draw.uniform = choices[drawing[draw.row]].uniform()
            draws = kernels.draw(weights, draws)
            for draw in draws:
                tokens[drawing[draw.row]] = draw.token
            draws = [draw for draw in draws if draw.is_outside]
    finite = map(math.isfinite, peaks)
    return [token if ok else None for token, ok in zip(tokens, finite, strict=True)]


def _drawn(weights: Tensor, choices: Sequence[Sampler]) -> list[int]:
    """A token from the nucleus of each row of `weights` [rows, vocabulary].

    The draw from the nucleus (Holtzman et al. 2020, arXiv:1904.09751) is exact and needs no sort. Draw a token from the
    whole distribution. The token lies in the nucleus when the tokens that are more probable hold less than `top_p`
    together. Otherwise the nucleus is among these more probable tokens, so draw again from them.
    """
    tokens = [0] * len(choices)
    rows = list(range(len(choices)))
    # a running sum over a row never depends on the other rows; the plain sum over a single row is split among threads
    mass = weights.cumsum(-1)
    while True:
        uniform = torch.tensor([[choices[row].uniform()] for row in rows])
        # a draw of exactly 0 must not pick a token of weight 0 at the front
        threshold = uniform.to(weights.device).mul_(mass[:, -1:]).clamp_min_(TINY)
        place = torch.searchsorted(mass, threshold).clamp_max_(weights.shape[1] - 1)
        for row, token in zip(rows, place[:, 0].tolist(), strict=True):
            tokens[row] = token
        cut = [at for at, row in enumerate(rows) if choices[row].top_p < 1.0]
        if not cut:
            return tokens
        above = _above(_of(weights, cut), _of(place, cut))
        outside, mass = _outside(above, [choices[rows[at]].top_p for at in cut])
        if not outside:
            return tokens
        rows = [rows[cut[at]] for at in outside]
        weights = _of(above, outside)


def _outside(above: Tensor, limits: Sequence[float]) -> tuple[list[int], Tensor]:
    """The places of the rows of `above` [rows, vocabulary] that hold their limit or more, and their running sums."""
    # plain sums are faster, and settle all rows that are not close to their limits
    sums = above.sum(-1).tolist()
    close = [at for at, limit in enumerate(limits) if not sums[at] < limit - NEAR]
    mass = _of(above, close).cumsum(-1)
    held = mass[:, -1].tolist()
    outside = [at for at in range(len(close)) if held[at] >= limits[close[at]]]
    return [close[at] for at in outside], _of(mass, outside)


def _largest(logits: Tensor, peak: Tensor) -> Tensor:
    """The first token [rows] with the largest of the row's logits [rows, vocabulary], which is `peak` [rows, 1].

    Largest values of blocks are found at the speed of the memory, and places of values are not. So the token is
    searched in the first block that has the peak.
    """
    size = logits.shape[1]
    whole = size - size % BLOCK
    tops = logits[:, :whole].unflatten(1, (-1, BLOCK)).amax(-1)
    # where no whole block has the peak, the rest of the vocabulary has it
    has_peak = torch.nn.functional.pad((tops == peak).to(torch.uint8), (0, 1), value=1)
    first = has_peak.argmax(-1, keepdim=True) * BLOCK
    places = (first + torch.arange(BLOCK, device=logits.device)).clamp_max_(size - 1)
    return places.gather(1, logits.gather(1, places).argmax(-1, keepdim=True))[:, 0]


def _above(weights: Tensor, tokens: Tensor) -> Tensor:
    """The weights [rows, vocabulary] that are larger than the weight of the row's token (`tokens` [rows, 1]), and 0 for
    all others. A product takes a tenth of the time of `torch.where` on a processor."""
    larger = torch.gt(weights, weights.gather(1, tokens), out=torch.empty_like(weights))
    return larger.mul_(weights)


def _of(values: Tensor, rows: Sequence[int]) -> Tensor:
    """These rows of `values`, which are distinct and in order; `values` itself where these are all rows."""
    return values if len(rows) == len(values) else values[list(rows)]


def _penalised(logits: Tensor, choices: list[Sampler]) -> Tensor:
    """The repetition penalty of Keskar et al. 2019 (arXiv:1909.05858): the logits of seen tokens are divided by the
    penalty when positive, and multiplied by it when negative."""
    rows = [i for i, c in enumerate(choices) if c.seen is not None]
    if not rows:
        return logits
    logits = logits.float() if logits.dtype != torch.float32 else logits.clone()
    for i in rows:
        seen, penalty = choices[i].seen, choices[i].repetition_penalty
        assert seen is not None
        scaled = torch.where(logits[i] > 0, logits[i] / penalty, logits[i] * penalty)
        logits[i] = torch.where(seen, scaled, logits[i])
    return logits
