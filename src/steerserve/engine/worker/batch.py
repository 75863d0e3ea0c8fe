"""The running batch: rows join, step together, leave; one row is one choice of one request.

Rows without a seed share one group. The rows of a seeded request are a group of their own, stepped by themselves,
because the shape of a batch changes the last bits of its logits. The KV memory of all groups together stays within
`kv_tokens`; what does not fit waits, first come first served.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import structlog
import torch
from torch import Tensor

from steerserve.engine.messages import Piece, Plan, Refused
from steerserve.engine.worker import sampling
from steerserve.engine.worker.checkpoint import LENGTH_STEP, Checkpoint
from steerserve.engine.worker.hooks import Steering
from steerserve.engine.worker.kv import SlotCache
from steerserve.engine.worker.text import TextStream

PREFILL_TOKENS = 1024
"""Tokens of one prefill pass: short prompts are prefilled together up to it, a long one in parts of it."""

ROWS_MAXIMUM = 128
"""Rows that decode together, unless one request alone has more; their logits over a large vocabulary take memory too."""

log = structlog.get_logger(__name__)
Outcome = Piece | Refused


@dataclass(slots=True)
class Row:
    """One choice of one request, from its prompt to its last token."""

    request: int
    choice: int
    prompt: list[int]
    max_tokens: int
    sampler: sampling.Choice
    plan: Plan
    text: TextStream
    out: list[int] = field(default_factory=list)
    filled: int = 0

    @property
    def need(self) -> int:
        """Tokens of cache the row may come to fill, in whole length steps."""
        return -(-(len(self.prompt) + self.max_tokens) // LENGTH_STEP) * LENGTH_STEP

    @property
    def position(self) -> int:
        """Position of the last token, which the next pass reads."""
        return len(self.prompt) + len(self.out) - 1

    def accept(self, token: int | None, end_tokens: frozenset[int]) -> Outcome:
        """Take the sampled token; the piece of text it makes certain, and how the row ends if it does."""
        if token is None:
            return Refused(
                self.request,
                "NON_FINITE_LOGITS",
                "the model produced NaN or infinite logits; a strong steering value is a common cause",
            )
        self.out.append(token)
        if self.sampler.seen is not None:
            self.sampler.seen[token] = True
        if token in end_tokens:
            return self._piece(self.text.finish(), "stop")
        text = self.text.push(token)
        if self.text.is_stopped:
            return self._piece(text, "stop")
        if len(self.out) < self.max_tokens:
            return self._piece(text, None)
        text += self.text.finish()
        return self._piece(text, "stop" if self.text.is_stopped else "length")

    def _piece(self, text: str, finish: str | None) -> Piece:
        return Piece(self.request, self.choice, text, len(self.out), finish)


class Group:
    """Rows that are stepped together over one cache.

    `rows` decode and hold the cache's first rows in this order; a long prompt that is prefilled in parts (`partial`)
    holds the next; `joining` have room reserved but no tokens in the cache yet.
    """

    def __init__(self, model: Checkpoint, steering: Steering) -> None:
        self._model = model
        self._steering = steering
        self.cache = SlotCache()
        self.rows: list[Row] = []
        self.partial: Row | None = None
        self.joining: deque[Row] = deque()

    @property
    def is_empty(self) -> bool:
        return not (self.rows or self.partial or self.joining)

    @property
    def reserved(self) -> int:
        """Tokens of cache held."""
        return self.cache.rows * self.cache.length

    def all_rows(self) -> list[Row]:
        return [*self.rows, *([self.partial] if self.partial else []), *self.joining]

    def may_join(self, new: list[Row], budget: int) -> bool:
        """Whether the rows fit beside those here within `budget` tokens of cache."""
        count, length = self._shape(new)
        if count > max(ROWS_MAXIMUM, len(new)):
            return False
        fits = count <= self.cache.rows and length <= self.cache.length
        return fits or count * length <= budget

    def join(self, new: list[Row], budget: int) -> None:
        """Reserve room for the rows; they are prefilled by the coming steps."""
        count, length = self._shape(new)
        if count > self.cache.rows or length > self.cache.length:
            spare = 1 << (count - 1).bit_length()
            held = len(self.rows) + (1 if self.partial else 0)
            self.cache.resize(max(count, min(spare, budget // length)), length, held)
        self.joining.extend(new)

    def step(self) -> list[Outcome]:
        """One prefill pass if rows are joining, then one decode pass of the rows that decode."""
        outcomes: list[Outcome] = []
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

    def _shape(self, new: list[Row]) -> tuple[int, int]:
        every = [*self.all_rows(), *new]
        return len(every), max(row.need for row in every)

    def _prefill(self) -> list[Outcome]:
        rows = [self.partial] if self.partial else self._together()
        start = rows[0].filled
        parts = [row.prompt[start : start + PREFILL_TOKENS] for row in rows]
        logits = self._pass(
            rows, lambda: self._model.prefill(self.cache, parts, row=len(self.rows), start=start)
        )
        if isinstance(logits, Exception):
            return self._failed(rows, logits)
        for row, part in zip(rows, parts, strict=True):
            row.filled = start + len(part)
        if rows[0].filled < len(rows[0].prompt):
            self.partial = rows[0]
            return []
        self.partial = None
        first = len(self.rows)
        self.rows.extend(rows)
        return self._accept(logits, first, len(rows))

    def _together(self) -> list[Row]:
        """The next rows to prefill in one pass: padded to the longest they stay within PREFILL_TOKENS."""
        rows = [self.joining.popleft()]
        width = len(rows[0].prompt)
        while self.joining:
            widest = max(width, len(self.joining[0].prompt))
            if (len(rows) + 1) * widest > PREFILL_TOKENS:
                break
            rows.append(self.joining.popleft())
            width = widest
        return rows

    def _decode(self, count: int) -> list[Outcome]:
        """Rows that were prefilled in this very step decode from the next one on."""
        rows = self.rows[:count]
        tokens, positions = [row.out[-1] for row in rows], [row.position for row in rows]
        logits = self._pass(rows, lambda: self._model.decode_step(self.cache, tokens, positions))
        if isinstance(logits, Exception):
            return self._failed(rows, logits)
        return self._accept(logits, 0, count)

    def _pass(self, rows: list[Row], forward: Callable[[], Tensor]) -> Tensor | Exception:
        """A forward pass with the rows' steering in place, or the error that ended it."""
        try:
            with self._steering.of([row.plan for row in rows]):
                return forward()
        except Exception as error:
            # whatever a forward pass raises is these rows' failure, and nobody else's
            log.exception("forward_pass_failed", rows=len(rows))
            return error

    def _accept(self, logits: Tensor, first: int, count: int) -> list[Outcome]:
        rows = self.rows[first : first + count]
        tokens = sampling.sample(logits, [row.sampler for row in rows])
        outcomes = [
            row.accept(t, self._model.end_tokens) for row, t in zip(rows, tokens, strict=True)
        ]
        for i in range(count - 1, -1, -1):
            outcome = outcomes[i]
            if isinstance(outcome, Refused) or outcome.finish:
                self._leave(first + i)
        return outcomes

    def _failed(self, rows: list[Row], error: Exception) -> list[Outcome]:
        refusals: dict[int, Outcome] = {
            row.request: refusal_of(error, row, len(rows), self._model) for row in rows
        }
        for row in rows:
            if row is self.partial:
                self.partial = None
        for request in refusals:
            self.drop(request)
        return list(refusals.values())

    def _leave(self, index: int) -> None:
        """Take a decoding row out; the last one, then a partial one, close the gap."""
        last = len(self.rows) - 1
        if index != last:
            self.cache.move(last, index, self.rows[last].position + 1)
            self.rows[index] = self.rows[last]
        self.rows.pop()
        if self.partial:
            self.cache.move(last + 1, last, self.partial.filled)


class Batch:
    """All groups, the rows that wait for room, and the bound on their KV memory."""

    def __init__(self, model: Checkpoint, steering: Steering, kv_tokens: int) -> None:
        self._model = model
        self._steering = steering
        self._kv_tokens = kv_tokens
        self._shared = Group(model, steering)
        self._seeded: dict[int, Group] = {}
        self._waiting: deque[tuple[list[Row], bool]] = deque()

    @property
    def is_idle(self) -> bool:
        return not self._waiting and self._shared.is_empty and not self._seeded

    def add(self, rows: list[Row], *, is_seeded: bool) -> None:
        """Let a request's rows in as soon as there is room: seeded rows all at once, others one by one."""
        if is_seeded:
            self._waiting.append((rows, True))
        else:
            self._waiting.extend(([row], False) for row in rows)

    def cancel(self, request: int) -> None:
        self._waiting = deque(entry for entry in self._waiting if entry[0][0].request != request)
        self._shared.drop(request)
        self._seeded.pop(request, None)

    def step(self) -> list[Outcome]:
        """Advance every group by one pass; a request that was refused has no row left anywhere."""
        self._admit()
        outcomes = self._shared.step()
        for request, group in list(self._seeded.items()):
            outcomes += group.step()
            if group.is_empty:
                del self._seeded[request]
        for request in refused(outcomes):
            self.cancel(request)
        if self._shared.is_empty:
            self._shared.cache.release()
        return outcomes

    def _admit(self) -> None:
        while self._waiting:
            rows, is_seeded = self._waiting[0]
            group = Group(self._model, self._steering) if is_seeded else self._shared
            held_elsewhere = sum(g.reserved for g in self._groups() if g is not group)
            budget = self._kv_tokens - held_elsewhere
            if not group.may_join(rows, budget):
                return
            self._waiting.popleft()
            group.join(rows, budget)
            if is_seeded:
                self._seeded[rows[0].request] = group

    def _groups(self) -> list[Group]:
        return [self._shared, *self._seeded.values()]


def refused(outcomes: Iterable[Outcome]) -> set[int]:
    return {outcome.id for outcome in outcomes if isinstance(outcome, Refused)}


def refusal_of(error: Exception, row: Row, rows: int, model: Checkpoint) -> Refused:
    """A failed forward pass as the row's typed refusal."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        is_card = model.device.type == "cuda"
        return Refused(
            row.request,
            "INSUFFICIENT_MEMORY",
            f"{model.device} ran out of memory while generating",
            details={
                "device": str(model.device),
                "device_name": torch.cuda.get_device_name(model.device)
                if is_card
                else "host memory",
                "prompt_tokens": len(row.prompt),
                "max_new_tokens": row.max_tokens,
                "batch_rows": rows,
            },
        )
    return Refused(row.request, "INTERNAL_ERROR", "the model's forward pass failed")
