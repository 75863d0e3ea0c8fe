"""The texts that wait to be embedded, and the passes of an embedding-only checkpoint over them."""

from __future__ import annotations

from collections import Counter

import structlog

from steerserve.worker import memory
from steerserve.worker.batch.apart import each_part
from steerserve.worker.batch.waiting import WaitingRows
from steerserve.worker.model.encoder import Encoder
from steerserve.worker.rows.goals import Ending, embedded
from steerserve.worker.rows.rows import BatchRow, settled

PASS_TOKENS = 2048
"""The most tokens of one pass, padding included; a longer text has a pass to itself."""

log = structlog.get_logger(__name__)


class Passes:
    """The texts that wait to be embedded, and the passes over them. An encoder has this in place of a `Batch`. Clients
    take turns at the places in a pass."""

    def __init__(self, model: Encoder) -> None:
        self._model = model
        self._waiting = WaitingRows()
        # the rows of the pass that runs
        self._rows: list[BatchRow] = []

    @property
    def is_idle(self) -> bool:
        return not self._waiting

    @property
    def rest_seconds(self) -> float:
        """No text rests here: a pass takes the texts of live requests first."""
        return 0.0

    def add(self, rows: list[BatchRow], *, is_seeded: bool = False, client: str = "") -> None:
        for row in rows:
            self._waiting.add([row], client)

    def cancel(self, request: int) -> None:
        self._waiting.cancel(request)

    def fail(self, error: Exception) -> list[Ending]:
        """End every request, after an error of a step that was in no forward pass."""
        rows, self._rows = self._rows + self._waiting.rows, []
        device, why = self._model.device, "a step of the engine failed"
        failed = {row.request: row.failed(error, device, len(rows), why) for row in rows}
        for request in failed:
            self.cancel(request)
        return list(failed.values())

    def step(self) -> list[Ending]:
        """One forward pass over as many texts as fit in it."""
        rows: list[BatchRow] = []
        self._rows = rows
        taken: Counter[str] = Counter()
        width = 0
        while (joining := self._waiting.next(taken)) is not None:
            (row,) = joining.rows
            widest = max(width, len(row.prompt))
            if rows and (len(rows) + 1) * widest > PASS_TOKENS:
                break
            self._waiting.remove_rows(joining)
            rows.append(row)
            taken[row.client] += 1
            width = widest
        outcomes: list[Ending] = []

        def pool(some: list[BatchRow]) -> list[Ending]:
            vectors = self._model.pooled([row.prompt for row in some])
            return [embedded(*each) for each in zip(some, vectors, strict=True)]

        def fail(some: list[BatchRow], error: Exception) -> None:
            log.error("rows_failed", rows=len(some), exc_info=error)
            outcomes.extend(row.failed(error, self._model.device, len(some)) for row in some)
            memory.recover(error)

        for found in each_part(rows, pool, fail):
            outcomes += found
        outcomes, refused = settled(outcomes)
        for request in refused:
            self.cancel(request)
        self._rows = []
        return outcomes
