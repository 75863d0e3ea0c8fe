"""Edits of different rows that are made together: the k-th edit of each of these rows, all of one form. The edits of
one group move along directions, or replace the value of the site."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from steerserve.rules.steering.edits import RAW, RESIDUAL, Edit, Feature, Source
from steerserve.rules.steering.vector import Direction
from steerserve.worker.hooks.parts import Part, Span
from steerserve.worker.hooks.readings import Directions, Encoded, index_of, length
from steerserve.worker.sae.canonical import NEEDS_K, Sae


class SiteValue:
    """The value of the rows of a site while their edits are made: `base` + `change`, float32 [n, T, width]. `x` is the
    value before the edits, and `base` is `x` but for the numbers of `replaced`, a mask that is None where there are
    none: they were replaced by others, and `change` says what was done to them after that."""

    def __init__(self, x: Tensor) -> None:
        self.x = self.base = x
        self.change = torch.zeros_like(x)
        self.replaced: Tensor | None = None

    @property
    def now(self) -> Tensor:
        """The value so far."""
        return self.base + self.change

    def put(self, value: Tensor, places: Tensor) -> None:
        """Replace the numbers at these places, bool [n, T, width], by those of `value`, to the last bit."""
        self.base = torch.where(places, value, self.base)
        self.change = self.change.masked_fill(places, 0.0)
        self.replaced = places if self.replaced is None else self.replaced | places

    def fold(self) -> None:
        """Say what was replaced as a change of `x`."""
        if self.replaced is not None:
            self.change = self.change + (self.base - self.x)
            self.base, self.replaced = self.x, None


class RowGroup:
    """Edits of different rows that are made together: the k-th edit of each of these rows, all of one form.

    `rows` are the places of the rows among the `count` rows of the site; None where they are all of them. `is_masked`:
    some of the edits act at some positions only.

    `gate` is the part of the decisions of the site (`Gates`) that are those of the edits; None where no edit has a
    condition.
    """

    def __init__(
        self, members: Sequence[tuple[int, Part, Edit]], device: torch.device, count: int
    ) -> None:
        self.members = members
        self.gate: slice | None = None
        self.is_masked = any(
            part.steering.mask(edit, 0, 1) is not None for _, part, edit in members
        )
        self.rows = index_of([row for row, _, _ in members], count, device)

    def rows_of(self, value: Tensor) -> Tensor:
        """The rows of the group, of a tensor with all rows of the site."""
        return value if self.rows is None else value[self.rows]


class EditGroup(RowGroup):
    """Edits that move along directions. `sae` is the SAE whose features are edited."""

    def __init__(
        self,
        members: Sequence[tuple[int, Part, Edit]],
        sae: Sae | None,
        directions: Directions,
        device: torch.device,
        count: int,
    ) -> None:
        super().__init__(members, device, count)
        self.sae = sae
        edits = [edit for _, _, edit in members]
        targets = [edit.target for edit in edits]
        columns = [
            [target.factor for target in targets],
            [target.offset for target in targets],
            [target.low for target in targets],
            [target.high for target in targets],
            [edit.strength for edit in edits],
        ]
        # one transfer for all of them
        numbers = torch.tensor(columns, dtype=torch.float32, device=device)[..., None]
        self.factor, self.offset, self.low, self.high, self.strength = numbers.unbind()
        self.reads: Tensor | None = None
        self.is_added = edits[0].is_added
        self.is_residual = self.is_added and edits[0].unit == RESIDUAL
        self._is_matched = any(edit.source is not None for edit in edits)
        if sae is not None:
            features = [edit.at.index for edit in edits if isinstance(edit.at, Feature)]
            self.features = features
            self.narrowed = None if sae.activation in NEEDS_K else sae.narrowed(features)
            writes = sae.written(features)
            if self.is_added:
                writes = torch.stack([sae.direction({feature: 1.0}) for feature in features])
            self.writes = writes.to(device)
            return
        units, written = [], []
        for edit in edits:
            assert isinstance(edit.at, Direction)
            raw, unit = directions.at(edit.at, device)
            units.append(unit)
            if edit.to is not None:
                written.append(directions.at(edit.to, device)[1] - unit)
            else:
                written.append(raw if edit.is_added and edit.unit == RAW else unit)
        self.reads = torch.stack(units)
        self.writes = torch.stack(written)

    def make_edits(
        self, value: SiteValue, encoded: Encoded, span: Span, opened: Tensor | None
    ) -> Callable[[int], Tensor]:
        """Make the edits where they are open, bool [g, T]; None means everywhere. Returns what gives the part of |x| by
        which a member changed the value at each position, [T]."""
        x = value.x
        moved = self._moved(value, encoded, span)
        scale = self._scale(x)
        if scale is not None:
            moved = moved * scale[..., 0]
        if opened is not None:
            moved = torch.where(opened, moved, moved.new_zeros(()))
        made = moved[..., None] * self.writes[:, None]
        if self.rows is None:
            value.change += made
        else:
            value.change.index_add_(0, self.rows, made)
        return lambda at: moved[at].abs() * self.writes[at].norm() / length(x[self.members[at][0]])

    def _moved(self, value: SiteValue, encoded: Encoded, span: Span) -> Tensor:
        """How far each row moves along its direction at each position, [g, T]."""
        x = value.x
        if self.is_added:
            amount = self.offset.expand(-1, x.shape[1])
            return amount * length(self.rows_of(x)) if self.is_residual else amount
        if self.reads is None:
            read = self._activations(self.rows_of(x), encoded)
        else:
            read = (self.rows_of(value.now) * self.reads[:, None]).sum(-1)
        offset = self._matched(span, x.shape[1]) if self._is_matched else self.offset
        target = (read * self.factor + offset).clamp(self.low, self.high)
        return self.strength * (target - read)

    def _matched(self, span: Span, tokens: int) -> Tensor:
        """The offsets of the targets at each position of the pass, [g, T], where a source has several activations."""
        found = []
        for _, part, edit in self.members:
            target, source = edit.target, edit.source
            if source is None:
                found.append([target.offset] * tokens)
                continue
            way, rows = 1.0 - target.factor, source_rows(part, edit, source, span, tokens)
            found.append([way * source.activations[row] for row in rows])
        return torch.tensor(found, dtype=torch.float32, device=self.offset.device)

    def _scale(self, x: Tensor) -> Tensor | None:
        """What the SAE multiplies its output with at each position, [g, T, 1]; None where it does not."""
        if self.sae is None or self.sae.normalisation == "none" or self.is_added:
            return None
        return self.sae.row_scale(self.rows_of(x))

    def _activations(self, x: Tensor, encoded: Encoded) -> Tensor:
        assert self.sae is not None
        if self.narrowed is not None:
            return self.narrowed.encode_each(x)
        return torch.stack(
            [
                encoded.activations(self.sae, part, rows)[:, feature]
                for (_, part, _), feature, rows in zip(self.members, self.features, x, strict=True)
            ]
        )


class ReplaceGroup(RowGroup):
    """Edits that replace values of the site, or go a part of the way. `heads` is the number of heads of the site; 0
    where it has none."""

    def __init__(
        self,
        members: Sequence[tuple[int, Part, Edit]],
        device: torch.device,
        heads: int,
        count: int,
    ) -> None:
        super().__init__(members, device, count)
        self._device = device
        values, firsts, ways, columns = [], [0], [], []
        for _, _, edit in members:
            assert isinstance(edit.at, Direction)
            assert edit.source is not None
            numbers = torch.from_numpy(np.frombuffer(edit.at.data, "<f4").copy())
            raw = numbers.view(edit.source.rows, -1).to(device)
            values.append(raw)
            firsts.append(firsts[-1] + len(raw))
            ways.append(edit.strength * (1.0 - edit.target.factor))
            columns.append(_columns(edit.source.heads, heads, raw.shape[1], device))
        self._values = torch.cat(values)
        self._firsts = firsts[:-1]
        self._ways = torch.tensor(ways, dtype=torch.float32, device=device)[:, None, None]
        self._columns = torch.stack(columns)[:, None]
        self._is_whole = torch.tensor([way == 1.0 for way in ways], device=device)[:, None, None]
        self._has_whole, self._has_part = (
            any((way == 1.0) == one for way in ways) for one in (True, False)
        )
        is_one = all(len(one) == 1 for one in values)
        self._source = torch.stack(values) if is_one else None

    def make_edits(
        self, value: SiteValue, encoded: Encoded, span: Span, opened: Tensor | None
    ) -> Callable[[int], Tensor]:
        """Make the edits, as `EditGroup.make_edits`."""
        tokens = value.x.shape[1]
        source = self._source
        if source is None:
            source = self._values[self._places(span, tokens)]
        source = source.expand(-1, tokens, -1)
        places = self._columns.expand_as(source)
        if opened is not None:
            places = places & opened[..., None]
        base, done = value.base, value.change

        def moved() -> tuple[Tensor, Tensor]:
            """The rows before and after the edits."""
            before = self.rows_of(base) + self.rows_of(done)
            return before, torch.where(places, before + self._ways * (source - before), before)

        if self._has_part:
            before, after = moved()
            part = places & ~self._is_whole if self._has_whole else places
            change = torch.where(part, after - before, before.new_zeros(()))
            if self.rows is None:
                value.change = value.change + change
            else:
                value.change = value.change.index_add(0, self.rows, change)
        if self._has_whole:
            whole = places & self._is_whole if self._has_part else places
            value.put(_in_all(self.rows, source, value.x), _in_all(self.rows, whole, value.x))

        def size(at: int) -> Tensor:
            before, after = moved()
            return length(after[at] - before[at]) / length(value.x[self.members[at][0]])

        return size

    def _places(self, span: Span, tokens: int) -> Tensor:
        """For each edit the row of its source at each position of the pass, [g, T]."""
        found = []
        for (_, part, edit), first in zip(self.members, self._firsts, strict=True):
            assert edit.source is not None
            rows = source_rows(part, edit, edit.source, span, tokens)
            found.append([first + row for row in rows])
        return torch.tensor(found, device=self._device)


def _in_all(rows: Tensor | None, some: Tensor, like: Tensor) -> Tensor:
    """Numbers of these rows as numbers of all rows, 0 for the others."""
    if rows is None:
        return some
    return torch.zeros(like.shape, dtype=some.dtype, device=like.device).index_copy_(0, rows, some)


def source_rows(part: Part, edit: Edit, source: Source, span: Span, tokens: int) -> list[int]:
    """The row of its source that an edit writes at each position of the pass. Where it does not act, any row."""
    start = span.first[part.row]
    mask = part.steering.mask(edit, start, tokens)
    rank, found = part.steering.rank(edit, start), []
    for is_in in [True] * tokens if mask is None else mask:
        found.append(min(rank, source.rows - 1))
        rank += is_in
    return found


def _columns(chosen: Sequence[int], heads: int, width: int, device: torch.device) -> Tensor:
    """Whether each number of the width is written, bool [width]."""
    if not chosen:
        return torch.ones(width, dtype=torch.bool, device=device)
    mask = torch.zeros(heads, width // heads, dtype=torch.bool, device=device)
    mask[torch.tensor(chosen, device=device)] = True
    return mask.view(-1)
