"""What a request asked to see of an SAE: the site's values caught in the hook, encoded after the pass."""

from __future__ import annotations

import structlog
import torch
from torch import Tensor

from steerserve.engine.messages import Reading, Tap
from steerserve.engine.worker.sae.canonical import Sae
from steerserve.rules import activations

log = structlog.get_logger(__name__)
ENCODE_VALUES = 1 << 24
"""Most values encoded at once, positions x features: they take memory."""

ENCODE_POSITIONS = 64
"""Positions that wait before they are encoded: one reading of the encoder's weights then serves them all."""


class TapReader:
    """The readings of one row at one attached SAE."""

    def __init__(self, tap: Tap, sae: Sae, prompt_tokens: int) -> None:
        self.key = tap.key
        self.is_before = tap.is_before
        self.sae = sae
        self._tap = tap
        self._prompt_tokens = prompt_tokens
        self._candidates = None
        if tap.features is not None:
            self._candidates = torch.tensor(tap.features, device=sae.W_dec.device)
        self._span = (0, 0)
        self._start = 0
        self._caught: list[tuple[int, Tensor]] = []
        self._is_broken = False
        self._found: list[tuple[int, list[tuple[int, float]]]] = []

    def expect(self, start: int, count: int) -> None:
        """The next pass reads `count` tokens of the row, the first at position `start`."""
        end = start + count
        self._start = start
        self._span = (end, end)
        if not self._is_broken:
            self._span = activations.span(self._tap.positions, self._prompt_tokens, start, end)

    def catch(self, value: Tensor) -> None:
        """Keep what is wanted of the row's values [T, d_in], padding behind them left out."""
        low, high = self._span
        if low >= high:
            return
        if self._tap.positions == "last":
            self._caught.clear()
        self._caught.append((low, value[low - self._start : high - self._start].detach().clone()))

    def settle(self) -> None:
        """After the pass: encode what was caught once it is worth a reading of the weights."""
        if sum(len(rows) for _, rows in self._caught) >= ENCODE_POSITIONS:
            self._encode()

    def readings(self, tokens: list[int]) -> list[Reading] | None:
        """Every position read, given the row's tokens so far; None when encoding failed."""
        if self._caught:
            self._encode()
        if self._is_broken:
            return None
        return [Reading(at, tokens[at], features) for at, features in self._found]

    def _encode(self) -> None:
        caught, self._caught = self._caught, []
        positions = [low + i for low, rows in caught for i in range(len(rows))]
        size = self.sae.d_sae if self._candidates is None else len(self._candidates)
        step = max(1, ENCODE_VALUES // size)
        try:
            rows = torch.cat([rows for _, rows in caught])
            for first in range(0, len(rows), step):
                values = self._values(rows[first : first + step])
                for i, row in enumerate(values.cpu(), first):
                    self._found.append((positions[i], self._largest(row)))
        except Exception:
            # the row's neighbours in the pass must not end with it
            log.exception("activations_failed")
            self._is_broken = True

    def _values(self, rows: Tensor) -> Tensor:
        """Features [n, candidates or d_sae] of values [n, d_in]."""
        if self._candidates is None:
            return self.sae.encode(rows)
        return self.sae.encode_columns(rows, self._candidates)

    def _largest(self, values: Tensor) -> list[tuple[int, float]]:
        """The largest features of one position, each with its value; those that are 0 only where they were asked for."""
        top = values.topk(min(self._tap.top_k, values.shape[0]))
        found = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        if self._tap.features is not None:
            return [(self._tap.features[place], value) for place, value in found]
        return [(index, value) for index, value in found if value != 0.0]
