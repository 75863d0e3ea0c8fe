"""The readings of one row along directions."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from steerserve.parts.readings.form import Readings
from steerserve.parts.row_part import RowFacts, RowPart


class ReadingsRow(RowPart):
    """The projections on the directions at the position from which the last token was drawn."""

    def __init__(self, form: Readings, _facts: RowFacts) -> None:
        self.directions = form.directions
        self._last: Sequence[float] = ()

    def draw(self, token: int, logits: Tensor, readings: Sequence[float]) -> None:
        self._last = readings

    def chunk(self, *, is_last: bool) -> Sequence[float]:
        return self._last
