"""Beginnings of prompts that rows take over from other rows.

A row that begins like another one, whose prompt is being read, waits until the other has read what both begin with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import numpy as np
import structlog

from steerserve.parts.row_part import RowPart
from steerserve.rules.inference import stepping
from steerserve.worker import memory
from steerserve.worker.batch import prefix
from steerserve.worker.batch.prefix import Beginning, Prefixes, Signature, Text
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.model.kv import CacheSlot, Held, KvCache
from steerserve.worker.rows.rows import BatchRow

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Sharing:
    """What a row has to do with other rows. `text` is its prompt but for the last token, whose logits are needed; it
    was made at `version` of the steering. `found` was found at `changes` of the kept beginnings. The row waits until
    `leader` has read `shared` tokens. The keys and values of its first `exact` tokens are exact."""

    text: Text
    version: int
    changes: int = -1
    found: Beginning | None = None
    leader: BatchRow | None = None
    shared: int = 0
    exact: float = math.inf


class Reuse:
    """Copies kept beginnings into the cache, and keeps the content of rows. With `prefixes` of None it does nothing.
    `block` is the number of tokens of which rows read a multiple at once. `is_exact` says that a prompt which is read
    in parts beside others has the bits of one that is read alone at once."""

    def __init__(
        self,
        saes: HookedSaes,
        cache: KvCache,
        prefixes: Prefixes | None,
        token_bytes: int = 0,
        *,
        block: int,
        is_exact: bool = False,
    ) -> None:
        self._block = block
        self._saes = saes
        self._cache = cache
        self._token_bytes = token_bytes
        self._is_exact = is_exact
        self._least_shared = max(prefix.LEAST_EXACT, block) if is_exact else prefix.LEAST
        self._rows: dict[BatchRow, Sharing] = {}
        self.prefixes = prefixes

    def join(self, row: BatchRow) -> None:
        """The row waits for its first pass."""
        if self.prefixes is None or not row.may_reuse or (row.needs_exact and not self._is_exact):
            return
        self._rows[row] = Sharing(self._begun(row), self._saes.version)
        self._follow(row)

    def forget(self, row: BatchRow) -> None:
        """The row has left. The rows that wait for it wait for another one, or for none."""
        if self._rows.pop(row, None) is None:
            return
        for other, its in self._rows.items():
            if its.leader is row:
                its.leader, its.shared = None, 0
                if other.slot is None:
                    self._follow(other)

    def must_wait(self, row: BatchRow) -> bool:
        """Whether another row reads a beginning of this row's prompt now, or will: a block of tokens or more, and not
        less than ALIKE, that this row would read itself."""
        its = self._rows.get(row)
        if its is None or its.leader is None or its.leader.filled >= its.shared:
            return False
        found = self._find(row, its)
        ahead = its.shared - (found.tokens if found else 0)
        return ahead >= max(stepping.ALIKE, self._block)

    def start(self, row: BatchRow) -> int:
        """The position from which on the row reads its prompt, or goes on reading it."""
        its = self._rows.get(row)
        if row.slot is not None or its is None:
            return row.filled
        found = self._find(row, its)
        return self._start(row, found) if found else 0

    def fill_slot(self, row: BatchRow, slot: CacheSlot) -> None:
        """Copy a kept beginning into the slot that the row gets."""
        its = self._rows.get(row)
        found = self._find(row, its) if its else None
        if its is None or found is None:
            return
        start, at = self._start(row, found), 0
        with self._spare_memory():
            for node, count in found.parts:
                size = min(count, start - at)
                self._cache.put(slot, node.held, size, at)
                at += size
            if its.text.form is not None:
                row.goal.resume(found.scores(its.text.form))
            its.exact = math.inf if found.exact == found.tokens else found.exact
            row.filled = start
            for part, notes in zip(_marked(row), found.notes, strict=False):
                part.resume(start, notes)

    def read(self, row: BatchRow) -> None:
        """A pass has read a part of the row's prompt: keep the prompt if it ends there and is long, or if another row
        waits for this part."""
        if row not in self._rows:
            return
        waiting = [its.shared for its in self._rows.values() if its.leader is row]
        shared = max((size for size in waiting if size <= row.filled), default=0)
        if shared or row.filled == len(row.prompt):
            whole = min(row.filled, row.goal.shareable(row) + 1)
            size = whole if self._may_keep(whole, prefix.LEAST) else shared
            self._keep(row, row.prompt[:size], 1)

    def end(self, row: BatchRow) -> None:
        """Keep the keys and values of a row that ended. Those of tokens that it wrote are not exact, and are of no use
        for the next turn of a row that needs exact ones."""
        if not row.needs_exact:
            self._keep(row, row.cached, prefix.LEAST)

    # ------------------------------------------------------------- inside

    def _follow(self, row: BatchRow) -> None:
        """Have the row wait for the row before it that reads most of its prompt, where one does. A row that does not
        yield waits for none that does."""
        its = self._rows[row]
        for other, whose in self._rows.items():
            if other is row:
                return
            if other.yields and not row.yields:
                continue
            if other.filled == len(other.prompt) or its.text.form not in (None, whose.text.form):
                continue
            alike = whose.text.signature.common(its.text.signature)
            shared = int(min(alike, prefix.common(whose.text.tokens, its.text.tokens)))
            if shared > its.shared and self._is_worth_waiting(row, other, shared):
                its.leader, its.shared = other, shared

    def _is_worth_waiting(self, row: BatchRow, other: BatchRow, shared: int) -> bool:
        """Whether a row waits for so many tokens of another one. For few tokens it waits only where they are half of
        its prompt or more, and for no long prompt, which takes long to read."""
        is_short = len(other.prompt) <= prefix.LEAST and 2 * shared >= len(row.prompt)
        return self._may_keep(shared, self._least_shared if is_short else prefix.LEAST)

    def _find(self, row: BatchRow, its: Sharing) -> Beginning | None:
        prefixes = cast(Prefixes, self.prefixes)
        if not self._saes.may_reuse(row.steering):
            return None
        if its.version != self._saes.version:
            its.text, its.version = self._begun(row), self._saes.version
            its.changes = -1
        if its.changes != prefixes.changes:
            its.changes = prefixes.changes
            its.found = prefixes.find(its.text, is_exact=row.needs_exact)
        return its.found

    def _start(self, row: BatchRow, found: Beginning) -> int:
        return stepping.resumed(
            found.tokens,
            self._block,
            is_exact=found.exact == found.tokens,
            is_scored=row.goal.form is not None,
        )

    def _begun(self, row: BatchRow) -> Text:
        """The tokens of the row that a kept beginning may stand for."""
        return self._text(row, row.prompt[: row.goal.shareable(row)])

    def _may_keep(self, tokens: int, least: int) -> bool:
        return cast(Prefixes, self.prefixes).may_keep(tokens, self._token_bytes, least)

    def _keep(self, row: BatchRow, tokens: Sequence[int], least: int) -> None:
        """Keep these first tokens of the row, unless the steering changed while it ran."""
        its = self._rows.get(row)
        is_same = row.version == self._saes.version and self._saes.may_keep(row.steering)
        if its is None or not is_same or not self._may_keep(len(tokens), least):
            return
        slot, scores = cast(CacheSlot, row.slot), row.goal.kept_scores()
        if scores is None:
            return

        def copy_tokens(start: int, end: int) -> Held:
            return self._cache.copy_tokens(slot, end, start)

        with self._spare_memory():
            exact = int(min(its.exact, row.filled)) if self._is_exact else 0
            notes = [part.notes() for part in _marked(row)]
            text = self._text(row, tokens)
            cast(Prefixes, self.prefixes).keep(text, exact, copy_tokens, notes, scores)

    @contextmanager
    def _spare_memory(self) -> Iterator[None]:
        """Guards a copy of a kept beginning: where memory runs out over the copy, all kept beginnings are dropped, and
        the row goes on without one."""
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

    def _text(self, row: BatchRow, tokens: Sequence[int]) -> Text:
        """These first tokens of the row, and how they are steered and read."""
        marks = tuple(part.mark() for part in _marked(row))
        signature = Signature(self._saes.signature(row.steering, len(tokens)), marks)
        return Text(signature, np.asarray(tokens, dtype=np.int64), row.goal.form)


def _marked(row: BatchRow) -> list[RowPart]:
    """The parts that take over what the parts of another row have read of the same beginning."""
    return [part for part in row.parts if part.mark() is not None]
