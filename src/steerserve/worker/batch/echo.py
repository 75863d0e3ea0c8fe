"""Prefill passes of rows that score the tokens of their prompts: how long they may be, and the reading of their
logits."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from steerserve.rules.inference.stepping import WIDTH
from steerserve.worker.rows.rows import BatchRow, Scoring

ECHO_LOGITS = 1 << 25
"""The most logits of a prefill pass that keeps the logits after every token."""


def is_in(rows: Sequence[BatchRow]) -> bool:
    """Whether the tokens of the prompt of any of these rows are scored."""
    return any(isinstance(row.goal, Scoring) and row.goal.is_echoed for row in rows)


def most(rows: Sequence[BatchRow], vocabulary: int, otherwise: int) -> int:
    """The most tokens of these rows in one prefill pass, at most `otherwise`. A pass that keeps the logits after every
    token has fewer where the logits would take too much memory."""
    if not is_in(rows):
        return otherwise
    tokens = ECHO_LOGITS // vocabulary
    return max(1, min(otherwise, tokens // WIDTH * WIDTH or tokens))


def wanted(
    rows: Sequence[BatchRow], parts: Sequence[Sequence[int]], errors: dict[BatchRow, Exception]
) -> list[int] | None:
    """For each row of a pass over these parts of their prompts, the number of the first token after which logits are
    needed. None where no token of a prompt is scored. Errors of rows go to `errors`."""
    if not is_in(rows):
        return None
    firsts = []
    for row, part in zip(rows, parts, strict=True):
        first = len(part) - 1
        if isinstance(row.goal, Scoring) and row.goal.is_echoed:
            try:
                first = min(first, row.goal.reads_from(row) - row.filled)
            except Exception as error:
                errors[row] = error
        firsts.append(max(0, first))
    return firsts


def score(
    rows: Sequence[BatchRow],
    firsts: Sequence[int],
    every: Sequence[Tensor],
    errors: dict[BatchRow, Exception],
) -> None:
    """Score the tokens of the prompts after a pass. `every` has the logits [tokens, vocabulary] of each row from its
    token of this number on; each part begins where the row was filled before. The errors of rows that cannot be scored
    go to `errors`, and a row that has one is not scored."""
    for row, first, logits in zip(rows, firsts, every, strict=True):
        if isinstance(row.goal, Scoring) and row.goal.is_echoed and row not in errors:
            try:
                row.goal.read_prompt(row, logits, row.filled + first)
            except Exception as error:
                # log-probabilities over a large vocabulary may run out of memory
                errors[row] = error
