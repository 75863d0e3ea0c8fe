"""Gives the parts of rows the values that they read at attached SAEs: a pass copies them, and the parts get the copies
after the pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from steerserve.parts.row_part import RowPart, SaeRead
from steerserve.worker import memory
from steerserve.worker.hooks.places import Catch
from steerserve.worker.observers.observers import Observer, Span
from steerserve.worker.rows.rows import BatchRow


@dataclass(slots=True)
class _Copy:
    """The positions [low, high) of a row whose values a part wants of a pass. The row is at `place` in the pass, and
    its first token there at the position `start`."""

    row: BatchRow
    part: RowPart
    read: SaeRead
    place: int
    start: int
    low: int
    high: int
    values: Tensor | None = None

    def copy(self, value: Tensor, delta: Tensor | None) -> None:
        """Copy the values from those of all rows [rows, T, d_in]; `delta` [rows or 1, 1 or T, d_in] is what was added.
        Padding may follow the positions. Other rows have a part in this pass, so nothing is raised."""
        wanted = slice(self.low - self.start, self.high - self.start)
        try:
            values = value[self.place, wanted].detach()
            if delta is None or self.read.is_before:
                self.values = values.clone()
            else:
                added = delta[self.place if len(delta) > 1 else 0]
                self.values = values + (added[wanted] if len(added) > 1 else added)
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """The row ends with this error of its part once its tokens are drawn."""
        self.row.fault = self.row.fault or self.part.refusal(error)
        memory.recover(error)


class PartReads(Observer):
    """Owner of the copies of the pass that runs."""

    def __init__(self) -> None:
        self._copies: list[_Copy] = []

    def expect(
        self, rows: Sequence[BatchRow], spans: Sequence[Span]
    ) -> Iterable[tuple[int, Catch]]:
        self._copies = []
        by_number: dict[int, list[_Copy]] = {}
        for place, (row, (start, count)) in enumerate(zip(rows, spans, strict=True)):
            for part in row.parts if row.fault is None else ():
                for read in part.reads:
                    copy = _Copy(row, part, read, place, start, start, start)
                    try:
                        copy.low, copy.high = part.span(read, start, start + count)
                    except Exception as error:
                        copy.fail(error)
                    if copy.low < copy.high:
                        self._copies.append(copy)
                        by_number.setdefault(read.number, []).append(copy)
        return [(number, partial(_copy_each, copies)) for number, copies in by_number.items()]

    def settle(self) -> None:
        copies, self._copies = self._copies, []
        for copy in copies:
            if copy.values is not None and copy.row.fault is None:
                try:
                    copy.part.read_values(copy.read, copy.values, copy.low)
                except Exception as error:
                    copy.fail(error)

    def discard(self) -> None:
        self._copies = []


def _copy_each(copies: Sequence[_Copy], value: Tensor, delta: Tensor | None) -> None:
    for copy in copies:
        copy.copy(value, delta)
