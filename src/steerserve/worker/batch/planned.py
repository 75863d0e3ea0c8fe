"""A pass over rows as a value: what it reads, what is needed of it, and what its rows get of its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from torch import Tensor

from steerserve.rules.inference.stepping import WIDTH
from steerserve.worker.model.kv import CacheSlot
from steerserve.worker.model.results import PassResult
from steerserve.worker.rows.rows import BatchRow

ECHO_LOGITS = 1 << 25
"""The most logits of a prefill pass that keeps the logits after every token."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass, planned just before it runs. It reads parts of prompts, or the last token of each row.

    Attributes:
        tokens: the tokens of each row that the pass reads.
        spans: for each row, the position of the first of them, and their number.
        wanted: for each row, the number of the first token after which logits are needed. None where no row needs more
            than those after its last token.
        with_sums: whether a row needs the sum of the last hidden layer.
        is_only_read: nobody needs the logits. The pass may end at the last site that a row reads.
        is_for_parts: all rows are read for their parts alone. The pass may end at the last site that a part reads.
        may_stop: it may be stopped between two layers, because all its rows yield. A row that reads states cannot read
            them twice.
        may_replay: a recorded pass may take its place.
    """

    rows: Sequence[BatchRow]
    tokens: Sequence[Sequence[int]]
    spans: Sequence[tuple[int, int]]
    is_prefill: bool
    wanted: Sequence[int] | None = None
    with_sums: bool = False
    is_only_read: bool = False
    is_for_parts: bool = False
    may_stop: bool = False
    may_replay: bool = False

    @property
    def slots(self) -> list[CacheSlot]:
        """The rooms of the rows in the cache."""
        return [cast(CacheSlot, row.slot) for row in self.rows]

    @property
    def starts(self) -> list[int]:
        """For each row, the position of its first token in the pass."""
        return [start for start, _ in self.spans]


def plan_prefill(rows: Sequence[BatchRow], most: int) -> Pass:
    """A pass over the next tokens of the prompts of these rows, at most `most` of each."""
    tokens = [row.prompt[row.filled : row.filled + most] for row in rows]
    goals = [row.goal for row in rows]
    readings = [goal for goal in goals if goal.sites]
    wanted = None
    if any(row.logits_from is not None for row in rows):
        wanted = [_first_wanted(row, len(part)) for row, part in zip(rows, tokens, strict=True)]
    return Pass(
        rows,
        tokens,
        [(row.filled, len(part)) for row, part in zip(rows, tokens, strict=True)],
        is_prefill=True,
        wanted=wanted,
        with_sums=any(goal.needs_sums for goal in goals),
        is_only_read=len(readings) == len(rows) and not any(one.needs_logits for one in readings),
        is_for_parts=wanted is None and all(goal.works and not goal.sites for goal in goals),
        may_stop=not readings and all(row.yields for row in rows),
    )


def plan_decode(rows: Sequence[BatchRow], *, may_replay: bool) -> Pass:
    """A pass over the last token of each of these rows."""
    return Pass(
        rows,
        [row.out[-1:] for row in rows],
        [(row.position, 1) for row in rows],
        is_prefill=False,
        may_stop=all(row.yields for row in rows),
        may_replay=may_replay,
    )


def most_tokens(rows: Sequence[BatchRow], vocabulary: int, otherwise: int) -> int:
    """The most tokens of these rows in one prefill pass, at most `otherwise`. A pass that keeps the logits after every
    token has fewer where the logits would take too much memory."""
    if all(row.logits_from in (None, len(row.prompt) - 1) for row in rows):
        return otherwise
    tokens = ECHO_LOGITS // vocabulary
    return max(1, min(otherwise, tokens // WIDTH * WIDTH or tokens))


def take_prompt(planned: Pass, result: PassResult, place: int) -> None:
    """Give the row at this place what a prefill pass read of its prompt."""
    row = planned.rows[place]
    if planned.wanted is not None:
        logits = cast(Sequence[Tensor], result.every)[place]
        first = planned.spans[place][0] + planned.wanted[place]
        row.goal.read_prompt(row, logits, first)
        for part in row.parts:
            if part.logits_from is not None and row.fault is None:
                part.read_logits(first, logits)
    if row.goal.needs_sums:
        row.goal.add_sums(cast(Tensor, result.sums)[place])
    for take_in in result.values.get(place, ()):
        take_in()


def _first_wanted(row: BatchRow, tokens: int) -> int:
    """The number of the first of the next tokens of a prompt after which logits are needed."""
    first = tokens - 1
    if row.logits_from is not None:
        first = min(first, row.logits_from - row.filled)
    return max(0, first)
