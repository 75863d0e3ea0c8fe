"""What a request asked to see of an SAE: hidden states caught in the hook, encoded after the pass."""

from __future__ import annotations

import structlog
import torch
from torch import Tensor

from steerserve.engine.messages import Reading, Tap
from steerserve.engine.worker.sae.canonical import Sae
from steerserve.rules import activations

log = structlog.get_logger(__name__)
ENCODE_CHUNK = 512
"""Positions encoded at once: their features over the whole width take memory."""


class TapReader:
    """The readings of one row at one attached SAE."""

    def __init__(self, tap: Tap, sae: Sae, prompt_tokens: int) -> None:
        self.key = tap.key
        self.is_before = tap.is_before
        self.sae = sae
        self._tap = tap
        self._prompt_tokens = prompt_tokens
        self._candidates = None if tap.features is None else torch.tensor(tap.features)
        self._span = (0, 0)
        self._start = 0
        self._caught: tuple[int, Tensor] | None = None
        self._is_broken = False
        self._found: list[tuple[int, list[tuple[int, float]]]] = []

    def expect(self, start: int, count: int) -> None:
        """The next pass reads `count` tokens of the row, the first at position `start`."""
        end = start + count
        self._start = start
        self._span = (end, end)
        if not self._is_broken:
            self._span = activations.span(self._tap.positions, self._prompt_tokens, start, end)

    def catch(self, hidden: Tensor) -> None:
        """Keep what is wanted of the row's hidden states [T, d_in], padding behind them left out."""
        low, high = self._span
        if low < high:
            self._caught = low, hidden[low - self._start : high - self._start].detach().clone()

    def settle(self) -> None:
        """After the pass: encode what was caught. `last` waits, because only the last one counts."""
        if self._caught is not None and self._tap.positions != "last":
            self._encode()

    def readings(self, tokens: list[int]) -> list[Reading] | None:
        """Every position read, given the row's tokens so far; None when encoding failed."""
        if self._caught is not None:
            self._encode()
        if self._is_broken:
            return None
        return [Reading(at, tokens[at], features) for at, features in self._found]

    def _encode(self) -> None:
        assert self._caught is not None
        (low, hidden), self._caught = self._caught, None
        try:
            for first in range(0, len(hidden), ENCODE_CHUNK):
                values = self.sae.encode(hidden[first : first + ENCODE_CHUNK]).cpu()
                for i, row in enumerate(values, low + first):
                    self._found.append((i, self._largest(row)))
        except Exception:
            # the row's neighbours in the pass must not end with it
            log.exception("activations_failed")
            self._is_broken = True

    def _largest(self, values: Tensor) -> list[tuple[int, float]]:
        """The largest features of [d_sae], each with its value; those that are 0 only where they were asked for."""
        if self._candidates is not None:
            values = values[self._candidates]
        top = values.topk(min(self._tap.top_k, values.shape[0]))
        found = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        if self._candidates is not None:
            named = self._candidates.tolist()
            return [(named[place], value) for place, value in found]
        return [(index, value) for index, value in found if value != 0.0]
