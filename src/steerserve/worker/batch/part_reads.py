"""Gives the goals and the parts of rows the values that they read at attached SAEs and at sites: a pass copies the
values, and goals and parts get the copies after the pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import torch
from torch import Tensor

from steerserve.parts.row_part import Copied, Read, Reader, RowPart, SaeRead, SiteRead
from steerserve.worker.batch.planned import Pass
from steerserve.worker.hooks.called_sites import PlaceName
from steerserve.worker.hooks.places import Catch, Catches, SiteCatches, name_of
from steerserve.worker.model.results import PassEnded, Status
from steerserve.worker.rows.goals import StateReading
from steerserve.worker.rows.rows import BatchRow


@dataclass(slots=True)
class _Copy:
    """What a reader gets of one SAE, or of the sites of one read, in the pass that runs: of each part's row, which is
    at a place in the pass, a slice of its tokens there."""

    reader: Reader
    read: Read
    rows: list[BatchRow] = field(default_factory=list)
    parts: list[RowPart] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    wanted: list[slice] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    values: list[Tensor | None] = field(init=False)
    is_failed: bool = False

    def __post_init__(self) -> None:
        count = len(self.read.sites) if isinstance(self.read, SiteRead) else 1
        self.values = [None] * count

    def copy(self, number: int, value: Tensor, delta: Tensor | None) -> None:
        """Copy the values of the site with this number from those of all rows [rows, T, width]; `delta`
        [rows or 1, 1 or T, width] is what was added. Padding may follow the positions. Other rows have a part in this
        pass, so nothing is raised."""
        if self.is_failed:
            return
        try:
            added = None if self.read.is_before else delta
            self.values[number] = self._copied(value.detach(), added)
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
        self.is_failed, self.values = True, []
        refusal = self.reader.fail(self.parts, error)
        for row in self.rows if refusal is not None else ():
            row.fault = row.fault or refusal

    def taken(self) -> Copied | None:
        """What the reader gets; None where nothing was copied, or the one row ends."""
        if self.is_failed or all(row.fault is not None for row in self.rows):
            return None
        values = [value for value in self.values if value is not None]
        if len(values) < len(self.values):
            return None
        sizes = [wanted.stop - wanted.start for wanted in self.wanted]
        return Copied(self.read, self.parts, self.firsts, sizes, values)


class PartReads:
    """Owner of the copies of the pass that runs."""

    def __init__(self) -> None:
        self._copies: dict[Reader, dict[Read, _Copy]] = {}
        self._is_read_by_all = True

    def expect(self, planned: Pass, *, may_end: bool = False) -> Catches:
        """What copies the values that the parts of the rows read in this pass. Where it `may_end`, the last copy ends
        it, unless a part reads nothing of it: a later pass may read this row at a later site."""
        self._copies = {}
        self._is_read_by_all = True
        for place, (row, (start, count)) in enumerate(
            zip(planned.rows, planned.spans, strict=True)
        ):
            for part in row.parts if row.fault is None else ():
                for read in part.reads_in_pass():
                    self._expect(part, read, row, place, start, start + count)
        saes: dict[int, list[Catch]] = {}
        sites: dict[PlaceName, SiteCatches] = {}
        for copies in self._copies.values():
            for read, copy in copies.items():
                if isinstance(read, SaeRead):
                    saes.setdefault(read.number, []).append(partial(copy.copy, 0))
                    continue
                for number, site in enumerate(read.sites):
                    caught = sites.setdefault(name_of(site), SiteCatches(site))
                    catches = caught.before if read.is_before else caught.after
                    catches.append(partial(copy.copy, number))
        if may_end and self._is_read_by_all and not saes:
            _end_after(list(sites.values()))
        return Catches(saes, sites)

    def _expect(
        self, part: RowPart, read: Read, row: BatchRow, place: int, start: int, end: int
    ) -> None:
        reader = part.reader
        try:
            low, high = part.span(read, start, end)
        except Exception as error:
            _Copy(reader, read, [row], [part]).fail(error)
            low = high = end
        if low >= high:
            self._is_read_by_all = False
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


def _end_after(sites: Sequence[SiteCatches]) -> None:
    """Let the last of these copies end the pass."""
    left = sum(len(site.before) + len(site.after) for site in sites)

    def counted(catch: Catch) -> Catch:
        def copy(value: Tensor, delta: Tensor | None) -> None:
            nonlocal left
            catch(value, delta)
            left -= 1
            if not left:
                raise PassEnded(Status.READ)

        return copy

    for site in sites:
        site.before, site.after = (
            [counted(one) for one in site.before],
            [counted(one) for one in site.after],
        )


@contextmanager
def reading_states(
    planned: Pass, *, is_alone: bool
) -> Iterator[dict[int, list[Callable[[], None]]]]:
    """While open, the pass copies the values of the sites that its rows read, at the tokens that it reads. Gives, by
    the place of a row, what takes the copies in. In a pass of the batch padding follows the tokens; in a pass over one
    row (`is_alone`) tokens that the model reads again may come before them. Where nobody reads the logits after a pass
    of the batch, the last of the sites ends it."""
    goals = {
        place: cast(StateReading, row.goal)
        for place, row in enumerate(planned.rows if planned.is_prefill else ())
        if row.goal.sites
    }
    values: dict[int, list[Callable[[], None]]] = {place: [] for place in goals}
    left = sum(len(goal.sites) for goal in goals.values())
    may_end = planned.is_only_read and not is_alone

    def catch(place: int, number: int, value: Tensor) -> None:
        nonlocal left
        size = len(planned.tokens[place])
        span = slice(-size, None) if is_alone else slice(0, size)
        values[place].append(goals[place].catch(number, value[place, span]))
        left -= 1
        if left == 0 and may_end:
            raise PassEnded(Status.READ)

    with ExitStack() as hooks:
        for place, goal in goals.items():
            for number, site in enumerate(goal.sites):
                hooks.callback(site.watch(partial(catch, place, number)).remove)
        yield values
