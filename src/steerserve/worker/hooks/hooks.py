"""Steering inside the forward pass: one hook per site adds each row's own delta to the value of the site, and makes the
row's other edits, in a new tensor.

This module prepares the passes: what is added at each attached SAE, and what the rows do at each site beside adding. A
site without an SAE is hooked for those passes only in which a row edits or reads a direction there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from steerserve.messages import Plan
from steerserve.rules.steering.edits import Edit, conditions
from steerserve.worker.hooks.attached import CheckRoom, FindSite
from steerserve.worker.hooks.called_sites import PlaceName, SiteCalls, are_same_objects
from steerserve.worker.hooks.edits import SiteEdits
from steerserve.worker.hooks.parts import Part
from steerserve.worker.hooks.places import Catch, HookedSae, Place, name_of
from steerserve.worker.hooks.plans import PlannedSaes
from steerserve.worker.hooks.readings import Directions
from steerserve.worker.hooks.table import DirectionTable
from steerserve.worker.rows.steering import RowSteering, needs_record
from steerserve.worker.sae.canonical import Sae

_Item = TypeVar("_Item")

_REMEMBERED = 256
"""The deltas of rows that are kept."""


@dataclass(slots=True)
class _Pass:
    """What a pass was made from, to be told again without comparing edits: the rows, and the edits of each that may act
    in it. `is_steady`: these edits do not depend on the positions of the pass."""

    version: int = -1
    rows: Sequence[RowSteering] = ()
    active: Sequence[tuple[Edit, ...]] = ()
    is_steady: bool = False
    works: Mapping[PlaceName, SiteEdits] = field(default_factory=dict)

    def is_of(self, version: int, rows: Sequence[RowSteering]) -> bool:
        return self.version == version and are_same_objects(self.rows, rows)

    def put_in_order(self, rows: Sequence[RowSteering]) -> None:
        """Take the order of these rows, where they are the same rows. Rows change their order as they grow."""
        if len(rows) != len(self.rows) or are_same_objects(self.rows, rows):
            return
        places = {id(row): place for place, row in enumerate(rows)}
        if any(id(row) not in places for row in self.rows):
            return
        moved = [places[id(row)] for row in self.rows]
        for work in self.works.values():
            work.move(moved)
        before = dict(zip(moved, self.active, strict=False))
        self.rows = list(rows)
        self.active = [before[place] for place in sorted(before)]


class HookedSaes(PlannedSaes):
    """The attached SAEs and the live steering, and the passes that they steer."""

    def __init__(
        self,
        dtype: torch.dtype,
        check_room: CheckRoom = lambda device, size: None,
        on_detach: Callable[[int], None] = lambda number: None,
        find_site: FindSite | None = None,
    ) -> None:
        super().__init__(check_room, on_detach, find_site)
        self._dtype = dtype
        self._directions = Directions()
        self._last = {True: _Pass(), False: _Pass()}
        self._filled: tuple[int, frozenset[PlaceName], tuple[Plan, ...]] = (-1, frozenset(), ())
        self._vectors: OrderedDict[tuple[str, frozenset[tuple[int, float]]], Tensor] = OrderedDict()

    @property
    def calls(self) -> SiteCalls:
        """What is called at sites of passes on static buffers."""
        return self._sites.calls

    def detach(self, key: str) -> None:
        super().detach(key)
        self._vectors.clear()
        self._last = {True: _Pass(), False: _Pass()}

    @contextmanager
    def of(
        self,
        rows: Sequence[RowSteering],
        spans: Sequence[tuple[int, int]] = (),
        catches: Mapping[int, Sequence[Catch]] | None = None,
        *,
        count: int = 0,
        tokens: int = 0,
    ) -> Iterator[None]:
        """While open, a forward pass over these rows is steered row by row. `spans` has, for each row, the position of
        its first token in the pass, and the number of its tokens. `catches` has, by the number of an attached SAE, the
        functions that take the value of its site. The pass has `count` rows where that is more than `rows`; nobody
        reads what the model computes for the others. The functions get the last `tokens` tokens of the value only, or
        all where `tokens` is 0."""
        catches = catches or {}
        plans = [row.plan for row in rows]
        works = self.works(rows, spans, tokens)
        with ExitStack() as undo:
            undo.callback(self._end_pass)
            for key, attachment in self._attachments.items():
                attachment.delta = self._delta(key, attachment, plans, max(count, len(rows)))
                attachment.catches = catches.get(attachment.number, ())
            self._hook(works, undo)
            self._sites.begin(spans, tokens)
            yield

    def works(
        self, rows: Sequence[RowSteering], spans: Sequence[tuple[int, int]], tokens: int = 0
    ) -> Mapping[PlaceName, SiteEdits]:
        """What the rows do at each site in the coming pass beside adding; see `of` for the arguments."""
        last = self._last[all(size == 1 for _, size in spans)]
        last.put_in_order(rows)
        if last.is_steady and last.is_of(self.version, rows):
            return last.works
        made = [self.steered(row.plan) for row in rows]
        is_more = any(its.edits or its.keeps_norm for its in made) or any(
            row.counted is not None or row.watched for row in rows
        )
        active: list[tuple[Edit, ...]] = []
        for row, its, (start, size) in zip(rows, made, spans, strict=True) if is_more else ():
            # a row that is stepped alone may read its earlier positions again
            first = 0 if tokens else start
            active.append(row.active(its.edits, first, start + size - first))
        if not (last.is_of(self.version, rows) and are_same_objects(last.active, active)):
            last.works = self._works(rows, active) if is_more else {}
            last.version, last.rows, last.active = self.version, list(rows), active
            last.is_steady = not any(edit.is_placed for its in made for edit in its.edits)
        return last.works

    # ------------------------------------------------------------- passes on static buffers

    @contextmanager
    def by_table(
        self,
        rows: Sequence[RowSteering],
        spans: Sequence[tuple[int, int]],
        works: Mapping[PlaceName, SiteEdits],
        catches: Mapping[int, Sequence[Catch]],
        count: int,
    ) -> Iterator[dict[int, Tensor]]:
        """While open, passes over one token of each of these rows are steered by the tables, and recorded passes read
        the tables at each replay. At the sites of `works`, which are those of the rows, what the rows do is called. A
        pass has `count` rows, and nobody reads what the model computes for those that are not in `rows`.

        Gives the values [rows, 1, width] of the other sites in the last pass, by the number of the SAE.

        Raises:
            Refusal: INSUFFICIENT_MEMORY where there is no room for the table of an SAE.
        """
        plans = [row.plan for row in rows]
        with ExitStack() as undo:
            undo.callback(self._end_pass)
            values = self._sites.begin_static(spans, self._hook(works, undo))
            self._fill_tables(plans)
            for key, attachment in self._attachments.items():
                if name_of(attachment.site) in works:
                    attachment.delta = self._delta(key, attachment, plans, count)
                    attachment.catches = catches.get(attachment.number, ())
            yield values

    def begin_pass(self) -> None:
        """Count from 0 what the coming pass of `by_table` does."""
        for attachment in self._by_table():
            self._table(attachment).steered.zero_()
        self._sites.again()

    def has_steered(self) -> bool:
        """Whether one pass since `begin_pass` has steered all rows that it had to steer, at all sites."""
        if sorted(self.calls.made) != sorted(self._sites.called):
            return False
        tables = [self._table(attachment) for attachment in self._by_table()]
        if not tables:
            return True
        counts = torch.stack([table.steered for table in tables]).tolist()
        return bool(counts == [table.expected for table in tables])

    def tell(self, values: Mapping[int, Tensor], catches: Mapping[int, Sequence[Catch]]) -> None:
        """Give the values of the sites in a pass of `by_table` to the functions that take them, and count the pass. At
        the called sites the functions had them within the pass."""
        by_table = self._by_table()
        handed = [
            (attachment.number, self._table(attachment).deltas())
            for attachment in by_table
            if attachment.number in catches
        ]
        for number, delta in handed:
            for catch in catches[number]:
                catch(values[number], delta)
        for attachment in by_table:
            attachment.applied += self._table(attachment).expected > 0
        for place in self._sites.called.values():
            self._sites.count(place)

    # ------------------------------------------------------------- inside

    def _by_table(self) -> list[HookedSae]:
        """The SAEs that the tables steer in a pass of `by_table`."""
        attachments = self._attachments.values()
        return [one for one in attachments if name_of(one.site) not in self._sites.called]

    def _fill_tables(self, plans: Sequence[Plan]) -> None:
        version, called, made_of = self._filled
        if (
            version == self.version
            and called == self._sites.called.keys()
            and are_same_objects(made_of, plans)
        ):
            return
        self._filled = (-1, frozenset(), ())
        for key, attachment in self._attachments.items():
            if name_of(attachment.site) in self._sites.called:
                continue
            wanted = [frozenset(self._values(key, plan).items()) or None for plan in plans]
            table = self._table(attachment)
            table.fill(wanted, partial(self._direction, key, attachment, plans))
        self._filled = (self.version, frozenset(self._sites.called), tuple(plans))

    def _table(self, attachment: HookedSae) -> DirectionTable:
        if attachment.table is None:
            width = attachment.site.width
            self._check_room(attachment.device, DirectionTable.size_bytes(width, self._dtype))
            attachment.table = DirectionTable(width, self._dtype, attachment.device)
        return attachment.table

    def _direction(
        self, key: str, attachment: HookedSae, plans: Sequence[Plan], row: int
    ) -> Tensor:
        direction = self._vector(key, attachment, plans[row])
        assert direction is not None
        return direction

    def _hook(
        self, works: Mapping[PlaceName, SiteEdits], undo: ExitStack
    ) -> dict[PlaceName, Place]:
        """Have the rows do this at the sites, each of which is hooked until `undo` is closed."""
        places = {}
        for name, work in works.items():
            place = places[name] = self._places.get(name) or Place(self._found_at(name))
            place.edits = work
            if place.handle is None:
                undo.callback(place.site.hook(partial(self._sites.act, place)).remove)
        return places

    def _end_pass(self) -> None:
        for attachment in self._attachments.values():
            attachment.delta = None
            attachment.catches = ()
        for place in self._places.values():
            place.edits = None
        self._sites.end()

    # ------------------------------------------------------------- what rows do beside adding

    def _works(
        self, rows: Sequence[RowSteering], active: Sequence[tuple[Edit, ...]]
    ) -> Mapping[PlaceName, SiteEdits]:
        """What the rows do at each site, by the edits of each that may act."""
        return {
            name: SiteEdits(parts, self._readers(parts), self._directions, self._device_of(name))
            for name, parts in self._parts(rows, active).items()
        }

    def _parts(
        self, rows: Sequence[RowSteering], active: Sequence[tuple[Edit, ...]]
    ) -> Mapping[PlaceName, list[Part]]:
        parts: dict[PlaceName, list[Part]] = {}
        for number, (row, acting) in enumerate(zip(rows, active, strict=True)):
            steered = self.steered(row.plan)
            found = (one for edit in acting for one in conditions(edit.when))
            plain = [one for one in dict.fromkeys(found) if not needs_record(one)]
            edits, reads, counted = (
                _by(acting, lambda edit: self._name_of(edit.at)),
                _by([*plain, *steered.recorded], lambda one: self._name_of(one.reads)),
                _by(self._counted(row), lambda edit: self._name_of(edit.at)),
            )
            watched = _by(row.watched, self._name_of)
            for name in {*edits, *reads, *counted, *watched, *steered.places}:
                is_float = name in steered.places
                part = Part(
                    number,
                    row,
                    self._float_values(name, row.plan) if is_float else None,
                    tuple(edits.get(name, ())),
                    tuple(reads.get(name, ())),
                    tuple(counted.get(name, ())),
                    steered.keeps_norm and is_float,
                    tuple(watched.get(name, ())),
                )
                if part.is_used:
                    parts.setdefault(name, []).append(part)
        return parts

    def _float_values(self, name: PlaceName, plan: Plan) -> Tensor | None:
        """The sum of value x decoder row over all SAEs of a site, float32 [width]; None where the plan adds nothing
        there."""
        place = self._places.get(name)
        total: Tensor | None = None
        for key, attachment in place.saes.items() if place else ():
            if values := self._values(key, plan):
                added = attachment.sae.direction(values).to(attachment.device)
                total = added if total is None else total + added
        return total

    def _readers(self, parts: Sequence[Part]) -> dict[str, Sae]:
        """By key, the SAEs that these parts read or write."""
        keys = {key for part in parts for key in part.keys}
        return {key: self._reader(self.find(key)) for key in sorted(keys)}

    # ------------------------------------------------------------- what is added

    def _delta(
        self, key: str, attachment: HookedSae, plans: Sequence[Plan], rows: int
    ) -> Tensor | None:
        version, made_of, delta = attachment.made
        has_rows = delta is None or delta.shape[0] in (1, rows)
        if version == self.version and has_rows and are_same_objects(made_of, plans):
            return delta
        delta = self._stacked([self._vector(key, attachment, plan) for plan in plans], rows)
        attachment.made = self.version, tuple(plans), delta
        return delta

    def _stacked(self, vectors: list[Tensor | None], rows: int) -> Tensor | None:
        first = vectors[0]
        if all(vector is first for vector in vectors):
            return None if first is None else first[None, None]
        zero = torch.zeros_like(next(vector for vector in vectors if vector is not None))
        vectors += [None] * (rows - len(vectors))
        return torch.stack([zero if vector is None else vector for vector in vectors])[:, None]

    def _vector(self, key: str, attachment: HookedSae, plan: Plan) -> Tensor | None:
        """One row's delta [d_in]: the sum of value x decoder row, summed in float32. None when the plan adds nothing,
        and where the edits of the row add the values."""
        values = self._values(key, plan)
        if not values or name_of(attachment.site) in self.steered(plan).places:
            return None
        name = (key, frozenset(values.items()))
        vector = self._vectors.get(name)
        if vector is None:
            vector = attachment.sae.direction(values).to(attachment.device, self._dtype)
            self._vectors[name] = vector
            if len(self._vectors) > _REMEMBERED:
                self._vectors.popitem(last=False)
        return vector


def _by(
    items: Iterable[_Item], name_of: Callable[[_Item], PlaceName]
) -> dict[PlaceName, list[_Item]]:
    """The items by the site where they belong, each in its order."""
    by: dict[PlaceName, list[_Item]] = {}
    for item in items:
        by.setdefault(name_of(item), []).append(item)
    return by
