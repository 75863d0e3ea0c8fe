"""One vector of activations of one prompt: the activations at its positions, pooled."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from steerserve.parts.encoded import EncodedPart, positions_at_once
from steerserve.parts.pool.form import Pool, Pooled
from steerserve.parts.row_part import Read, RowFacts


class PoolRow(EncodedPart):
    """The pooled activations of one row."""

    def __init__(self, pool: Pool, facts: RowFacts) -> None:
        """Raises:
        Refusal: SAE_NOT_ATTACHED, INSUFFICIENT_MEMORY.
        """
        super().__init__(pool.key, facts, is_before=True)
        counted = [
            at
            for at, token in enumerate(facts.prompt)
            if pool.has_special or (at and token not in facts.special)
        ]
        self._how = pool.how
        self._positions = counted[-1:] if pool.how == "last" else counted
        self._wanted = set(self._positions)
        self._pooled: Tensor | None = None

    def span(self, read: Read, start: int, end: int) -> tuple[int, int]:
        within = [at for at in self._positions if start <= at < end]
        return (within[0], within[-1] + 1) if within else (end, end)

    def encode(self, positions: Sequence[int], values: Tensor) -> None:
        kept = [place for place, at in enumerate(positions) if at in self._wanted]
        values = values[torch.tensor(kept, dtype=torch.long, device=values.device)]
        for part in values.split(positions_at_once(self.sae.d_sae, self.sae)):
            encoded = self.sae.encode(part)
            new = encoded.amax(0) if self._how == "max" else encoded.sum(0)
            if self._pooled is None:
                self._pooled = new
            elif self._how == "max":
                self._pooled = torch.maximum(self._pooled, new)
            else:
                self._pooled = self._pooled + new

    def chunk(self, *, is_last: bool) -> Pooled:
        """The vector; empty where no position counts."""
        self.encode_rest()
        vector = self._pooled
        if vector is None:
            return Pooled(0, b"", b"")
        if self._how == "mean":
            vector = vector / len(self._positions)
        active = vector.nonzero().flatten()
        features, values = active.cpu().numpy().astype("<u4"), vector[active].cpu().numpy()
        return Pooled(len(self._positions), features.tobytes(), values.tobytes())
