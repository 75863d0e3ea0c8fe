"""The edits of the rows of one pass at one site.

All numbers are computed in float32 from the value x of the site, and each row is computed from nothing but itself: one
product and one sum over the width for each number that an edit reads. So a row has the same bits in every batch. Where
the activations of an SAE depend on each other, the row is encoded whole, in blocks of as many positions as a prefill
pass is padded to.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from steerserve.rules.inference.stepping import WIDTH
from steerserve.rules.steering.edits import (
    RAW,
    RESIDUAL,
    AllOf,
    Condition,
    Edit,
    Feature,
    When,
)
from steerserve.rules.steering.vector import Direction
from steerserve.worker.rows.steering import RowSteering, needs_record
from steerserve.worker.sae.canonical import NEEDS_K, Sae

_REMEMBERED = 4096
"""The directions that are kept on their devices."""

Reads = Feature | Direction


class Directions:
    """The directions of edits on their devices, with the directions of length 1."""

    def __init__(self) -> None:
        self._held: OrderedDict[tuple[Direction, torch.device], tuple[Tensor, Tensor]] = (
            OrderedDict()
        )

    def at(self, direction: Direction, device: torch.device) -> tuple[Tensor, Tensor]:
        """The direction v and v / |v|, each float32 [width]. The length is taken in double precision."""
        name = direction, device
        held = self._held.get(name)
        if held is None:
            raw = torch.from_numpy(np.frombuffer(direction.data, "<f4").astype(np.float64))
            held = raw.float().to(device), (raw / raw.norm()).float().to(device)
            self._held[name] = held
            if len(self._held) > _REMEMBERED:
                self._held.popitem(last=False)
        return held


@dataclass(frozen=True, slots=True)
class Part:
    """What one row of a pass does at one site.

    Attributes:
        row: the place of the row in the pass.
        values: the sum of the values of features that are added at all positions, float32 [width]; None for nothing.
        edits: the edits that may act in this pass, in their order.
        reads: the conditions that read here, for edits at this site and at later ones.
        counted: the edits among `values` that are counted.
        watched: the directions on which the row is projected here, at its last position in the pass.
    """

    row: int
    steering: RowSteering
    values: Tensor | None = None
    edits: tuple[Edit, ...] = ()
    reads: tuple[Condition, ...] = ()
    counted: tuple[Edit, ...] = ()
    keeps_norm: bool = False
    watched: tuple[Direction, ...] = ()

    @property
    def is_used(self) -> bool:
        """Whether the row does anything here."""
        read = self.reads or self.watched
        return self.values is not None or bool(self.edits or self.counted or read)

    @property
    def keys(self) -> set[str]:
        """The SAEs that the row reads or writes here."""
        at = [edit.at for edit in (*self.edits, *self.counted)]
        reads = [condition.reads for condition in self.reads]
        return {one.key for one in [*at, *reads] if isinstance(one, Feature)}


@dataclass(frozen=True, slots=True)
class Span:
    """The positions of a pass: the columns of a value are the positions from `first[row]` on, and `size[row]` of them
    are tokens of the row."""

    first: Sequence[int]
    size: Sequence[int]


@dataclass(slots=True)
class Readings:
    """What the conditions of a pass have read so far: for each row and reading, a number [T] for each position."""

    held: dict[tuple[int, Reads], Tensor] = field(default_factory=dict)


class Group:
    """Edits of different rows that are made together: the k-th edit of each of these rows, all of one form.

    `rows` are the places of the rows among those of the site. `sae` is the SAE whose features are edited.
    """

    def __init__(
        self,
        members: Sequence[tuple[int, Part, Edit]],
        sae: Sae | None,
        directions: Directions,
        device: torch.device,
        count: int,
    ) -> None:
        self.members = members
        self.sae = sae
        edits = [edit for _, _, edit in members]
        rows = [row for row, _, _ in members]
        self.rows = None if rows == list(range(count)) else torch.tensor(rows, device=device)

        def column(values: Sequence[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)[:, None]

        self.factor = column([edit.target.factor for edit in edits])
        self.offset = column([edit.target.offset for edit in edits])
        self.low = column([edit.target.low for edit in edits])
        self.high = column([edit.target.high for edit in edits])
        self.strength = column([edit.strength for edit in edits])
        self.reads: Tensor | None = None
        self.is_added = edits[0].is_added
        self.is_residual = self.is_added and edits[0].unit == RESIDUAL
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

    def of(self, value: Tensor) -> Tensor:
        """The rows of the group, of a tensor with all rows of the site."""
        return value if self.rows is None else value[self.rows]

    def moved(self, x: Tensor, y: Tensor | None, encoded: Encoded) -> Tensor:
        """How far each row moves along its direction at each position, [g, T]; `x` [n, T, width] is the value before
        the edits, and `y` the value so far."""
        if self.is_added:
            amount = self.offset.expand(-1, x.shape[1])
            return amount * _length(self.of(x)) if self.is_residual else amount
        if self.reads is None:
            read = self._activations(self.of(x), encoded)
        else:
            assert y is not None
            read = (self.of(y) * self.reads[:, None]).sum(-1)
        target = (read * self.factor + self.offset).clamp(self.low, self.high)
        return self.strength * (target - read)

    def scale(self, x: Tensor) -> Tensor | None:
        """What the SAE multiplies its output with at each position, [g, T, 1]; None where it does not."""
        if self.sae is None or self.sae.normalisation == "none" or self.is_added:
            return None
        return self.sae.row_scale(self.of(x))

    def _activations(self, x: Tensor, encoded: Encoded) -> Tensor:
        assert self.sae is not None
        if self.narrowed is not None:
            return self.narrowed.encode_each(x)
        return torch.stack(
            [
                encoded.of(self.sae, part.row, rows)[:, feature]
                for (_, part, _), feature, rows in zip(self.members, self.features, x, strict=True)
            ]
        )


class Encoded:
    """The activations of rows whose SAE chooses among all features, computed once in a pass."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], Tensor] = {}

    def of(self, sae: Sae, row: int, x: Tensor) -> Tensor:
        """The activations [T, d_sae] of the row x [T, width]."""
        name = id(sae), row
        if name not in self._held:
            self._held[name] = torch.cat([sae.encode(block) for block in x.split(WIDTH)])
        return self._held[name]


class SiteEdits:
    """What the rows of a pass do at one site. It does not change from pass to pass while the rows and their edits stay
    the same. `saes` has, by key, the SAEs whose features are read or edited here; `written` are those that write.
    `is_acting`: something is changed or counted here."""

    def __init__(
        self,
        parts: Sequence[Part],
        saes: Mapping[str, Sae],
        directions: Directions,
        device: torch.device,
    ) -> None:
        self.parts = parts
        self._saes = saes
        self._directions = directions
        self._device = device
        self._index = torch.tensor([part.row for part in parts], device=device)
        values = [part.values for part in parts]
        given = next((value for value in values if value is not None), None)
        self._values: Tensor | None = None
        if given is not None:
            zero = torch.zeros_like(given)
            self._values = torch.stack([zero if v is None else v for v in values])[:, None]
        self._added = self._groups([[e for e in part.edits if e.is_added] for part in parts])
        self._others = self._groups([[e for e in part.edits if not e.is_added] for part in parts])
        kept = [part.keeps_norm for part in parts]
        self._keeps: Tensor | None = None
        if any(kept):
            self._keeps = torch.tensor(kept, device=device)[:, None, None]
        self._narrowed = {
            one.reads: saes[one.reads.key].narrowed([one.reads.index])
            for part in parts
            for one in part.reads
            if isinstance(one.reads, Feature) and saes[one.reads.key].activation not in NEEDS_K
        }

        self.written = frozenset(
            key for part in parts for key in part.keys if part.edits or part.values is not None
        )
        self.is_acting = bool(self._added or self._others or self._values is not None) or any(
            part.counted for part in parts
        )

    def _groups(self, lists: Sequence[Sequence[Edit]]) -> list[Group]:
        """The k-th edits of all rows, for each k, in groups of one form."""
        groups = []
        for k in range(max(map(len, lists), default=0)):
            forms: dict[tuple[str | None, bool], list[tuple[int, Part, Edit]]] = {}
            for row, (part, edits) in enumerate(zip(self.parts, lists, strict=True)):
                if k < len(edits):
                    edit = edits[k]
                    form = edit.key, edit.is_added and edit.unit == RESIDUAL
                    forms.setdefault(form, []).append((row, part, edit))
            for (key, _), members in forms.items():
                sae = None if key is None else self._saes[key]
                groups.append(Group(members, sae, self._directions, self._device, len(self.parts)))
        return groups

    # ------------------------------------------------------------- in a pass

    def read(self, value: Tensor, span: Span, readings: Readings) -> None:
        """Read what conditions and readings need of the value [rows, T, width] of the site."""
        for part in self.parts:
            if part.watched:
                last = value[part.row, span.size[part.row] - 1].float()
                for direction in part.watched:
                    unit = self._directions.at(direction, self._device)[1]
                    part.steering.see(direction, float((last * unit).sum(-1)))
            x = value[part.row].float() if part.reads else None
            for condition in part.reads:
                assert x is not None
                name = part.row, condition.reads
                if name not in readings.held:
                    readings.held[name] = self._reading(condition.reads, x)
                if needs_record(condition):
                    read = readings.held[name][: span.size[part.row]].tolist()
                    part.steering.record(condition, span.first[part.row], read)

    def _reading(self, reads: Reads, x: Tensor) -> Tensor:
        """What is read of one row x [T, width], float32 [T]."""
        if isinstance(reads, Direction):
            return (x * self._directions.at(reads, self._device)[1]).sum(-1)
        narrowed = self._narrowed.get(reads)
        if narrowed is not None:
            return narrowed.encode_each(x[None])[0]
        sae = self._saes[reads.key]
        return torch.cat([sae.encode(block) for block in x.split(WIDTH)])[:, reads.index]

    def change(self, value: Tensor, span: Span, readings: Readings) -> Tensor:
        """What is added to the value [rows, T, width], float32: exactly 0 where nothing changes."""
        is_whole = len(self.parts) == value.shape[0]
        x = (value if is_whole else value[self._index]).float().contiguous()
        change = torch.zeros_like(x)
        if self._values is not None:
            change = change + self._values
        encoded = Encoded()
        for group in self._added:
            self._make(group, x, None, change, encoded, span, readings)
        for group in self._others:
            y = x + change if group.reads is not None else None
            self._make(group, x, y, change, encoded, span, readings)
        for part, at in zip(self.parts, range(len(x)), strict=True):
            if part.counted:
                self._count_values(part, x[at], span)
        if self._keeps is not None:
            y = x + change
            kept = y * (_length(x) / _length(y))[..., None] - x
            is_kept = self._keeps & change.ne(0).any(-1, keepdim=True)
            change = torch.where(is_kept, kept, change)
        if is_whole:
            return change
        every = torch.zeros(value.shape, dtype=torch.float32, device=value.device)
        return every.index_copy_(0, self._index, change)

    def _make(
        self,
        group: Group,
        x: Tensor,
        y: Tensor | None,
        change: Tensor,
        encoded: Encoded,
        span: Span,
        readings: Readings,
    ) -> None:
        """Add what a group of edits changes to `change`."""
        moved = group.moved(x, y, encoded)
        scale = group.scale(x)
        if scale is not None:
            moved = moved * scale[..., 0]
        open_at = self._open(group, x.shape[1], span, readings)
        if open_at is not None:
            moved = torch.where(open_at, moved, 0.0)
        made = moved[..., None] * group.writes[:, None]
        if group.rows is None:
            change += made
        else:
            change.index_add_(0, group.rows, made)
        for at, (row, part, edit) in enumerate(group.members):
            if part.steering.counted is not None:
                size = moved[at].abs() * group.writes[at].norm() / _length(x[row])
                self._count(part, edit, size.tolist(), span)

    def _open(self, group: Group, width: int, span: Span, readings: Readings) -> Tensor | None:
        """Where the edits of a group act, bool [g, T]; None where they act everywhere."""
        rows = [
            self._acting(part, edit, span.first[part.row], width, readings)
            for _, part, edit in group.members
        ]
        if all(row is None for row in rows):
            return None
        true = torch.ones(width, dtype=torch.bool, device=self._device)
        return torch.stack([true if row is None else row for row in rows])

    def _acting(
        self, part: Part, edit: Edit, first: int, width: int, readings: Readings
    ) -> Tensor | None:
        """Where one edit acts, bool [T]; None where it acts everywhere."""
        mask = part.steering.mask(edit, first, width)
        at = None
        if mask is not None and not all(mask):
            at = torch.tensor(mask, device=self._device)
        if edit.when is None:
            return at
        holds = self._holds(edit.when, part, first, width, readings)
        return holds if at is None else holds & at

    def _holds(self, when: When, part: Part, first: int, width: int, readings: Readings) -> Tensor:
        """Where a condition holds, bool [T]."""
        if not isinstance(when, Condition):
            held = torch.stack(
                [self._holds(one, part, first, width, readings) for one in when.conditions]
            )
            return held.all(0) if isinstance(when, AllOf) else held.any(0)
        if needs_record(when):
            told = [part.steering.holds(when, at) for at in range(first, first + width)]
            return torch.tensor(told, device=self._device)
        reading = readings.held[part.row, when.reads].to(self._device)
        if when.above is not None:
            return reading > when.above
        assert when.below is not None
        return reading < when.below

    def _count(self, part: Part, edit: Edit, sizes: Sequence[float], span: Span) -> None:
        """Count an edit at the positions of the row where it was evaluated."""
        first, tokens = span.first[part.row], span.size[part.row]
        mask = part.steering.mask(edit, first, len(sizes))
        at = [i for i in range(min(tokens, len(sizes))) if mask is None or mask[i]]
        part.steering.count(edit, [first + i for i in at], [sizes[i] for i in at])

    def _count_values(self, part: Part, x: Tensor, span: Span) -> None:
        norms = _length(x)
        for edit in part.counted:
            assert isinstance(edit.at, Feature)
            added = self._saes[edit.at.key].direction({edit.at.index: edit.target.offset})
            size = added.to(self._device).norm() / norms
            self._count(part, edit, size.tolist(), span)


def _length(x: Tensor) -> Tensor:
    """|x| over the last dimension, each from one sum over it."""
    return (x * x).sum(-1).sqrt()
