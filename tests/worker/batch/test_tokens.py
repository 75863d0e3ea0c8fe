"""The next tokens of rows whose parts rule out tokens, beside rows of other maskers and rows of none."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from steerserve.errors import Refusal
from steerserve.messages import Suppressed
from steerserve.parts.row_part import RowPart
from steerserve.worker.batch import tokens
from steerserve.worker.rows import sampling
from steerserve.worker.rows.goals import Writing
from steerserve.worker.rows.rows import BatchRow
from steerserve.worker.rows.text import TextStream

VOCABULARY = 8


class Forbids(RowPart):
    """Forbids the tokens up to one. A row whose part forbids all tokens cannot go on."""

    def __init__(self, upto: int, masker: ForbidsTogether) -> None:
        self.upto, self.masker = upto, masker


class ForbidsTogether:
    def __init__(self) -> None:
        self.calls: list[list[int | None]] = []

    def mask(
        self, logits: Tensor, parts: Sequence[RowPart | None]
    ) -> tuple[Tensor, dict[int, Refusal]]:
        bounds = [part.upto if isinstance(part, Forbids) else None for part in parts]
        self.calls.append(bounds)
        masked, refused = logits.clone(), {}
        for row, upto in enumerate(bounds):
            if upto is not None:
                masked[row, : upto + 1] = -torch.inf
            if upto == VOCABULARY - 1:
                refused[row] = Refusal("CONSTRAINED_OUTPUT_INVALID", "no token is left")
        return masked, refused


def row(*parts: RowPart) -> BatchRow:
    sampler = sampling.Sampler(0.0, 1.0, 1.0, None, None)
    goal = Writing(sampler, TextStream(lambda ids, **_: "", [], [], {}))
    made = BatchRow(1, 0, [1], Suppressed(), goal)
    made.parts = list(parts)
    return made


def test_each_masker_sees_its_rows_together_and_no_other_row_is_masked() -> None:
    one, other = ForbidsTogether(), ForbidsTogether()
    rows = [row(Forbids(2, one)), row(), row(Forbids(4, other)), row(Forbids(5, one))]
    falling = -torch.arange(VOCABULARY, dtype=torch.float32)
    drawn = tokens.sampled(falling.repeat(4, 1), rows)
    assert [drawn[one] for one in rows] == [3, 0, 5, 6]
    assert one.calls == [[2, None, None, 5]]
    assert other.calls == [[None, None, 4, None]]


def test_a_row_that_cannot_go_on_is_refused_beside_others() -> None:
    masker = ForbidsTogether()
    rows = [row(Forbids(VOCABULARY - 1, masker)), row(Forbids(0, masker))]
    falling = -torch.arange(VOCABULARY, dtype=torch.float32)
    refusal, token = tokens.sampled(falling.repeat(2, 1), rows).values()
    assert isinstance(refusal, Refusal)
    assert token == 1
