"""The next tokens of the rows of a pass."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from steerserve.errors import Refusal
from steerserve.worker.rows import constrain, sampling
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
        logits, refusals = constrain.mask(logits, [goal.constraint for goal in goals.values()])
        tokens = sampling.sample(logits, samplers)
    except Exception:
        for sampler in samplers:
            sampler.undo()
        raise
    found = {rows[place]: refusals.get(i, tokens[i]) for i, place in enumerate(goals)}
    return {row: found.get(row) for row in rows}
