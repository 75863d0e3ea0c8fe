"""Beginnings of prompts that rows take over from rows that ended before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import structlog

from steerserve.worker import memory
from steerserve.worker.batch.prefix import Entry, Prefixes, Signature
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.model.kv import CacheSlot, KvCache
from steerserve.worker.observers.observers import Observers
from steerserve.worker.rows.rows import BatchRow

log = structlog.get_logger(__name__)


class Reuse:
    """Copies kept prefixes into the cache, and keeps the content of rows that end. With `prefixes` of None it does
    nothing."""

    def __init__(
        self, saes: HookedSaes, observers: Observers, cache: KvCache, prefixes: Prefixes | None
    ) -> None:
        self._saes = saes
        self._observers = observers
        self._cache = cache
        self.prefixes = prefixes

    def find(self, row: BatchRow) -> tuple[Entry, int] | None:
        """The kept prefix that the row may begin with, and its length."""
        if self.prefixes is None or not row.may_reuse or not self._saes.may_reuse(row.steering):
            return None
        return self.prefixes.find(self._signature(row, len(row.prompt)), row.prompt)

    def begin(self, row: BatchRow, kept: tuple[Entry, int]) -> None:
        """Copy a kept prefix into the row's slot."""
        entry, length = kept
        with self._spare_memory():
            self._cache.put(cast(CacheSlot, row.slot), entry.held, length)
            row.filled = length
            self._observers.resume(row, length, entry.notes)

    def keep(self, row: BatchRow) -> None:
        """Keep the keys and values of a row that ended, unless the steering changed while it ran."""
        tokens = row.cached
        is_same = row.version == self._saes.version
        if (
            self.prefixes is not None
            and row.may_reuse
            and is_same
            and self.prefixes.may_keep(len(tokens))
        ):
            with self._spare_memory():
                held = self._cache.take(cast(CacheSlot, row.slot), len(tokens))
                signature = self._signature(row, len(tokens))
                self.prefixes.keep(signature, tokens, held, self._observers.notes(row))

    @contextmanager
    def _spare_memory(self) -> Iterator[None]:
        """Guards a copy of a kept prefix: where memory runs out over the copy, all kept prefixes are dropped, and the
        row goes on without one."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if not memory.is_exhausted(error):
                raise
            log.warning(
                "kept_prefixes_dropped", tokens=self.prefixes.tokens if self.prefixes else 0
            )
            if self.prefixes:
                self.prefixes.clear()
            memory.recover(error)

    def _signature(self, row: BatchRow, size: int) -> Signature:
        """How the first `size` positions of the row are steered and read."""
        return Signature(self._saes.signature(row.steering, size), self._observers.mark(row))
