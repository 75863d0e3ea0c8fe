"""Rows that are stepped together over one KV cache: they join, are prefilled, decode and leave."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import structlog
from msgspec import structs
from torch import Tensor

from steerserve.errors import Refusal
from steerserve.messages import ActivationsRead, PartsRead, Piece, Refused, is_last
from steerserve.rules.inference import stepping
from steerserve.rules.inference.stepping import PrefillTurn, Prompt, Tempo
from steerserve.rules.residency.memory_needs import PREFILL_TOKENS
from steerserve.worker import memory
from steerserve.worker.batch.apart import Result, each_part
from steerserve.worker.batch.graphs import DecodeGraphs
from steerserve.worker.batch.planned import most_tokens, plan_decode, plan_prefill, take_prompt
from steerserve.worker.batch.prefix import Prefixes
from steerserve.worker.batch.reuse import Reuse
from steerserve.worker.batch.steered import SteeredPasses
from steerserve.worker.batch.tokens import sampled
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.model import kv
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.model.kv import CacheSlot
from steerserve.worker.model.plain import PlainPasses
from steerserve.worker.model.results import PassResult, Status
from steerserve.worker.rows.goals import Ending
from steerserve.worker.rows.rows import BatchRow, reread

ROWS_MAXIMUM = 128
"""The most rows that decode together, because logits over a large vocabulary take memory. One request alone may have
more."""

STATES_SECONDS = 0.002
"""A step works on the states of no further row after so many seconds."""

log = structlog.get_logger(__name__)

Done = tuple[list[BatchRow], PassResult]
"""The rows of a pass, with its result."""


class Group:
    """Rows that are stepped together over one cache.

    The rows of `rows` decode, or work on the states that they have read. The prompts of the rows of `joining` are not
    prefilled to their end yet. A row has its slot in the cache from its first pass to its last. A step with a prefill
    pass takes at most about `step_seconds`, or longer where the rows that decode can wait. With None, the sizes of
    passes do not depend on the time that passes take. A pass over rows that all yield is stopped, and runs again later,
    once `must_stop` says so.
    """

    def __init__(
        self,
        model: Checkpoint | PlainPasses,
        saes: HookedSaes,
        prefixes: Prefixes | None = None,
        step_seconds: float | None = stepping.STEP_SECONDS,
        clock: Callable[[], float] = time.perf_counter,
        graphs: DecodeGraphs | None = None,
        *,
        is_exact: bool = False,
        must_stop: Callable[[], bool] = kv.never,
    ) -> None:
        self._model = model
        self.cache: Any = model.cache()
        self._passes = SteeredPasses(model, self.cache, saes, graphs, must_stop)
        self._saes = saes
        self._step_seconds = step_seconds
        self._clock = clock
        self._tempo = Tempo()
        self._turn = PrefillTurn()
        sizes = model.kv_bytes_by_device.values()
        self._reuse = Reuse(
            saes,
            cast(Any, self.cache),
            prefixes,
            sum(sizes),
            block=model.width,
            is_exact=is_exact,
        )
        self.rows: list[BatchRow] = []
        self.joining: list[BatchRow] = []

    @property
    def is_empty(self) -> bool:
        return not (self.rows or self.joining)

    @property
    def reserved(self) -> int:
        """The number of tokens of cache that the rows may take until their ends, or that are allocated already."""
        allocated: int = self.cache.tokens
        return max(allocated, self._need(self.all_rows()))

    def all_rows(self) -> list[BatchRow]:
        return [*self.rows, *self.joining]

    def may_join(self, new: list[BatchRow], budget: int) -> bool:
        """Whether the new rows fit beside the rows of this group within `budget` tokens of cache."""
        every = [*self.all_rows(), *new]
        if len(every) > max(ROWS_MAXIMUM, len(new)):
            return False
        return self._need(every) <= budget

    def join(self, new: list[BatchRow]) -> list[Ending]:
        """Take the rows in; they are prefilled by the coming steps. Returns the refusals of requests whose rows cannot
        be taken in."""
        self.joining += new
        return self._each(new, self._reuse.join)

    def step(self, resting: Collection[BatchRow] = ()) -> Iterator[Ending]:
        """One prefill pass if it is due, then one decode pass of the rows that decoded before; one of each row where
        rows are stepped alone. Rows that are `resting` take no part. Each outcome comes as soon as its row has it, so
        that an error later in the step loses none."""
        decoding = [row for row in self.rows if row not in resting]
        joining = [row for row in self.joining if row not in resting]
        passes = self._decode_passes(decoding)
        yield from self._prefill(joining, decoding)
        for rows in passes:
            yield from self._decode([row for row in rows if row.slot is not None])
        yield from self._read_states()

    def drop(self, request: int) -> None:
        """Forget a request's rows at once."""
        for row in self.all_rows():
            if row.request == request:
                self._leave(row)
                row.goal.close()
        if self.is_empty:
            self.cache.release()

    # ------------------------------------------------------------- inside

    def _need(self, rows: list[BatchRow]) -> int:
        return sum(row.need + self._model.state_tokens for row in rows)

    def _decode_passes(self, decoding: list[BatchRow]) -> list[list[BatchRow]]:
        """The rows of each decode pass of this step: all together, or each alone where rows are stepped alone. Rows
        that act in attention have a pass of their own, because that pass computes attention in another way. So have few
        rows that read inside attention, where this lets the layers run as compiled calls for the other rows."""
        if self._model.is_alone:
            return [[row] for row in decoding]
        if len(decoding) < len(self.rows):
            # the rows that decode in every step stay before those that rest in some steps
            decoding = sorted(decoding, key=lambda row: row.yields)
        among = [row for row in decoding if self._acts_in_attention(row, row.position, 1)]
        others = [row for row in decoding if row not in among]
        reading = [row for row in others if row.reads_in_attention]
        if len(reading) > len(others) // 2 or (reading and not self._model.has_whole_layers):
            reading = []
        rest = [row for row in others if row not in reading]
        passes = [rows for rows in (rest, reading, among) if rows]
        if len(decoding) < len(self.rows) or len(passes) > 1:
            ordered = [row.slot for rows in passes for row in rows if row.slot is not None]
            self.cache.put_first(ordered)
        return passes

    def _prefill(self, joining: list[BatchRow], decoding: list[BatchRow]) -> Iterator[Ending]:
        """The prefill pass of this step over rows of `joining`, if one is due beside the rows that decode."""
        if not joining:
            return
        most, rests = self._pace(joining, decoding)
        refused, rows = self._due(joining, most, rests)
        yield from refused
        if not rows:
            self._turn = replace(self._turn, rests=self._turn.rests + 1)
            return
        started = self._clock()
        yield from self._each([row for row in rows if row.slot is None], self._begin)
        rows = [row for row in rows if row.slot is not None]
        if not rows:
            return
        most = self._most(rows, most)
        if any(len(row.prompt) - row.filled > most for row in rows):
            rows = rows[:1]
        longest = min(most, max(len(row.prompt) - row.filled for row in rows))
        done, refused = self._read_prompts(rows, most, started)
        yield from refused
        ended = [row for some, _ in done for row in some if row.slot is not None]
        if not ended:
            return
        first = ended[0]
        if first.filled < len(first.prompt):
            # the other long prompts go first next time
            self.joining.remove(first)
            self.joining.append(first)
            self._turn = PrefillTurn(rests=0)
        else:
            for row in ended:
                self.joining.remove(row)
            self.rows.extend(ended)
            self._turn = PrefillTurn(self._turn.rests, self._turn.shorts + 1)
            for some, result in done:
                yield from self._accept(result.logits, some)
        if not refused and done[0][1].status is Status.DONE:
            size = len(rows) * stepping.up(longest, self._model.width)
            self._tempo = self._tempo.prefilled(size, self._clock() - started)

    def _pace(self, joining: list[BatchRow], decoding: list[BatchRow]) -> tuple[int, int]:
        """The most tokens that are read beside the rows that decode, and the decode passes for which a part of a long
        prompt waits."""
        rests, seconds = 0, self._step_seconds
        if decoding:
            written = [(row.client, row.is_stream) for row in decoding]
            pace = stepping.pace(written, {row.client for row in joining})
            rests, seconds = pace.rests, seconds and seconds * pace.times
        if not self._model.takes_parts:
            return max(len(row.prompt) for row in joining), rests
        if decoding and seconds is not None:
            return self._tempo.tokens(seconds, PREFILL_TOKENS), rests
        return PREFILL_TOKENS, rests

    def _read_prompts(
        self, rows: list[BatchRow], most: int, started: float
    ) -> tuple[list[Done], list[Ending]]:
        """Read the next tokens of prompts, at most `most` of each. Returns as `_run_passes`."""
        refused: list[Ending] = []

        def read(some: list[BatchRow]) -> Done:
            planned = plan_prefill(some, most)
            result = self._passes.run(planned)
            if result.status is Status.STOPPED:
                return some, result
            for place, row in enumerate(some):
                try:
                    take_prompt(planned, result, place)
                except Exception as error:
                    # the sums or scores of one row may run out of memory
                    refused.extend(self._failed([row], error))
            return some, PassResult(result.logits, status=result.status)

        done, failed = self._run_passes(rows, read)
        seconds = (self._clock() - started) / len(rows)
        taken = [row for some, _ in done for row in some]
        for row in taken:
            row.seconds += seconds
            row.filled = min(row.filled + most, len(row.prompt))
        self._drop(refused)
        kept = [row for row in taken if row.slot is not None]
        return done, [*failed, *refused, *self._each(kept, self._reuse.read)]

    def _run_passes(
        self, rows: list[BatchRow], work: Callable[[list[BatchRow]], Done]
    ) -> tuple[list[Done], list[Ending]]:
        """Run passes over rows as `_divide`. Returns those that were not stopped, and the refusals."""
        done, refused = self._divide(rows, work)
        return [one for one in done if one[1].status is not Status.STOPPED], refused

    def _divide(
        self, rows: list[BatchRow], work: Callable[[list[BatchRow]], Result]
    ) -> tuple[list[Result], list[Ending]]:
        """Do work over rows, and again without rows that make it fail. Returns the results, and the refusals of the
        rows that failed."""
        refused: list[Ending] = []
        done = each_part(rows, work, lambda some, error: refused.extend(self._failed(some, error)))
        self._drop(refused)
        return done, refused

    def _due(
        self, joining: list[BatchRow], most: int, rests: int
    ) -> tuple[list[Ending], list[BatchRow]]:
        """The rows of `joining` that the prefill pass of this step reads, with at most `most` tokens, after the
        refusals of those that cannot be read. A part of a long prompt waits for `rests` decode passes."""
        ready: dict[BatchRow, Prompt] = {}

        def prepare(row: BatchRow) -> None:
            if not self._reuse.must_wait(row):
                ready[row] = Prompt(
                    len(row.prompt),
                    self._reuse.start(row),
                    self._most([row], most),
                    max(stepping.ALIKE, self._model.width),
                )

        outcomes = self._each(joining, prepare)
        among = [row for row in ready if row in self.joining] if outcomes else list(ready)
        places = stepping.chosen([ready[row] for row in among], self._turn, rests=rests)
        rows = [among[i] for i in places]
        if self._model.is_alone:
            return outcomes, rows[:1]
        alike = [self._acts_in_attention(row, row.filled, most) for row in rows]
        return outcomes, [row for row, one in zip(rows, alike, strict=True) if one is alike[0]]

    def _acts_in_attention(self, row: BatchRow, first: int, size: int) -> bool:
        return self._saes.acts_in_attention(row.steering, first, size)

    def _most(self, rows: list[BatchRow], most: int) -> int:
        """The most tokens of a prefill pass over these rows, at most `most`."""
        if not self._model.takes_parts:
            return most
        return most_tokens(rows, self._model.vocabulary, most)

    def _begin(self, row: BatchRow) -> None:
        """Note the version of the steering, make room for the prompt, and copy a kept beginning into it."""
        row.version = self._saes.version
        capacity = stepping.capacity(len(row.prompt) + 1, row.need)
        slot = self.cache.open(capacity)
        self._reuse.fill_slot(row, slot)
        row.slot = slot

    def _decode(self, rows: list[BatchRow]) -> Iterator[Ending]:
        """One decode pass. Rows that were prefilled in this step wait for the next step."""
        started = self._clock()
        yield from self._each(rows, self._make_room)
        rows = [row for row in rows if row.slot is not None]
        if not rows:
            return
        rows.sort(key=lambda row: kv.order(cast(CacheSlot, row.slot)))

        def decode(some: list[BatchRow]) -> Done:
            # recorded passes are those of all rows, and nothing acts in their attention
            may_replay = some is rows and not self._acts_in_attention(some[0], some[0].position, 1)
            return some, self._passes.run(plan_decode(some, may_replay=may_replay))

        done, refused = self._run_passes(rows, decode)
        yield from refused
        for some, result in done:
            yield from self._accept(result.logits, some)
        if done and not refused:
            self._tempo = self._tempo.decoded(self._clock() - started)

    def _make_room(self, row: BatchRow) -> None:
        """Have room for the row's next token."""
        slot = cast(CacheSlot, row.slot)
        if row.position >= slot.capacity:
            self.cache.grow(slot, stepping.capacity(row.position + 1, row.need))

    def _each(self, rows: Sequence[BatchRow], work: Callable[[BatchRow], object]) -> list[Ending]:
        """Do work for each row. An error of it ends the request of its row, and no other."""
        outcomes: list[Ending] = []
        refused: set[int] = set()
        for row in rows:
            if row.request in refused:
                continue
            try:
                work(row)
            except Exception as error:
                outcomes.append(self._refused(row, error))
                refused.add(row.request)
                self.drop(row.request)
                memory.recover(error)
        return outcomes

    def _accept(self, logits: Tensor, rows: list[BatchRow]) -> Iterator[Ending]:
        """Take the logits [rows, vocabulary] of a pass over rows, of which some may have left since."""
        places = {row: i for i, row in enumerate(rows) if row.slot is not None}

        def sample(some: list[BatchRow]) -> dict[BatchRow, Refusal | int | None]:
            own = logits if len(some) == len(logits) else logits[[places[row] for row in some]]
            # sampling over a large vocabulary may run out of memory
            return sampled(own, some)

        found, refused = self._divide(list(places), sample)
        yield from refused
        for tokens in found:
            for row, token in tokens.items():
                yield from self._given(row, token, logits[places[row]])

    def _given(self, row: BatchRow, token: Refusal | int | None, logits: Tensor) -> list[Ending]:
        """The outcomes of a row that was given its token, or the logits [vocabulary] after its prompt."""
        if row.slot is None:
            return []
        if row.goal.works:
            return self._each([row], partial(self._has_read, logits=logits))
        new = self._taken(row, token, logits)
        last = new[-1]
        if isinstance(last, Refused):
            self._leave(row)
            return new
        if not is_last(last):
            return new
        refused = self._each([row], self._reuse.end)
        if refused:
            return refused
        self._leave(row)
        if not row.needs_plain:
            return new
        # it has room, because the row gave up as much
        return self.join([reread(row, new)])

    def _has_read(self, row: BatchRow, logits: Tensor) -> None:
        """The row has read its prompt, and needs its keys and values no more."""
        row.goal.keep_logits(logits)
        self._close(row)

    def _read_states(self) -> Iterator[Ending]:
        """A part of the work of rows that only read, after their prompts: of one row, and of others while all of it is
        short. Such rows take turns."""
        end = self._clock() + STATES_SECONDS
        for row in [row for row in self.rows if row.goal.works]:
            yield from self._read_state(row)
            if self._clock() >= end:
                break

    def _read_state(self, row: BatchRow) -> list[Ending]:
        """A part of the work of one row."""
        outcome: Ending | None
        started = self._clock()
        try:
            outcome = row.goal.work_on(row)
        except Exception as error:
            outcome = self._refused(row, error)
            memory.recover(error)
        row.seconds += self._clock() - started
        if isinstance(outcome, ActivationsRead | PartsRead):
            outcome = structs.replace(outcome, seconds=row.seconds)
        self._leave(row)
        if outcome is None or not (isinstance(outcome, Refused) or is_last(outcome)):
            self.rows.append(row)
        return [] if outcome is None else [outcome]

    def _taken(self, row: BatchRow, token: Refusal | int | None, logits: Tensor) -> list[Ending]:
        """The outcomes of a row: from its sampled token where the row writes, otherwise from its logits."""
        try:
            if row.fault is not None:
                raise row.fault
            *before, last = row.goal.outcomes(row, token, logits, self._model.end_tokens)
            return [*before, self._told(row, last)]
        except Exception as error:
            return [self._refused(row, error)]

    def _told(self, row: BatchRow, last: Ending) -> Ending:
        """The new outcome of a row that writes, with what its parts give. The last one says whether the steering of the
        row was changed."""
        if not isinstance(last, Piece) or last.finish is None or not row.goal.writes:
            return row.with_parts(last)
        told: Ending = structs.replace(last, is_changed=self._saes.is_changed(row.steering))
        if not row.needs_plain:
            told = row.with_parts(told)
        for part in row.parts:
            part.end()
        return told

    def _refused(self, row: BatchRow, error: Exception) -> Refused:
        """The refusal for an error over one row's logits, text or parts. The error ends this row's request only."""
        if isinstance(error, Refusal):
            return row.refused(error.code, error.message, **error.details)
        log.error("row_failed", exc_info=error)
        return row.failed(error, self._model.device, 1)

    def _failed(self, rows: list[BatchRow], error: Exception) -> list[Ending]:
        """The refusals of rows that have failed together. Their requests are dropped later."""
        log.error("rows_failed", rows=len(rows), exc_info=error)
        refusals: dict[int, Ending] = {
            row.request: row.failed(error, self._model.device, len(rows)) for row in rows
        }
        memory.recover(error)
        return list(refusals.values())

    def _drop(self, refused: Sequence[Ending]) -> None:
        """Forget the rows of requests that were refused."""
        for ending in refused:
            self.drop(ending.id)

    def _leave(self, row: BatchRow) -> None:
        """Take a row out, and give up its slot."""
        (self.rows if row in self.rows else self.joining).remove(row)
        self._close(row)

    def _close(self, row: BatchRow) -> None:
        """Give up the slot of a row."""
        self._reuse.forget(row)
        if row.slot is not None:
            self.cache.close(row.slot)
            row.slot = None
