"""What the coming pass does at each site, planned for its rows: what is added there, and what the rows do beside
adding.

A plan is made anew where the rows, their edits or the version of the steering are others than in the pass before. In a
steady pass nothing is done for any edit.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count as numbers_from
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from steerserve.messages import Plan
from steerserve.rules.steering.edits import Edit, conditions
from steerserve.rules.steering.placed import NO_MODIFIERS
from steerserve.worker.hooks.called_sites import PlaceName
from steerserve.worker.hooks.edits import SiteEdits
from steerserve.worker.hooks.parts import Part
from steerserve.worker.hooks.places import NO_CATCHES, Catches, HookedSae, Place, name_of
from steerserve.worker.hooks.readings import Directions
from steerserve.worker.rows.steering import RowSteering, needs_record
from steerserve.worker.sae.canonical import Sae

if TYPE_CHECKING:
    from steerserve.worker.hooks.hooks import HookedSaes

_Item = TypeVar("_Item")

_REMEMBERED = 256
"""The deltas of rows that are kept."""


@dataclass(frozen=True, slots=True)
class SitePlan:
    """What a pass does at one site. Plans with one `key` add the same tensors.

    `deltas` has, by the key of an SAE there, what is added for it [rows or 1, 1, width]. `edits` is what the rows do
    beside adding.
    """

    key: int
    place: Place
    deltas: Mapping[str, Tensor]
    edits: SiteEdits | None

    def steers(self, key: str) -> bool:
        """Whether the pass adds a direction of the SAE at this key."""
        return key in self.deltas or (self.edits is not None and key in self.edits.written)


@dataclass(frozen=True, slots=True)
class PassPlan:
    """What a pass does at all sites.

    Attributes:
        key: no other steering of a pass has the same one.
        sites: by name, what is done at each site with an SAE and at each other site that a row edits or reads. On
            static buffers only what is called; the other SAEs, which are `by_table`, are steered by their tables.
        rows: the rows of the pass; `spans` has, for each of them, the position of its first token in the pass, and the
            number of its tokens.
        catches: the functions that take values. They get the last `tokens` tokens of a value only, or all where
            `tokens` is 0.
    """

    key: int
    sites: Mapping[PlaceName, SitePlan]
    by_table: Sequence[tuple[str, HookedSae]]
    rows: Sequence[RowSteering]
    spans: Sequence[tuple[int, int]]
    catches: Catches
    tokens: int


NO_PASS = PassPlan(0, {}, (), (), (), NO_CATCHES, 0)
"""Nothing is done at any site."""


@dataclass(slots=True)
class _Planned:
    """What was planned last, and what it was planned from: the rows, and the edits of each that may act. `is_steady`:
    these edits do not depend on the positions of the pass. `form` is the number of rows that are added to, and whether
    the pass runs on static buffers. `deltas` has what is added by the SAEs that were asked for."""

    version: int = -1
    rows: Sequence[RowSteering] = ()
    active: Sequence[tuple[Edit, ...]] = ()
    is_steady: bool = False
    form: tuple[int, bool] = (0, False)
    edits: Mapping[PlaceName, SiteEdits] = field(default_factory=dict)
    deltas: dict[str, Tensor | None] = field(default_factory=dict)
    plan: PassPlan | None = None

    def is_of(self, version: int, rows: Sequence[RowSteering]) -> bool:
        return self.version == version and _are_same_objects(self.rows, rows)

    def put_in_order(self, rows: Sequence[RowSteering]) -> None:
        """Take the order of these rows, where they are the same rows. Rows change their order as they grow."""
        if len(rows) != len(self.rows) or _are_same_objects(self.rows, rows):
            return
        places = {id(row): place for place, row in enumerate(rows)}
        if any(id(row) not in places for row in self.rows):
            return
        moved = [places[id(row)] for row in self.rows]
        for edits in self.edits.values():
            edits.move(moved)
        before = dict(zip(moved, self.active, strict=False))
        self.active = [before[place] for place in sorted(before)]
        self.rows, self.deltas, self.plan = list(rows), {}, None


class SitePlanner:
    """Plans the passes that are steered by the SAEs and the live values of their owner."""

    def __init__(self, saes: HookedSaes) -> None:
        self._saes = saes
        self._directions = Directions()
        self._vectors: OrderedDict[tuple[str, frozenset[tuple[int, float]]], Tensor] = OrderedDict()
        self._keys = numbers_from(1)
        self._filled = 0
        self._last = {True: _Planned(), False: _Planned()}

    def forget_saes(self) -> None:
        """Hold nothing of any SAE."""
        self._vectors.clear()
        self._last = {True: _Planned(), False: _Planned()}

    def plan_pass(
        self,
        rows: Sequence[RowSteering],
        spans: Sequence[tuple[int, int]],
        catches: Catches,
        *,
        count: int = 0,
        tokens: int = 0,
        is_static: bool = False,
    ) -> PassPlan:
        """What a pass over these rows does; see `PassPlan`. The pass has `count` rows where that is more than `rows`;
        nobody reads what the model computes for the others. With `is_static` it runs on static buffers."""
        last = self._last[all(size == 1 for _, size in spans)]
        last.put_in_order(rows)
        if not (last.is_steady and last.is_of(self._saes.version, rows)):
            self._renew(last, rows, spans, tokens)
        form = max(count, len(rows)), is_static
        if last.form != form:
            last.form, last.deltas, last.plan = form, {}, None
        if last.plan is None:
            last.plan = self._planned(last)
        known = last.plan
        return PassPlan(known.key, known.sites, known.by_table, rows, spans, catches, tokens)

    def fill_tables(self, plan: PassPlan) -> None:
        """Let the tables steer the rows of a pass on static buffers.

        Raises:
            Refusal: INSUFFICIENT_MEMORY where there is no room for the table of an SAE.
        """
        if plan.key == self._filled:
            return
        self._filled = 0
        for key, attachment in plan.by_table:
            plans = [row.plan for row in plan.rows]
            wanted = [frozenset(self._saes.values(key, its).items()) or None for its in plans]
            table = self._saes.table(attachment)
            table.fill(wanted, partial(self._direction, key, attachment, plans))
        self._filled = plan.key

    # ------------------------------------------------------------- inside

    def _renew(
        self,
        last: _Planned,
        rows: Sequence[RowSteering],
        spans: Sequence[tuple[int, int]],
        tokens: int,
    ) -> None:
        """Find what the rows do beside adding, and whether anything is other than it was."""
        steered = [self._saes.steered(row.plan) for row in rows]
        is_more = any(its.edits or its.modifiers for its in steered) or any(
            row.counted is not None or row.watched for row in rows
        )
        active: list[tuple[Edit, ...]] = []
        for row, its, (start, size) in zip(rows, steered, spans, strict=True) if is_more else ():
            # a row that is stepped alone may read its earlier positions again
            first = 0 if tokens else start
            active.append(row.active(its.edits, first, start + size - first))
        is_same = last.is_of(self._saes.version, rows)
        if is_same and _are_same_objects(last.active, active):
            return
        last.edits = self._edits(rows, active) if is_more else {}
        if not is_same:
            last.deltas = {}
        last.version, last.rows, last.active = self._saes.version, list(rows), active
        last.is_steady = not any(edit.is_placed for its in steered for edit in its.edits)
        last.plan = None

    def _planned(self, last: _Planned) -> PassPlan:
        """The plan of passes in which rows have these edits."""
        places, (count, is_static) = self._saes.places, last.form
        names = list(last.edits) if is_static else list({**places, **last.edits})
        sites = {}
        for name in names:
            place = self._saes.place_at(name)
            deltas = {}
            for key, attachment in place.saes.items():
                if key not in last.deltas:
                    last.deltas[key] = self._delta(key, attachment, last.rows, count)
                delta = last.deltas[key]
                if delta is not None:
                    deltas[key] = delta
            number = next(self._keys) if deltas else 0
            sites[name] = SitePlan(number, place, deltas, last.edits.get(name))
        by_table = [one for one in self._saes.attached.items() if name_of(one[1].site) not in sites]
        return PassPlan(next(self._keys), sites, by_table, (), (), NO_CATCHES, 0)

    # ------------------------------------------------------------- what rows do beside adding

    def _edits(
        self, rows: Sequence[RowSteering], active: Sequence[tuple[Edit, ...]]
    ) -> Mapping[PlaceName, SiteEdits]:
        """What the rows do at each site, by the edits of each that may act."""
        made = {}
        for name, parts in self._parts(rows, active).items():
            site = self._saes.place_at(name).site
            readers = self._readers(parts)
            made[name] = SiteEdits(parts, readers, self._directions, site.device, site.heads)
        return made

    def _parts(
        self, rows: Sequence[RowSteering], active: Sequence[tuple[Edit, ...]]
    ) -> Mapping[PlaceName, list[Part]]:
        parts: dict[PlaceName, list[Part]] = {}
        name_at = self._saes.name_at
        for number, (row, acting) in enumerate(zip(rows, active, strict=True)):
            steered = self._saes.steered(row.plan)
            found = (one for edit in acting for one in conditions(edit.when))
            plain = [one for one in dict.fromkeys(found) if not needs_record(one)]
            edits, reads, counted = (
                _by(acting, lambda edit: name_at(edit.at)),
                _by([*plain, *steered.recorded], lambda one: name_at(one.reads)),
                _by(self._saes.counted(row), lambda edit: name_at(edit.at)),
            )
            watched = _by(row.watched, name_at)
            for name in {*edits, *reads, *counted, *watched, *steered.places}:
                is_float = name in steered.places
                part = Part(
                    number,
                    row,
                    self._float_values(name, row.plan) if is_float else None,
                    tuple(edits.get(name, ())),
                    tuple(reads.get(name, ())),
                    tuple(counted.get(name, ())),
                    steered.modifiers if is_float else NO_MODIFIERS,
                    tuple(watched.get(name, ())),
                )
                if part.is_used:
                    parts.setdefault(name, []).append(part)
        return parts

    def _float_values(self, name: PlaceName, plan: Plan) -> Tensor | None:
        """The sum of value x decoder row over all SAEs of a site, float32 [width]; None where the plan adds nothing
        there."""
        place = self._saes.places.get(name)
        total: Tensor | None = None
        for key, attachment in place.saes.items() if place else ():
            if values := self._saes.values(key, plan):
                added = attachment.sae.direction(values).to(attachment.device)
                total = added if total is None else total + added
        return total

    def _readers(self, parts: Sequence[Part]) -> dict[str, Sae]:
        """By key, the SAEs that these parts read or write."""
        keys = {key for part in parts for key in part.keys}
        return {key: self._saes.sae(key) for key in sorted(keys)}

    # ------------------------------------------------------------- what is added

    def _delta(
        self, key: str, attachment: HookedSae, rows: Sequence[RowSteering], count: int
    ) -> Tensor | None:
        """What is added to `count` rows [count or 1, 1, width], of which these are the first; None for nothing."""
        vectors = [self._vector(key, attachment, row.plan) for row in rows]
        first = vectors[0]
        if all(vector is first for vector in vectors):
            return None if first is None else first[None, None]
        zero = torch.zeros_like(next(vector for vector in vectors if vector is not None))
        vectors += [None] * (count - len(vectors))
        return torch.stack([zero if vector is None else vector for vector in vectors])[:, None]

    def _direction(
        self, key: str, attachment: HookedSae, plans: Sequence[Plan], row: int
    ) -> Tensor:
        direction = self._vector(key, attachment, plans[row])
        assert direction is not None
        return direction

    def _vector(self, key: str, attachment: HookedSae, plan: Plan) -> Tensor | None:
        """One row's delta [d_in]: the sum of value x decoder row, summed in float32. None when the plan adds nothing,
        and where the edits of the row add the values."""
        values = self._saes.values(key, plan)
        if not values or name_of(attachment.site) in self._saes.steered(plan).places:
            return None
        name = (key, frozenset(values.items()))
        vector = self._vectors.get(name)
        if vector is None:
            vector = attachment.sae.direction(values).to(attachment.device, self._saes.dtype)
            self._vectors[name] = vector
            if len(self._vectors) > _REMEMBERED:
                self._vectors.popitem(last=False)
        return vector


def _are_same_objects(some: Sequence[object], others: Sequence[object]) -> bool:
    """Whether both have the same objects in the same order."""
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _by(
    items: Iterable[_Item], name_of: Callable[[_Item], PlaceName]
) -> dict[PlaceName, list[_Item]]:
    """The items by the site where they belong, each in its order."""
    by: dict[PlaceName, list[_Item]] = {}
    for item in items:
        by.setdefault(name_of(item), []).append(item)
    return by
