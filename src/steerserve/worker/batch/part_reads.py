"""Gives the parts of rows the values that they read at attached SAEs: a pass copies them, and the parts get the copies
after the pass."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from steerserve.parts.row_part import Copied, Reader, RowPart, SaeRead
from steerserve.worker.batch.planned import Pass
from steerserve.worker.hooks.places import Catch
from steerserve.worker.rows.rows import BatchRow


@dataclass(slots=True)
class _Copy:
    """What a reader gets of one SAE in the pass that runs: of each part's row, which is at a place in the pass, a slice
    of its tokens there."""

    reader: Reader
    read: SaeRead
    rows: list[BatchRow] = field(default_factory=list)
    parts: list[RowPart] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    wanted: list[slice] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    values: Tensor | None = None

    def copy(self, value: Tensor, delta: Tensor | None) -> None:
        """Copy the values from those of all rows [rows, T, d_in]; `delta` [rows or 1, 1 or T, d_in] is what was added.
        Padding may follow the positions. Other rows have a part in this pass, so nothing is raised."""
        try:
            self.values = self._copied(value.detach(), None if self.read.is_before else delta)
        except Exception as error:
            self.fail(error)

    def _copied(self, value: Tensor, delta: Tensor | None) -> Tensor:
        count = len(self.places)
        if value.shape[1] == 1 and delta is None and self.places[-1] == count - 1:
            return value[:count, 0].clone()  # of the first rows, whose places rise
        found = []
        for place, wanted in zip(self.places, self.wanted, strict=True):
            values = value[place, wanted]
            if delta is not None:
                added = delta[place if len(delta) > 1 else 0]
                values = values + (added[wanted] if len(added) > 1 else added)
            found.append(values)
        return found[0] if len(found) == 1 and delta is not None else torch.cat(found)

    def fail(self, error: Exception) -> None:
        """The rows end with this error of their parts once their tokens are drawn, unless they go on without."""
        self.values = None
        refusal = self.reader.fail(self.parts, error)
        for row in self.rows if refusal is not None else ():
            row.fault = row.fault or refusal

    def taken(self) -> Copied | None:
        """What the reader gets; None where nothing was copied, or the one row ends."""
        if self.values is None or all(row.fault is not None for row in self.rows):
            return None
        sizes = [wanted.stop - wanted.start for wanted in self.wanted]
        return Copied(self.read, self.parts, self.firsts, sizes, self.values)


class PartReads:
    """Owner of the copies of the pass that runs."""

    def __init__(self) -> None:
        self._copies: dict[Reader, dict[SaeRead, _Copy]] = {}

    def expect(self, planned: Pass) -> dict[int, list[Catch]]:
        """What copies the values that the parts of the rows read in this pass, by the numbers of the SAEs."""
        self._copies = {}
        for place, (row, (start, count)) in enumerate(
            zip(planned.rows, planned.spans, strict=True)
        ):
            for part in row.parts if row.fault is None else ():
                for read in part.reads_in_pass():
                    self._expect(part, read, row, place, start, start + count)
        catches: dict[int, list[Catch]] = {}
        for copies in self._copies.values():
            for read, copy in copies.items():
                catches.setdefault(read.number, []).append(copy.copy)
        return catches

    def _expect(
        self, part: RowPart, read: SaeRead, row: BatchRow, place: int, start: int, end: int
    ) -> None:
        reader = part.reader
        try:
            low, high = part.span(read, start, end)
        except Exception as error:
            _Copy(reader, read, [row], [part]).fail(error)
            return
        if low >= high:
            return
        copies = self._copies.setdefault(reader, {})
        copy = copies.get(read) or copies.setdefault(read, _Copy(reader, read))
        copy.rows.append(row)
        copy.parts.append(part)
        copy.places.append(place)
        copy.wanted.append(slice(low - start, high - start))
        copy.firsts.append(low)

    def settle(self) -> None:
        """The pass has succeeded: give the readers what was copied."""
        every, self._copies = self._copies, {}
        for reader, copies in every.items():
            try:
                if found := [one for copy in copies.values() if (one := copy.taken()) is not None]:
                    reader.take_pass(found)
            except Exception as error:
                for copy in copies.values():
                    copy.fail(error)

    def discard(self) -> None:
        """The pass has failed or was stopped: drop what was copied. A pass that was stopped runs again."""
        self._copies = {}
