"""The edits of the rows of one pass at one site.

All numbers are computed in float32 from the value x of the site, and each row is computed from nothing but itself, so a
row has the same bits in every batch. `parts.py` says what each row does, `readings.py` reads numbers of the value, and
`edit_groups.py` makes edits of several rows together.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from steerserve.rules.steering.edits import RESIDUAL, Condition, Edit, Feature, When
from steerserve.worker.hooks.edit_groups import EditGroup, ReplaceGroup, SiteValue
from steerserve.worker.hooks.gates import Gates
from steerserve.worker.hooks.parts import Part, Reads, Span
from steerserve.worker.hooks.readings import Directions, Encoded, ReadGroup, Readings, length
from steerserve.worker.rows.steering import needs_record
from steerserve.worker.sae.canonical import NEEDS_K, Sae
from steerserve.worker.sae.sites import Moved, Replaced

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
    value is copied to the host. `held` then keeps the recordings that a caller makes of it. `masks_key` rises with each
    change of the masks.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        saes: Mapping[str, Sae],
        directions: Directions,
        device: torch.device,
        heads: int = 0,
    ) -> None:
        self.parts = parts
        self._heads = heads
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
        self._recorded = self._recorded_conditions()
        self._names: list[list[tuple[int, Reads]]] | None = None
        self._edits = [
            *self._groups([[e for e in part.edits if e.is_added] for part in parts]),
            *self._groups([[e for e in part.edits if not e.is_added] for part in parts]),
        ]
        self._gates = self._made_gates()
        self._made: tuple[Flags, Masks] = (), ()
        self.masks_key = 0
        kept = [part.modifiers.preserve_norm for part in parts]
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
            or (self._gates is not None and not self._gates.is_fixed)
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
                    form = (reads.key, place) if is_whole else reads.key
                forms.setdefault(form, []).append((place, part, reads))
        groups = []
        for members in forms.values():
            reads = members[0][2]
            sae = self._saes[reads.key] if isinstance(reads, Feature) else None
            count = len(self.parts)
            groups.append(ReadGroup(members, sae, self._directions, self._device, count))
        return groups

    def _groups(self, lists: Sequence[Sequence[Edit]]) -> list[EditGroup | ReplaceGroup]:
        """The k-th edits of all rows, for each k, in groups of one form."""
        groups: list[EditGroup | ReplaceGroup] = []
        for k in range(max(map(len, lists), default=0)):
            forms: dict[tuple[str | None, bool, bool], list[tuple[int, Part, Edit]]] = {}
            for row, (part, edits) in enumerate(zip(self.parts, lists, strict=True)):
                if k < len(edits):
                    edit = edits[k]
                    is_residual = edit.is_added and edit.unit == RESIDUAL
                    form = edit.key, is_residual, edit.key is None and edit.source is not None
                    forms.setdefault(form, []).append((row, part, edit))
            for (key, _, is_replaced), members in forms.items():
                if is_replaced:
                    groups.append(ReplaceGroup(members, self._device, self._heads, len(lists)))
                    continue
                sae = None if key is None else self._saes[key]
                group = EditGroup(members, sae, self._directions, self._device, len(self.parts))
                groups.append(group)
        return groups

    def _made_gates(self) -> Gates | None:
        """What decides where the edits with conditions act; each group of edits gets its part of the decisions."""
        conditions: list[tuple[int, When | None]] = []
        for group in self._edits:
            whens = [(row, edit.when) for row, _, edit in group.members]
            if any(when is not None for _, when in whens):
                group.gate = slice(len(conditions), len(conditions) + len(whens))
                conditions += whens
        if not conditions:
            return None
        read = [(place, reads) for group in self._reads for place, _, reads in group.members]
        here = {each: number for number, each in enumerate(read)}
        return Gates(conditions, self.parts, here, self._device)

    def move(self, places: Sequence[int]) -> None:
        """The rows have another order: the row that was at place i is at `places[i]`."""
        for part in self.parts:
            part.row = places[part.row]
        self._names = None
        # in place, because a recorded site reads this tensor
        self._index.copy_(torch.tensor([part.row for part in self.parts]))
        was, self._is_ordered = self._is_ordered, self._finds_order()
        if was != self._is_ordered:
            self.held.clear()

    def _finds_order(self) -> bool:
        """Whether the rows of a value are read without an index, where all take part. A GPU always reads them by an
        index, so that what is recorded there holds for rows in any order."""
        is_ordered = [part.row for part in self.parts] == list(range(len(self.parts)))
        return self._device.type == "cpu" and is_ordered

    # ------------------------------------------------------------- in a pass

    def masks(self, span: Span, width: int) -> Masks:
        """Where the edits may act by the positions that they name, in a pass over so many tokens of each row."""
        flags = tuple(self._flags(group, span, width) for group in self._edits)
        if self._made[0] != flags:
            masks = tuple(
                None if its is None else torch.tensor(its, device=self._device) for its in flags
            )
            self._made = flags, masks
            self.masks_key += 1
        return self._made[1]

    def _flags(
        self, group: EditGroup | ReplaceGroup, span: Span, width: int
    ) -> tuple[tuple[bool, ...], ...] | None:
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
    ) -> tuple[Moved | None, Sequence[Tensor]]:
        """What is done to the value [rows, T, width]; None where nothing is. And what was read here, for `note`."""
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
        made = SiteValue(x)
        if self._values is not None:
            made.change = made.change + self._values
        holds: Tensor | None = None
        if self._gates is not None:
            holds = self._gates.hold(found, readings, span, x.shape[1])
        for group, mask in zip(self._edits, masks, strict=True):
            opened = mask
            if holds is not None and group.gate is not None:
                opened = holds[group.gate] if mask is None else holds[group.gate] & mask
            self._make(group, made, encoded, span, opened)
        for part, at in zip(self.parts, range(len(x)), strict=True):
            if part.counted:
                self._count_values(part, x[at], span)
        if self._keeps is not None:
            made.fold()
        change = made.change
        if self._keeps is not None:
            y = x + change
            kept = y * (length(x) / length(y))[..., None] - x
            is_kept = self._keeps & change.ne(0).any(-1, keepdim=True)
            change = torch.where(is_kept, kept, change)
        replaced = None if made.replaced is None else Replaced(made.replaced, made.base)
        return Moved((), change, replaced, None if is_whole else self._index), found

    def note(self, found: Sequence[Tensor], readings: Readings) -> None:
        """Let conditions at later sites find what was read here."""
        if self._names is None:
            self._names = [
                [(part.row, reads) for _, part, reads in group.members] for group in self._reads
            ]
        for names, together in zip(self._names, found, strict=True):
            if names[0] not in readings:
                readings.update((name, (together, at)) for at, name in enumerate(names))

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
            if recorded := self._recorded.get(group):
                told = together.tolist()
                for at, part, condition in recorded:
                    its = told[at][: span.size[part.row]]
                    part.steering.record(condition, span.first[part.row], its)

    def _recorded_conditions(self) -> dict[ReadGroup, list[tuple[int, Part, Condition]]]:
        """The conditions that need earlier positions too, each with its place among the readings of a group."""
        by_reads: dict[int, dict[Reads, list[Condition]]] = {}
        for part in self.parts:
            its = by_reads.setdefault(id(part), {})
            for condition in filter(needs_record, part.reads):
                its.setdefault(condition.reads, []).append(condition)
        recorded: dict[ReadGroup, list[tuple[int, Part, Condition]]] = {}
        for group in self._reads:
            for at, (_, part, reads) in enumerate(group.members):
                for condition in by_reads[id(part)].get(reads, ()):
                    recorded.setdefault(group, []).append((at, part, condition))
        return recorded

    def _make(
        self,
        group: EditGroup | ReplaceGroup,
        value: SiteValue,
        encoded: Encoded,
        span: Span,
        opened: Tensor | None,
    ) -> None:
        """Make a group of edits where it is open."""
        size = group.make_edits(value, encoded, span, opened)
        for at, (_, part, edit) in enumerate(group.members):
            if part.steering.counted is not None:
                self._count(part, edit, size(at).tolist(), span)

    def _count(self, part: Part, edit: Edit, sizes: Sequence[float], span: Span) -> None:
        """Count an edit at the positions of the row where it was evaluated."""
        first, tokens = span.first[part.row], span.size[part.row]
        mask = part.steering.mask(edit, first, len(sizes))
        at = [i for i in range(min(tokens, len(sizes))) if mask is None or mask[i]]
        part.steering.count(edit, [first + i for i in at], [sizes[i] for i in at])

    def _count_values(self, part: Part, x: Tensor, span: Span) -> None:
        norms = length(x)
        for edit in part.counted:
            assert isinstance(edit.at, Feature)
            added = self._saes[edit.at.key].direction({edit.at.index: edit.target.offset})
            size = added.to(self._device).norm() / norms
            self._count(part, edit, size.tolist(), span)
