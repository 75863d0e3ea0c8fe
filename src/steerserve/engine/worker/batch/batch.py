"""The running batch: rows join, step together and leave. One row is one choice of one request.

Rows without a seed share one group. The rows of a seeded request are a group of their own with passes of its own,
because the shape of a batch changes the last bits of its logits. The KV memory of all groups together stays within
`kv_tokens`; rows that do not fit wait, and join in the order in which they came.
"""

from __future__ import annotations

from collections import deque

import structlog

from steerserve.engine.worker import memory
from steerserve.engine.worker.attached.hooks import HookedSaes
from steerserve.engine.worker.batch.group import Group
from steerserve.engine.worker.batch.prefix import Prefixes
from steerserve.engine.worker.model.checkpoint import Checkpoint
from steerserve.engine.worker.observing.observers import Observers
from steerserve.engine.worker.rows.rows import BatchRow, Ending, settled

log = structlog.get_logger(__name__)


class Batch:
    """All groups, the rows that wait for room, and the bound on their KV memory."""

    def __init__(
        self,
        model: Checkpoint,
        saes: HookedSaes,
        observers: Observers,
        kv_tokens: int,
        prefix_tokens: int = 0,
    ) -> None:
        self._model = model
        self._saes = saes
        self._observers = observers
        self._kv_tokens = kv_tokens
        self._shared = self._group(Prefixes(prefix_tokens) if prefix_tokens else None)
        self._seeded: dict[int, Group] = {}
        self._waiting: deque[tuple[list[BatchRow], bool]] = deque()

    @property
    def is_idle(self) -> bool:
        return not self._waiting and self._shared.is_empty and not self._seeded

    @property
    def kv_held(self) -> int:
        """The number of tokens of cache that are allocated."""
        return sum(group.reserved for group in self._groups())

    def add(self, rows: list[BatchRow], *, is_seeded: bool) -> None:
        """Add the rows of a request. They join once there is room: seeded rows all at once, other rows one by one."""
        if is_seeded:
            self._waiting.append((rows, True))
        else:
            self._waiting.extend(([row], False) for row in rows)

    def cancel(self, request: int) -> None:
        self._waiting = deque(entry for entry in self._waiting if entry[0][0].request != request)
        self._shared.drop(request)
        self._seeded.pop(request, None)
        self._observers.forget(request)

    def step(self) -> list[Ending]:
        """Advance every group by one step. A request that was refused has no row left in the batch afterwards."""
        outcomes = self._admit()
        outcomes += self._shared.step()
        for request, group in list(self._seeded.items()):
            outcomes += group.step()
            if group.is_empty:
                del self._seeded[request]
        outcomes, refused = settled(outcomes)
        for request in refused:
            self.cancel(request)
        if self._shared.is_empty:
            self._shared.cache.release()
        return outcomes

    def _admit(self) -> list[Ending]:
        """Give rows room in the order in which they came; rows for which the memory cannot be allocated are refused."""
        outcomes: list[Ending] = []
        while self._waiting:
            rows, is_seeded = self._waiting[0]
            group = self._group() if is_seeded else self._shared
            held_elsewhere = sum(g.reserved for g in self._groups() if g is not group)
            budget = self._kv_tokens - held_elsewhere
            if not group.may_join(rows, budget):
                break
            self._waiting.popleft()
            try:
                group.join(rows, budget)
            except (RuntimeError, MemoryError) as error:
                if not memory.is_exhausted(error):
                    raise
                log.warning("cache_not_grown", rows=len(rows))
                outcomes.append(rows[0].failed(error, self._model.device, len(rows)))
                memory.recover(error)
                continue
            if is_seeded:
                self._seeded[rows[0].request] = group
        return outcomes

    def _group(self, prefixes: Prefixes | None = None) -> Group:
        return Group(self._model, self._saes, self._observers, prefixes)

    def _groups(self) -> list[Group]:
        return [self._shared, *self._seeded.values()]
