"""The next tokens of the rows of a pass."""

from __future__ import annotations

from torch import Tensor

from steerserve.errors import Refusal
from steerserve.worker.rows import constrain, sampling
from steerserve.worker.rows.rows import BatchRow, Writing


def sampled(logits: Tensor, rows: list[BatchRow]) -> dict[int, Refusal | int | None]:
    """By place, the next token of each row that writes, or the refusal where there is none. `logits` is [rows,
    vocabulary]."""
    goals = {i: row.goal for i, row in enumerate(rows) if isinstance(row.goal, Writing)}
    if not goals:
        return {}
    if len(goals) < len(rows):
        logits = logits[list(goals)]
    logits, refusals = constrain.mask(logits, [goal.constraint for goal in goals.values()])
    tokens = sampling.sample(logits, [goal.sampler for goal in goals.values()])
    return {place: refusals.get(i, tokens[i]) for i, place in enumerate(goals)}
