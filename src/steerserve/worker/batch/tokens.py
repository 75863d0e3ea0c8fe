"""The next tokens of the rows of a pass."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from steerserve.errors import Refusal
from steerserve.parts.row_part import Masker, RowPart
from steerserve.worker.rows import sampling
from steerserve.worker.rows.goals import Writing
from steerserve.worker.rows.rows import BatchRow


def sampled(logits: Tensor, rows: list[BatchRow]) -> dict[BatchRow, Refusal | int | None]:
    """The next token of each row, or the refusal where there is none; None for a row that does not write. `logits` is
    [rows, vocabulary].

    Raises:
        Exception: a row cannot be sampled; no random number of any row is used up.
    """
    goals = {i: cast(Writing, row.goal) for i, row in enumerate(rows) if row.goal.writes}
    if not goals:
        return dict.fromkeys(rows)
    if len(goals) < len(rows):
        logits = logits[list(goals)]
    samplers = [goal.sampler for goal in goals.values()]
    for sampler in samplers:
        sampler.begin_draw()
    try:
        logits, refusals = _masked(logits, [rows[place] for place in goals])
        tokens = sampling.sample(logits, samplers)
    except Exception:
        for sampler in samplers:
            sampler.undo()
        raise
    found = {rows[place]: refusals.get(i, tokens[i]) for i, place in enumerate(goals)}
    return {row: found.get(row) for row in rows}


def _masked(logits: Tensor, rows: list[BatchRow]) -> tuple[Tensor, dict[int, Refusal]]:
    """The logits [rows, vocabulary] without the tokens that parts rule out, and the refusals of the rows that cannot go
    on, by their numbers."""
    refusals: dict[int, Refusal] = {}
    maskers = dict.fromkeys(part.masker for row in rows for part in row.parts)
    for masker in maskers:
        if masker is not None:
            logits, refused = masker.mask(logits, [_part_of(row, masker) for row in rows])
            refusals |= refused
    return logits, refusals


def _part_of(row: BatchRow, masker: Masker) -> RowPart | None:
    return next((part for part in row.parts if part.masker is masker), None)
