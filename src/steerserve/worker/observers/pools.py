"""One vector of activations for each prompt of a request: the activations at its positions, pooled."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from steerserve.messages import Embed, Generate, Outcome, Pool, Pooled, Score
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.observers.taps import Readers, RowReader, positions_at_once
from steerserve.worker.rows.rows import BatchRow
from steerserve.worker.sae.canonical import Sae


class PoolReader(RowReader):
    """The pooled activations of one row. `positions` are those that count, in their order."""

    def __init__(self, pool: Pool, sae: Sae, positions: Sequence[int]) -> None:
        super().__init__(sae, is_before=True)
        self._how = pool.how
        self.positions = list(positions[-1:] if pool.how == "last" else positions)
        self._wanted = set(self.positions)
        self._pooled: Tensor | None = None

    def span(self, start: int, end: int) -> tuple[int, int]:
        within = [at for at in self.positions if start <= at < end]
        return (within[0], within[-1] + 1) if within else (end, end)

    def read(self, positions: Sequence[int], rows: Tensor) -> None:
        kept = [place for place, at in enumerate(positions) if at in self._wanted]
        rows = rows[torch.tensor(kept, dtype=torch.long, device=rows.device)]
        for part in rows.split(positions_at_once(self.sae.d_sae, self.sae)):
            values = self.sae.encode(part)
            new = values.amax(0) if self._how == "max" else values.sum(0)
            if self._pooled is None:
                self._pooled = new
            elif self._how == "max":
                self._pooled = torch.maximum(self._pooled, new)
            else:
                self._pooled = self._pooled + new

    def pooled(self) -> Tensor | None:
        """The vector [d_sae] in float32; None where no position counts.

        Raises:
            Refusal: as `finish`.
        """
        self.finish()
        if self._pooled is None or self._how != "mean":
            return self._pooled
        return self._pooled / len(self.positions)


class Pools(Readers[PoolReader]):
    """The readers of all rows whose request asked for a pool. `special` are the tokens that are not text."""

    def __init__(self, special: frozenset[int]) -> None:
        super().__init__()
        self._special = special

    def begin(
        self, command: Generate | Score | Embed, rows: Sequence[BatchRow], saes: HookedSaes
    ) -> None:
        """Raises:
        Refusal: SAE_NOT_ATTACHED; INSUFFICIENT_MEMORY as `HookedSaes.sae`.
        """
        pool = command.pool if isinstance(command, Score) else None
        if pool is None:
            return
        number, sae = saes.find(pool.key).number, saes.sae(pool.key)
        for row in rows:
            positions = [
                at
                for at, token in enumerate(row.prompt)
                if pool.has_special or (at and token not in self._special)
            ]
            self._readers[row.name] = number, PoolReader(pool, sae, positions)

    def end(self, row: BatchRow) -> Sequence[Outcome]:
        """Raises:
        Refusal: as `PoolReader.pooled`.
        """
        if row.name not in self._readers:
            return ()
        _, reader = self._readers.pop(row.name)
        vector = reader.pooled()
        if vector is None:
            return [Pooled(row.request, row.choice, 0, b"", b"")]
        active = vector.nonzero().flatten()
        features, values = active.cpu().numpy().astype("<u4"), vector[active].cpu().numpy()
        positions = len(reader.positions)
        return [Pooled(row.request, row.choice, positions, features.tobytes(), values.tobytes())]
