"""Rows that are stepped together over one KV cache: they join, are prefilled, decode and leave."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import cast

import structlog
from torch import Tensor

from steerserve.engine.wire.messages import Refused, is_last
from steerserve.engine.worker import memory
from steerserve.engine.worker.attached.hooks import HookedSaes
from steerserve.engine.worker.batch import echo
from steerserve.engine.worker.batch.prefix import Entry, Prefixes
from steerserve.engine.worker.model.checkpoint import Checkpoint
from steerserve.engine.worker.model.kv import SlotCache
from steerserve.engine.worker.observing.observers import Observers
from steerserve.engine.worker.rows import constrain, sampling
from steerserve.engine.worker.rows.rows import BatchRow, Ending, Pooling, Writing
from steerserve.errors import Refusal
from steerserve.rules.memory_needs import PREFILL_TOKENS

ROWS_MAXIMUM = 128
"""The most rows that decode together, because logits over a large vocabulary take memory. One request alone may have
more."""

log = structlog.get_logger(__name__)


class Group:
    """Rows that are stepped together over one cache.

    The rows of `rows` decode, and hold the first rows of the cache in this order. The row `partial`, whose long prompt
    is prefilled in parts, holds the next row of the cache. The rows of `joining` have reserved room, but no tokens in
    the cache yet.
    """

    def __init__(
        self,
        model: Checkpoint,
        saes: HookedSaes,
        observers: Observers,
        prefixes: Prefixes | None = None,
    ) -> None:
        self._model = model
        self._saes = saes
        self._observers = observers
        self._prefixes = prefixes
        self.cache = SlotCache()
        self.rows: list[BatchRow] = []
        self.partial: BatchRow | None = None
        self.joining: deque[BatchRow] = deque()

    @property
    def is_empty(self) -> bool:
        return not (self.rows or self.partial or self.joining)

    @property
    def reserved(self) -> int:
        """The number of tokens of cache that are allocated."""
        return self.cache.rows * self.cache.length

    def all_rows(self) -> list[BatchRow]:
        return [*self.rows, *([self.partial] if self.partial else []), *self.joining]

    def may_join(self, new: list[BatchRow], budget: int) -> bool:
        """Whether the new rows fit beside the rows of this group within `budget` tokens of cache."""
        count, length = self._shape(new)
        if count > max(ROWS_MAXIMUM, len(new)):
            return False
        fits = count <= self.cache.rows and length <= self.cache.length
        return fits or count * length <= budget

    def join(self, new: list[BatchRow], budget: int) -> None:
        """Reserve room for the rows; they are prefilled by the coming steps."""
        count, length = self._shape(new)
        if count > self.cache.rows or length > self.cache.length:
            spare = 1 << (count - 1).bit_length()
            held = len(self.rows) + (1 if self.partial else 0)
            self.cache.resize(max(count, min(spare, budget // length)), length, held)
        self.joining.extend(new)

    def step(self) -> list[Ending]:
        """One prefill pass if rows are joining, then one decode pass of the rows that decode."""
        outcomes: list[Ending] = []
        decoding = len(self.rows)
        if self.partial or self.joining:
            outcomes += self._prefill()
        if decoding and self.rows:
            outcomes += self._decode(min(decoding, len(self.rows)))
        return outcomes

    def drop(self, request: int) -> None:
        """Forget a request's rows at once."""
        self.joining = deque(row for row in self.joining if row.request != request)
        for i in range(len(self.rows) - 1, -1, -1):
            if self.rows[i].request == request:
                self._leave(i)
        if self.partial and self.partial.request == request:
            self.partial = None
        if self.is_empty:
            self.cache.release()

    # ------------------------------------------------------------- inside

    def _shape(self, new: list[BatchRow]) -> tuple[int, int]:
        every = [*self.all_rows(), *new]
        return len(every), max(row.need for row in every)

    def _prefill(self) -> list[Ending]:
        rows = [self.partial] if self.partial else self._next_rows()
        start = rows[0].filled
        most = echo.most(rows, self._model.vocabulary, PREFILL_TOKENS)
        parts = [row.prompt[start : start + most] for row in rows]
        pools = any(isinstance(row.goal, Pooling) for row in rows)
        echoes = echo.is_in(rows)
        logits = self._pass(
            rows,
            [(start, len(part)) for part in parts],
            lambda: self._model.prefill(
                self.cache, parts, row=len(self.rows), start=start, with_sums=pools, with_all=echoes
            ),
        )
        if isinstance(logits, Exception):
            return self._failed(rows, logits)
        if echoes:
            every, self._model.every = cast(Tensor, self._model.every), None
            error = echo.score(rows, parts, start, every)
            if error is not None:
                return self._failed(rows, error)
        for i, (row, part) in enumerate(zip(rows, parts, strict=True)):
            row.filled = start + len(part)
            if isinstance(row.goal, Pooling):
                row.goal.add(cast(Tensor, self._model.sums)[i])
        if rows[0].filled < len(rows[0].prompt):
            self.partial = rows[0]
            return []
        self.partial = None
        first = len(self.rows)
        self.rows.extend(rows)
        return self._accept(logits, first, len(rows))

    def _next_rows(self) -> list[BatchRow]:
        """The next rows to prefill in one pass. Padded to the longest of them, they have at most as many tokens as a
        pass may have.

        A row that begins with a kept prefix is prefilled alone, from the end of that prefix.
        """
        rows = [self._begin(self.joining.popleft())]
        width = len(rows[0].prompt)
        while self.joining and not rows[0].filled:
            widest = max(width, len(self.joining[0].prompt))
            most = echo.most([*rows, self.joining[0]], self._model.vocabulary, PREFILL_TOKENS)
            if (len(rows) + 1) * widest > most or self._kept(self.joining[0]):
                break
            rows.append(self._begin(self.joining.popleft()))
            width = widest
        return rows

    def _begin(self, row: BatchRow) -> BatchRow:
        """Note the version of the steering, and copy a kept prefix into the cache."""
        row.version = self._saes.version
        kept = self._kept(row)
        if kept is not None:
            entry, length = kept
            with self._spare_memory():
                self.cache.put(len(self.rows), entry.held, length)
                row.filled = length
                self._observers.resume(row, length, entry.notes)
        return row

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
                "kept_prefixes_dropped", tokens=self._prefixes.tokens if self._prefixes else 0
            )
            if self._prefixes:
                self._prefixes.clear()
            memory.recover(error)

    def _kept(self, row: BatchRow) -> tuple[Entry, int] | None:
        if self._prefixes is None or not row.may_reuse:
            return None
        return self._prefixes.find(self._signature(row), row.prompt)

    def _signature(self, row: BatchRow) -> Hashable:
        """A value that is equal for two rows exactly when they are steered and read alike."""
        return self._saes.signature(row.plan), self._observers.mark(row)

    def _keep(self, index: int) -> None:
        """Keep the keys and values of a row that ended, unless the steering changed while it ran."""
        row = self.rows[index]
        tokens = row.cached
        is_same = row.version == self._saes.version
        if (
            self._prefixes is not None
            and row.may_reuse
            and is_same
            and self._prefixes.may_keep(len(tokens))
        ):
            with self._spare_memory():
                held = self.cache.take(index, len(tokens))
                self._prefixes.keep(self._signature(row), tokens, held, self._observers.notes(row))

    def _decode(self, count: int) -> list[Ending]:
        """One decode pass over the first `count` rows. Rows that were prefilled in this step wait for the next step."""
        rows = self.rows[:count]
        tokens, positions = [row.out[-1] for row in rows], [row.position for row in rows]
        logits = self._pass(
            rows,
            [(position, 1) for position in positions],
            lambda: self._model.decode_step(self.cache, tokens, positions),
        )
        if isinstance(logits, Exception):
            return self._failed(rows, logits)
        return self._accept(logits, 0, count)

    def _pass(
        self, rows: list[BatchRow], spans: list[tuple[int, int]], forward: Callable[[], Tensor]
    ) -> Tensor | Exception:
        """Run a forward pass with the rows' steering and the observers in place. Returns the logits, or the error that
        ended the pass.

        `spans` has, for each row, the position of its first token in this pass, and the number of its tokens.
        """
        plans = [row.plan for row in rows]
        try:
            with self._saes.of(plans, self._observers.expect(rows, spans)):
                logits = forward()
            self._observers.settle()
            return logits
        except Exception as error:
            self._observers.discard()
            # any error of a forward pass ends the requests of its rows, and no others
            log.exception("forward_pass_failed", rows=len(rows))
            return error

    def _accept(self, logits: Tensor, first: int, count: int) -> list[Ending]:
        rows = self.rows[first : first + count]
        try:
            tokens = self._sampled(logits, rows)
        except Exception as error:
            # sampling over a large vocabulary may run out of memory
            log.exception("sampling_failed", rows=count)
            return self._failed(rows, error)
        outcomes: list[Ending] = []
        ended: list[int] = []
        for i, row in enumerate(rows):
            new = self._observed(row, self._taken(row, tokens.get(i), logits[i]))
            last = new[-1]
            if isinstance(last, Refused):
                ended.append(first + i)
            elif is_last(last):
                self._keep(first + i)
                ended.append(first + i)
            outcomes += new
        for index in reversed(ended):
            self._leave(index)
        return outcomes

    def _taken(self, row: BatchRow, token: Refusal | int | None, logits: Tensor) -> list[Ending]:
        """The outcomes of a row: from its sampled token where the row writes, otherwise from its logits."""
        try:
            if not isinstance(row.goal, Writing):
                return row.end(logits)
            if isinstance(token, Refusal):
                raise token
            return row.accept(token, self._model.end_tokens)
        except Exception as error:
            return [self._refused(row, error)]

    def _observed(self, row: BatchRow, new: list[Ending]) -> list[Ending]:
        """The new outcomes of a row: first the outcomes of the observers, then the row's own."""
        last = new[-1]
        if isinstance(last, Refused):
            return new
        try:
            told = self._observers.end(row) if is_last(last) else self._observers.progress(row)
            return [*told, *new]
        except Exception as error:
            return [self._refused(row, error)]

    def _refused(self, row: BatchRow, error: Exception) -> Refused:
        """The refusal for an error over one row's logits, text or observers. The error ends this row's request only."""
        if isinstance(error, Refusal):
            return row.refused(error.code, error.message, **error.details)
        log.exception("row_failed")
        return row.failed(error, self._model.device, 1)

    def _sampled(self, logits: Tensor, rows: list[BatchRow]) -> dict[int, Refusal | int | None]:
        """By place, the next token of each row that writes, or the refusal where there is none."""
        goals = {i: row.goal for i, row in enumerate(rows) if isinstance(row.goal, Writing)}
        if not goals:
            return {}
        if len(goals) < len(rows):
            logits = logits[list(goals)]
        logits, refusals = constrain.mask(logits, [goal.constraint for goal in goals.values()])
        tokens = sampling.sample(logits, [goal.sampler for goal in goals.values()])
        return {place: refusals.get(i, tokens[i]) for i, place in enumerate(goals)}

    def _failed(self, rows: list[BatchRow], error: Exception) -> list[Ending]:
        refusals: dict[int, Ending] = {
            row.request: row.failed(error, self._model.device, len(rows)) for row in rows
        }
        for row in rows:
            if row is self.partial:
                self.partial = None
        for request in refusals:
            self.drop(request)
        memory.recover(error)
        return list(refusals.values())

    def _leave(self, index: int) -> None:
        """Take a decoding row out. The last decoding row moves to the free place in the cache, and a partial row moves
        to the place of that row."""
        last = len(self.rows) - 1
        if index != last:
            self.cache.move(last, index, self.rows[last].position + 1)
            self.rows[index] = self.rows[last]
        self.rows.pop()
        if self.partial:
            self.cache.move(last + 1, last, self.partial.filled)
