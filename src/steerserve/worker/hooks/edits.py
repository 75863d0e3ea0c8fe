"""The edits of the rows of one pass at one site.

All numbers are computed in float32 from the value x of the site, and each row is computed from nothing but itself: one
product and one sum over the width for each number that an edit reads. So a row has the same bits in every batch, and
however its prompt is divided into passes. Where the activations of an SAE depend on each other, all of them are
computed, for a whole block of positions of the prompt at once (`Encoded`).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

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

BLOCK = 32
"""The positions of a prompt that are encoded together where the activations of an SAE depend on each other."""

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


@dataclass(slots=True)
class Part:
    """What one row of a pass does at one site.

    Attributes:
        row: the place of the row in the pass. It may be another in the next pass; everything else stays.
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
    """What the conditions of a pass have read so far: for each row and reading, the numbers [n, T] that were read
    together, and the place of its own [T] among them."""

    held: dict[tuple[int, Reads], tuple[Tensor, int]] = field(default_factory=dict)

    def of(self, row: int, reads: Reads) -> Tensor:
        """What was read of a row, a number [T] for each position."""
        together, place = self.held[row, reads]
        return together[place]


class ReadGroup:
    """Readings of different rows that are made together: of features of one SAE, or of directions.

    `members` have the place of each row among those of the site, the row itself, and what is read. Where the
    activations of the SAE depend on each other, there is one member.
    """

    def __init__(
        self,
        members: Sequence[tuple[int, Part, Reads]],
        sae: Sae | None,
        directions: Directions,
        device: torch.device,
        count: int,
    ) -> None:
        self.members = members
        self._sae = sae
        self._narrowed: Sae | None = None
        self._units: Tensor | None = None
        self._index = _index([place for place, _, _ in members], count, device)
        features = [reads.index for _, _, reads in members if isinstance(reads, Feature)]
        self._features = features
        if sae is None:
            units = [
                directions.at(reads, device)[1]
                for _, _, reads in members
                if isinstance(reads, Direction)
            ]
            self._units = torch.stack(units)
        elif sae.activation not in NEEDS_K:
            self._narrowed = sae.narrowed(features)

    def read(self, x: Tensor, encoded: Encoded) -> Tensor:
        """What is read of the rows x [rows of the site, T, width], float32 [n, T]."""
        rows = x if self._index is None else x[self._index]
        if self._units is not None:
            return (rows * self._units[:, None]).sum(-1)
        if self._narrowed is not None:
            return self._narrowed.encode_each(rows)
        assert self._sae is not None
        _, part, _ = self.members[0]
        return encoded.of(self._sae, part, rows[0])[None, :, self._features[0]]


def _index(places: Sequence[int], count: int, device: torch.device) -> Tensor | None:
    """These places of `count` rows as an index; None where they are all rows in their order."""
    return None if list(places) == list(range(count)) else torch.tensor(places, device=device)


SLOW = "each edit by itself"
"""How a group is decided whose conditions were not all read together in this pass."""


class Gate:
    """The conditions of a group of edits, where each is one reading that was made with the others of a `ReadGroup`.
    `places` are the places of these readings; an edit without a condition has None."""

    def __init__(
        self,
        conditions: Sequence[Condition | None],
        places: Sequence[int],
        count: int,
        device: torch.device,
    ) -> None:
        self._index = _index(places, count, device)
        above = [math.inf if one is None or one.above is None else one.above for one in conditions]
        below = [-math.inf if one is None or one.below is None else one.below for one in conditions]
        bounds = torch.tensor([above, below], dtype=torch.float32, device=device)[..., None]
        self._above, self._below = bounds.unbind()
        always = [one is None for one in conditions]
        self._always = torch.tensor(always, device=device)[:, None] if any(always) else None

    def holds(self, read: Tensor) -> Tensor:
        """Where the conditions hold, bool [g, T], by the readings [n, T]."""
        read = read if self._index is None else read[self._index]
        holds = (read > self._above) | (read < self._below)
        return holds if self._always is None else holds | self._always


class Group:
    """Edits of different rows that are made together: the k-th edit of each of these rows, all of one form.

    `rows` are the places of the rows among those of the site. `sae` is the SAE whose features are edited. `is_masked`:
    some of the edits act at some positions only.

    `gate` is the number of the readings of the site that decide for all of the edits, and how; SLOW where each edit is
    looked at by itself, and None where nothing is decided.
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
        self.gate: tuple[int, Gate] | str | None = None
        self.is_masked = any(
            part.steering.mask(edit, 0, 1) is not None for _, part, edit in members
        )
        edits = [edit for _, _, edit in members]
        self.rows = _index([row for row, _, _ in members], count, device)
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
                encoded.of(self.sae, part, rows)[:, feature]
                for (_, part, _), feature, rows in zip(self.members, self.features, x, strict=True)
            ]
        )


class Encoded:
    """The activations of rows whose SAE chooses among all features, computed once in a pass.

    The product with the whole encoder may have other bits for another number of rows. So positions of a prompt are
    encoded in blocks of BLOCK that begin at multiples of BLOCK, and zeros stand for positions of a block that are not
    in the pass. The one position of a decode pass is encoded by itself.
    """

    def __init__(self, span: Span) -> None:
        self._span = span
        self._held: dict[tuple[int, int], Tensor] = {}

    def of(self, sae: Sae, part: Part, x: Tensor) -> Tensor:
        """The activations [T, d_sae] of the row x [T, width] of a part."""
        name = id(sae), part.row
        if name not in self._held:
            first = self._span.first[part.row]
            is_decoded = len(x) == 1 and first >= part.steering.prompt_tokens
            self._held[name] = sae.encode(x) if is_decoded else _in_blocks(sae, x, first)
        return self._held[name]


def _in_blocks(sae: Sae, x: Tensor, first: int) -> Tensor:
    """The activations [T, d_sae] of positions x [T, width] from `first` on."""
    before = first % BLOCK
    end = before + len(x)
    blocks = functional.pad(x, (0, 0, before, -end % BLOCK)).split(BLOCK)
    return torch.cat([sae.encode(block) for block in blocks])[before:end]


Flags = tuple[tuple[tuple[bool, ...], ...] | None, ...]
"""For each group of edits, whether each edit may act at each position, by the positions that it names; None where each
may everywhere."""

Masks = tuple[Tensor | None, ...]
"""The same on the device, bool [g, T]."""


class SiteEdits:
    """What the rows of a pass do at one site. It does not change from pass to pass while the rows and their edits stay
    the same; `move` gives the rows another order. `saes` has, by key, the SAEs whose features are read or edited here;
    `written` has the keys of those whose directions are added here.

    `is_fixed`: what is done in a decode pass follows from the value, the masks and the tensors here alone, and no
    value is copied to the host. `held` then keeps the recordings that a caller makes of it.
    """

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
        self._is_ordered = self._finds_order()
        values = [part.values for part in parts]
        given = next((value for value in values if value is not None), None)
        self._values: Tensor | None = None
        if given is not None:
            zero = torch.zeros_like(given)
            self._values = torch.stack([zero if v is None else v for v in values])[:, None]
        self._reads = self._read_groups()
        self._edits = [
            *self._groups([[e for e in part.edits if e.is_added] for part in parts]),
            *self._groups([[e for e in part.edits if not e.is_added] for part in parts]),
        ]
        self._made: tuple[Flags, Masks] = (), ()
        kept = [part.keeps_norm for part in parts]
        self._keeps: Tensor | None = None
        if any(kept):
            self._keeps = torch.tensor(kept, device=device)[:, None, None]

        self.written = frozenset(
            key for part in parts for key in part.keys if part.edits or part.values is not None
        )
        self.is_acting = bool(self._edits or self._values is not None) or any(
            part.counted for part in parts
        )
        self.is_fixed = not any(
            part.counted
            or part.watched
            or (part.edits and part.steering.counted is not None)
            or any(needs_record(one) for one in part.reads)
            for part in parts
        ) and not (
            any(saes[key].activation in NEEDS_K for part in parts for key in part.keys)
            or any(group.gate is SLOW for group in self._edits)
        )
        self.held: dict[int, Any] = {}

    def _read_groups(self) -> list[ReadGroup]:
        """All that is read here, in groups that are read together."""
        forms: dict[Hashable, list[tuple[int, Part, Reads]]] = {}
        for place, part in enumerate(self.parts):
            for reads in dict.fromkeys(one.reads for one in part.reads):
                form: Hashable = None
                if isinstance(reads, Feature):
                    is_whole = self._saes[reads.key].activation in NEEDS_K
                    form = (reads.key, place, reads.index) if is_whole else reads.key
                forms.setdefault(form, []).append((place, part, reads))
        groups = []
        for members in forms.values():
            reads = members[0][2]
            sae = self._saes[reads.key] if isinstance(reads, Feature) else None
            count = len(self.parts)
            groups.append(ReadGroup(members, sae, self._directions, self._device, count))
        return groups

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
                group = Group(members, sae, self._directions, self._device, len(self.parts))
                group.gate = self._gate(group)
                groups.append(group)
        return groups

    def _gate(self, group: Group) -> tuple[int, Gate] | str | None:
        """See `Group.gate`."""
        if all(edit.when is None for _, _, edit in group.members):
            return None
        decided: list[tuple[int, Condition | None]] = []
        for place, _, edit in group.members:
            if edit.when is None:
                decided.append((place, None))
            elif isinstance(edit.when, Condition) and not needs_record(edit.when):
                decided.append((place, edit.when))
            else:
                return SLOW
        for number, read in enumerate(self._reads):
            at = {(place, reads): at for at, (place, _, reads) in enumerate(read.members)}
            places = [
                0 if one is None else at.get((place, one.reads), -1) for place, one in decided
            ]
            if -1 not in places:
                conditions = [one for _, one in decided]
                return number, Gate(conditions, places, len(read.members), self._device)
        return SLOW

    def move(self, places: Sequence[int]) -> None:
        """The rows have another order: the row that was at place i is at `places[i]`."""
        for part in self.parts:
            part.row = places[part.row]
        # in place, because a recorded site reads this tensor
        self._index.copy_(torch.tensor([part.row for part in self.parts]))
        was, self._is_ordered = self._is_ordered, self._finds_order()
        if was != self._is_ordered:
            self.held.clear()

    def _finds_order(self) -> bool:
        """Whether the rows of a value are read without an index, where all take part. A card always reads them by an
        index, so that what is recorded there holds for rows in any order."""
        is_ordered = [part.row for part in self.parts] == list(range(len(self.parts)))
        return self._device.type == "cpu" and is_ordered

    # ------------------------------------------------------------- in a pass

    def masks(self, span: Span, width: int) -> Masks:
        """Where the edits may act by the positions that they name, in a pass over so many tokens of each row. Equal
        results in a row are one object."""
        flags = tuple(self._flags(group, span, width) for group in self._edits)
        if self._made[0] != flags:
            masks = tuple(
                None if its is None else torch.tensor(its, device=self._device) for its in flags
            )
            self._made = flags, masks
        return self._made[1]

    def _flags(self, group: Group, span: Span, width: int) -> tuple[tuple[bool, ...], ...] | None:
        if not group.is_masked:
            return None
        everywhere = (True,) * width
        flags = []
        for _, part, edit in group.members:
            mask = part.steering.mask(edit, span.first[part.row], width)
            flags.append(everywhere if mask is None else tuple(mask))
        return None if all(map(all, flags)) else tuple(flags)

    def change(
        self, value: Tensor, span: Span, readings: Readings, masks: Masks
    ) -> tuple[Tensor | None, Sequence[Tensor]]:
        """What is added to the value [rows, T, width], float32: exactly 0 where nothing changes; None where nothing is
        done here. And what was read here, for `note`."""
        self._watch(value, span)
        if not (self._reads or self.is_acting):
            return None, ()
        is_whole = self._is_ordered and len(self.parts) == value.shape[0]
        x = (value if is_whole else value[self._index]).float().contiguous()
        encoded = Encoded(span)
        found = [group.read(x, encoded) for group in self._reads]
        self.note(found, readings)
        self._record(found, span)
        if not self.is_acting:
            return None, found
        change = torch.zeros_like(x)
        if self._values is not None:
            change = change + self._values
        for group, mask in zip(self._edits, masks, strict=True):
            opened = self._opened(group, found, mask, span, readings, x.shape[1])
            y = x + change if group.reads is not None and not group.is_added else None
            self._make(group, x, y, change, encoded, span, opened)
        for part, at in zip(self.parts, range(len(x)), strict=True):
            if part.counted:
                self._count_values(part, x[at], span)
        if self._keeps is not None:
            y = x + change
            kept = y * (_length(x) / _length(y))[..., None] - x
            is_kept = self._keeps & change.ne(0).any(-1, keepdim=True)
            change = torch.where(is_kept, kept, change)
        if is_whole:
            return change, found
        every = torch.zeros(value.shape, dtype=torch.float32, device=value.device)
        return every.index_copy_(0, self._index, change), found

    def note(self, found: Sequence[Tensor], readings: Readings) -> None:
        """Let conditions at later sites find what was read here."""
        for group, together in zip(self._reads, found, strict=True):
            for at, (_, part, reads) in enumerate(group.members):
                readings.held.setdefault((part.row, reads), (together, at))

    def _watch(self, value: Tensor, span: Span) -> None:
        """Read the directions that are watched."""
        for part in self.parts:
            if part.watched:
                last = value[part.row, span.size[part.row] - 1].float()
                for direction in part.watched:
                    unit = self._directions.at(direction, self._device)[1]
                    part.steering.see(direction, float((last * unit).sum(-1)))

    def _record(self, found: Sequence[Tensor], span: Span) -> None:
        """Tell the rows what conditions have read that need earlier positions too."""
        for group, together in zip(self._reads, found, strict=True):
            told: list[list[float]] | None = None
            for at, (_, part, reads) in enumerate(group.members):
                for condition in part.reads:
                    if condition.reads == reads and needs_record(condition):
                        told = together.tolist() if told is None else told
                        its = told[at][: span.size[part.row]]
                        part.steering.record(condition, span.first[part.row], its)

    def _make(
        self,
        group: Group,
        x: Tensor,
        y: Tensor | None,
        change: Tensor,
        encoded: Encoded,
        span: Span,
        opened: Tensor | None,
    ) -> None:
        """Add what a group of edits changes to `change`, where it is open."""
        moved = group.moved(x, y, encoded)
        scale = group.scale(x)
        if scale is not None:
            moved = moved * scale[..., 0]
        if opened is not None:
            moved = torch.where(opened, moved, moved.new_zeros(()))
        made = moved[..., None] * group.writes[:, None]
        if group.rows is None:
            change += made
        else:
            change.index_add_(0, group.rows, made)
        for at, (row, part, edit) in enumerate(group.members):
            if part.steering.counted is not None:
                size = moved[at].abs() * group.writes[at].norm() / _length(x[row])
                self._count(part, edit, size.tolist(), span)

    def _opened(
        self,
        group: Group,
        found: Sequence[Tensor],
        mask: Tensor | None,
        span: Span,
        readings: Readings,
        width: int,
    ) -> Tensor | None:
        """Where the edits of a group act, bool [g, T]; None where they act everywhere."""
        if group.gate is None:
            return mask
        if not isinstance(group.gate, str):
            number, gate = group.gate
            holds = gate.holds(found[number])
        else:
            true = torch.ones(width, dtype=torch.bool, device=self._device)
            holds = torch.stack(
                [
                    true
                    if edit.when is None
                    else self._holds(edit.when, part, span.first[part.row], width, readings)
                    for _, part, edit in group.members
                ]
            )
        return holds if mask is None else holds & mask

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
        reading = readings.of(part.row, when.reads).to(self._device)
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
