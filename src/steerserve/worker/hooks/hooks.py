"""Steering inside the forward pass: one hook per site adds each row's own delta to the value of the site, and makes the
row's other edits, in a new tensor.

This module owns the attached SAEs, the live steering, and the count of passes in which each SAE steered. A site without
an SAE is hooked for those passes only in which a row edits or reads a direction there. The weights of an SAE stay on
the host, where the few decoder rows that steer are summed. The encoder of an SAE is copied to the device of its site
when activations are first read there. A compiled model skips hooks that are added later, so no model is compiled.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TypeVar

import torch
from torch import Tensor

from steerserve.errors import Refusal
from steerserve.messages import Follow, Overlay, Plan
from steerserve.rules.steering import live as steering
from steerserve.rules.steering.edits import Condition, Edit, Feature, conditions
from steerserve.rules.steering.placed import NOTHING, Placed, Values, not_zero
from steerserve.rules.steering.vector import Direction
from steerserve.worker import memory
from steerserve.worker.hooks.called_sites import (
    PlaceName,
    SiteCalls,
    SiteWork,
    are_same_objects,
)
from steerserve.worker.hooks.edits import Directions, Masks, Part, Readings, SiteEdits, Span
from steerserve.worker.hooks.table import DirectionTable
from steerserve.worker.rows.steering import RowSteering, needs_record
from steerserve.worker.sae.canonical import Sae
from steerserve.worker.sae.sites import Called, Change, Handle, Moved, RowDeltas, Site

_Item = TypeVar("_Item")

_REMEMBERED = 256
_PACKED_SHARE = 4
"""The encoder of an SAE is packed where its copy takes at most one part in this many of the free memory."""

CheckRoom = Callable[[torch.device, int], None]

FindSite = Callable[[str, int], Site]
"""The site of this name at this layer; refused where the model does not have it."""

Runs = tuple[tuple[float, Hashable], ...]
"""How the positions of a row are steered: the end of each run of positions, and a value that stands for their
steering."""

Catch = Callable[[Tensor, Tensor | None], None]
"""A function that is called within a pass with a site's value [rows, T, width], before the SAE's own steering is added,
and with the delta of that steering ([rows or 1, T or 1, width]; None where nothing is added). The function copies the
parts that it keeps. It raises nothing, because the pass belongs to other rows too."""


@dataclass(slots=True)
class HookedSae:
    """One SAE at one site; no other attached SAE ever has the same `number`.

    `delta` [rows or 1, 1, width] is added by the coming pass; None adds nothing. `catches` take the site's value in the
    coming pass. `reader` is the SAE on the site's device, once activations are read there. `made` holds the last delta,
    after the version and the plans from which it was made.

    `table` steers the passes on static buffers, once there was one.
    """

    sae: Sae
    site: Site
    device: torch.device
    number: int
    reader: Sae | None = None
    delta: Tensor | None = None
    made: tuple[int, Sequence[Plan], Tensor | None] = (-1, (), None)
    catches: Sequence[Catch] = ()
    applied: int = 0
    table: DirectionTable | None = None


@dataclass(slots=True)
class Place:
    """One hooked site: the SAEs there by key, in the order in which they steer, and what the rows of the coming pass do
    there beside adding."""

    site: Site
    saes: dict[str, HookedSae] = field(default_factory=dict)
    handle: Handle | None = None
    edits: SiteEdits | None = None


@dataclass(frozen=True, slots=True)
class Steered:
    """What the edits of a plan are now.

    Attributes:
        edits: those that may change something, in their order.
        places: the sites whose values these edits change. There, all that the row adds is added in float32.
        recorded: the conditions that need readings of earlier positions.
    """

    edits: tuple[Edit, ...]
    places: frozenset[PlaceName]
    recorded: tuple[Condition, ...]
    keeps_norm: bool = False


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


@dataclass(frozen=True, slots=True)
class _Done:
    """What a site does to its value: the value before each SAE there adds to it, and what was read for conditions."""

    moved: Moved | None
    seen: Sequence[tuple[HookedSae, Tensor]]
    read: Sequence[Tensor]


class HookedSaes:
    """The attached SAEs of the model, and the deltas that they add to each row.

    `check_room` refuses where a device lacks memory for so many bytes. `on_detach` is called with the number of each
    SAE that is taken away. `find_site` finds the sites of directions.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        check_room: CheckRoom = lambda device, size: None,
        on_detach: Callable[[int], None] = lambda number: None,
        find_site: FindSite | None = None,
    ) -> None:
        self._dtype = dtype
        self._check_room = check_room
        self._on_detach = on_detach
        self._find_site = find_site
        self._attachments: dict[str, HookedSae] = {}
        self._places: dict[PlaceName, Place] = {}
        self._directions = Directions()
        self._found: dict[tuple[str, int], Site] = {}
        self._steered: OrderedDict[tuple[tuple[Edit, ...], bool], Steered] = OrderedDict()
        self._last = {True: _Pass(), False: _Pass()}
        self._live = steering.Live()
        self._tokens = 0
        self._sites: dict[int, Tensor] | None = None
        self._filled: tuple[int, frozenset[PlaceName], tuple[Plan, ...]] = (-1, frozenset(), ())
        self._called: dict[PlaceName, Place] = {}
        self.calls = SiteCalls()
        self.version = 0
        self._vectors: OrderedDict[tuple[str, frozenset[tuple[int, float]]], Tensor] = OrderedDict()
        self._spans: Sequence[tuple[int, int]] = ()
        self._readings = Readings()

    @property
    def epoch(self) -> int:
        """The epoch of the live steering."""
        return self._live.epoch

    @property
    def applied(self) -> dict[str, int]:
        """By key, the number of forward passes since the SAE was attached in which its delta was added."""
        return {key: attachment.applied for key, attachment in self._attachments.items()}

    def uncount(self, applied: Mapping[str, int]) -> None:
        """Count as before a pass that was stopped and runs again. `applied` is what was counted before the pass."""
        for key, count in applied.items():
            self._attachments[key].applied = count

    def held_memory(self) -> Iterator[memory.Held]:
        """What the attached SAEs hold in memory, with the copies that reading activations needs."""
        for attachment in self._attachments.values():
            yield from attachment.sae.held_memory()
            if attachment.reader is not None:
                yield from attachment.reader.held_memory()

    def attach(self, key: str, sae: Sae, site: Site) -> None:
        """Hook the SAE to its site. An SAE that is at `key` already is detached first."""
        if key in self._attachments:
            self.detach(key)
        self.version += 1
        attachment = HookedSae(sae, site, site.device, self.version)
        place = self._place(site)
        held = {**place.saes, key: attachment}
        # where a later hook of a module runs before the earlier ones, so does a later SAE
        order = (key, *place.saes) if site.is_prepended else tuple(held)
        place.saes = {name: held[name] for name in order}
        if place.handle is None:
            place.handle = site.hook(partial(self._act, place))
        self._attachments[key] = attachment
        self._steered.clear()

    def detach(self, key: str) -> None:
        """Take the hook and the weights of the SAE at `key` away.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        attachment = self._at(key)
        self.version += 1
        del self._attachments[key]
        place = self._place(attachment.site)
        del place.saes[key]
        if not place.saes:
            del self._places[_name(attachment.site)]
            if place.handle:
                place.handle.remove()
        self._on_detach(attachment.number)
        self._vectors.clear()
        self._steered.clear()
        self._last = {True: _Pass(), False: _Pass()}

    def set_live(self, live: steering.Live) -> None:
        """Steer the rows that follow the live values by these values, from the next pass on."""
        self._live = live
        self.version += 1

    def sae(self, key: str) -> Sae:
        """The SAE at `key` with its encoder on the site's device.

        Raises:
            Refusal: SAE_NOT_ATTACHED; INSUFFICIENT_MEMORY when the encoder must be copied there first and does not fit.
        """
        return self._reader(self._at(key))

    def find(self, key: str) -> HookedSae:
        """The attached SAE at `key`, with its site and its state.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        return self._at(key)

    def held(self, key: str) -> Sae:
        """The SAE at `key` as the host holds it.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        return self._at(key).sae

    def signature(self, row: RowSteering, size: int) -> Runs:
        """How the first `size` positions of a row are steered now. The values of two positions are equal exactly where
        the steering is equal and by the same SAEs."""
        steered = self.steered(row.plan)
        base = tuple(
            (attachment.number, frozenset(values.items()), _name(attachment.site) in steered.places)
            for key, attachment in self._attachments.items()
            if (values := self._values(key, row.plan))
        )
        if not steered.edits:
            return ((float("inf"), (base, steered.keeps_norm and bool(base), ())),)
        is_one = not row.is_positional(steered.edits)
        numbers = {key: attachment.number for key, attachment in self._attachments.items()}
        told = [
            (edit.content, tuple(sorted(numbers[key] for key in edit.keys)))
            for edit in steered.edits
        ]
        runs: list[tuple[float, Hashable]] = []
        at = 0.0
        for acting, run in groupby(row.acting(steered.edits, 1 if is_one else size)):
            at += float("inf") if is_one else sum(1 for _ in run)
            made = tuple(
                (told[i], decided) for i, decided in enumerate(acting) if decided is not None
            )
            runs.append((at, (base, steered.keeps_norm and bool(base or made), made)))
        return tuple(runs)

    def may_reuse(self, row: RowSteering) -> bool:
        """Whether the row may begin with keys and values of an earlier row: what it reads and counts at their positions
        would be missing."""
        return row.counted is None and not self.steered(row.plan).recorded

    def prepare(self, row: RowSteering) -> None:
        """Make what the edits of a row need, before the row has a pass: a refusal costs no other row anything.

        Raises:
            Refusal: SAE_NOT_ATTACHED; SAE_INCOMPATIBLE where the model does not have the site of a direction;
                INVALID_PARAMETER where a direction has another width, or the prompt lacks a position;
                INSUFFICIENT_MEMORY where an encoder has to be copied and does not fit.
        """
        row.check()
        planned = row.plan.epoch if isinstance(row.plan, Follow) else None
        row.epoch = self._live.epoch if planned is None else planned
        edits = self._edits(row.plan)
        self.check(edits)
        # edits that were changed before the row could begin are not those of its report
        row.begin(() if self.is_changed(row) else edits)
        for direction in row.watched:
            self._check_width(direction, self._site(direction))

    def check(self, edits: Sequence[Edit]) -> None:
        """Make what edits need.

        Raises:
            Refusal: as `prepare`.
        """
        for edit in edits:
            for key in sorted(edit.keys):
                self._reader(self._at(key))
            reads = (condition.reads for condition in conditions(edit.when))
            for one in (edit.at, edit.to, *reads):
                if isinstance(one, Direction):
                    self._check_width(one, self._site(one))

    def is_changed(self, row: RowSteering) -> bool:
        """Whether an operator has changed the steering of a row since it began."""
        match row.plan:
            case Follow():
                return row.epoch != self._live.epoch
            case Overlay(epoch=int() as planned):
                return planned != self._live.epoch
        return False

    def steered(self, plan: Plan) -> Steered:
        """What the edits of a plan are now."""
        edits = tuple(self._edits(plan))
        name = edits, self._now(plan).keeps_norm
        known = self._steered.get(name)
        if known is None:
            known = self._steered[name] = self._resolved(*name)
            if len(self._steered) > _REMEMBERED:
                self._steered.popitem(last=False)
        return known

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
            self._tokens, self._spans, self._readings = tokens, spans, Readings()
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

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the attached SAEs. A recorded pass has the hooks of these SAEs."""
        return tuple(attachment.number for attachment in self._attachments.values())

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
            self._called = self._hook(works, undo)
            self._fill_tables(plans)
            for key, attachment in self._attachments.items():
                if _name(attachment.site) in works:
                    attachment.delta = self._delta(key, attachment, plans, count)
                    attachment.catches = catches.get(attachment.number, ())
            self._tokens, self._spans = 0, spans
            self._sites = {}
            yield self._sites

    def begin_pass(self) -> None:
        """Count from 0 what the coming pass of `by_table` does."""
        for attachment in self._by_table():
            self._table(attachment).steered.zero_()
        self.calls.begin()
        self._readings = Readings()

    def has_steered(self) -> bool:
        """Whether one pass since `begin_pass` has steered all rows that it had to steer, at all sites."""
        if sorted(self.calls.made) != sorted(self._called):
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
        for place in self._called.values():
            self._count(place)

    def _by_table(self) -> list[HookedSae]:
        """The SAEs that the tables steer in a pass of `by_table`."""
        attachments = self._attachments.values()
        return [one for one in attachments if _name(one.site) not in self._called]

    def _fill_tables(self, plans: Sequence[Plan]) -> None:
        version, called, made_of = self._filled
        if (
            version == self.version
            and called == self._called.keys()
            and are_same_objects(made_of, plans)
        ):
            return
        self._filled = (-1, frozenset(), ())
        for key, attachment in self._attachments.items():
            if _name(attachment.site) in self._called:
                continue
            wanted = [frozenset(self._values(key, plan).items()) or None for plan in plans]
            table = self._table(attachment)
            table.fill(wanted, partial(self._direction, key, attachment, plans))
        self._filled = (self.version, frozenset(self._called), tuple(plans))

    def _hook(
        self, works: Mapping[PlaceName, SiteEdits], undo: ExitStack
    ) -> dict[PlaceName, Place]:
        """Have the rows do this at the sites, each of which is hooked until `undo` is closed."""
        places = {}
        for name, work in works.items():
            place = places[name] = self._places.get(name) or Place(self._found_at(name))
            place.edits = work
            if place.handle is None:
                undo.callback(place.site.hook(partial(self._act, place)).remove)
        return places

    # ------------------------------------------------------------- the edits of a pass

    def _edits(self, plan: Plan) -> Sequence[Edit]:
        """The edits of a plan that may change something."""
        edits = self._now(plan).edits
        if not any(edit.is_idle for edit in edits):
            return edits
        return [edit for edit in edits if not edit.is_idle]

    def _now(self, plan: Plan) -> Placed | Overlay:
        """What a plan stands for now."""
        match plan:
            case Follow():
                return self._live.applied
            case Overlay():
                return steering.effective(self._live, plan, plan.epoch)
        return NOTHING

    def _resolved(self, edits: tuple[Edit, ...], keeps_norm: bool) -> Steered:
        places = {self._name_of(edit.at) for edit in edits}
        if keeps_norm:
            places |= {_name(attachment.site) for attachment in self._attachments.values()}
        found = dict.fromkeys(one for edit in edits for one in conditions(edit.when))
        recorded = tuple(one for one in found if needs_record(one))
        return Steered(edits, frozenset(places), recorded, keeps_norm)

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

    def _counted(self, row: RowSteering) -> Sequence[Edit]:
        """The edits among the added values of a row that are counted: after a change by an operator, those whose value
        is still the same."""
        counted = row.counted or ()
        if not self.is_changed(row):
            return counted
        return [
            edit
            for edit in counted
            if isinstance(edit.at, Feature)
            and self._values(edit.at.key, row.plan).get(edit.at.index) == edit.target.offset
        ]

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
        return {key: self._reader(self._at(key)) for key in sorted(keys)}

    def _end_pass(self) -> None:
        for attachment in self._attachments.values():
            attachment.delta = None
            attachment.catches = ()
        for place in self._places.values():
            place.edits = None
        self._readings = Readings()
        self._called, self._sites = {}, None

    # ------------------------------------------------------------- sites

    def _place(self, site: Site) -> Place:
        return self._places.setdefault(_name(site), Place(site))

    def _site(self, direction: Direction) -> Site:
        """Raises:
        Refusal: SAE_INCOMPATIBLE where the model does not have the site.
        """
        at = direction.site, direction.layer
        if at not in self._found:
            if self._find_site is None:
                raise Refusal("SAE_INCOMPATIBLE", "this model has no sites for directions")
            self._found[at] = self._find_site(*at)
        return self._found[at]

    def _check_width(self, direction: Direction, site: Site) -> None:
        if direction.width != site.width:
            raise Refusal(
                "INVALID_PARAMETER",
                f"a direction of {direction.width} numbers does not fit {direction.site} of layer {direction.layer}, "
                f"which has {site.width}",
                param="interventions",
            )

    def _name_of(self, at: Feature | Direction) -> PlaceName:
        return _name(self._at(at.key).site if isinstance(at, Feature) else self._site(at))

    def _found_at(self, name: PlaceName) -> Site:
        return next(site for site in self._found.values() if _name(site) == name)

    def _device_of(self, name: PlaceName) -> torch.device:
        place = self._places.get(name)
        return (place.site if place else self._found_at(name)).device

    # ------------------------------------------------------------- inside

    def _at(self, key: str) -> HookedSae:
        if key not in self._attachments:
            raise Refusal("SAE_NOT_ATTACHED", "the SAE was detached")
        return self._attachments[key]

    def _reader(self, attachment: HookedSae) -> Sae:
        if attachment.reader is None:
            if attachment.sae.W_enc.device != attachment.device:
                self._check_room(attachment.device, attachment.sae.encoder_bytes)
            attachment.reader = self._packed(attachment.sae.encoder_to(attachment.device))
        return attachment.reader

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

    def _packed(self, sae: Sae) -> Sae:
        """The SAE with a packed copy of its encoder, where the host has plenty of memory for the copy."""
        device = sae.W_enc.device
        if device.type != "cpu" or not sae.may_pack:
            return sae
        try:
            self._check_room(device, _PACKED_SHARE * sae.W_enc.nbytes)
        except Refusal:
            return sae
        return sae.packed_encoder()

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
        if not values or _name(attachment.site) in self.steered(plan).places:
            return None
        name = (key, frozenset(values.items()))
        vector = self._vectors.get(name)
        if vector is None:
            vector = attachment.sae.direction(values).to(attachment.device, self._dtype)
            self._vectors[name] = vector
            if len(self._vectors) > _REMEMBERED:
                self._vectors.popitem(last=False)
        return vector

    def _values(self, key: str, plan: Plan) -> Values:
        return not_zero(self._now(plan).values.get(key, {}))

    def _act(self, place: Place, value: Tensor) -> Moved | Called | None:
        """Called by the hook: give the site's value [rows, T, width] to the observers, and return what is done to the
        value."""
        if self._sites is None:
            done = self._done(place, value, self._masks(place, value))
            self._tell(place, done)
            self._count(place)
            return done.moved
        name = _name(place.site)
        if name not in self._called:
            return self._act_by_table(place, value)

        def made(tensor: Tensor, changed: Callable[[Change], Tensor]) -> Tensor:
            # at a replay, the rows are others than when the pass was recorded
            return self.calls.at(
                name, value, tensor, lambda: self._work(self._called[name], value, changed)
            )

        return Called(made)

    def _work(
        self, place: Place, value: Tensor, changed: Callable[[Change], Tensor]
    ) -> SiteWork[_Done]:
        """What is done at a called site now."""
        masks = self._masks(place, value)

        def run() -> tuple[Tensor, _Done]:
            done = self._done(place, value, masks)
            return changed(done.moved), done

        edits = place.edits
        assert edits is not None
        deltas = [one.delta for one in place.saes.values() if one.delta is not None]
        made_of = (*(mask for mask in masks if mask is not None), *deltas)
        held = edits.held if edits.is_fixed else None
        return SiteWork(run, partial(self._tell, place), made_of, held)

    def _count(self, place: Place) -> None:
        """Count a pass for each SAE of the place that steered in it."""
        for key, attachment in place.saes.items():
            edited = place.edits is not None and key in place.edits.written
            attachment.applied += attachment.delta is not None or edited

    def _done(self, place: Place, value: Tensor, masks: Masks) -> _Done:
        """What the SAEs and the rows do to the value of a site."""
        added = []
        seen: list[tuple[HookedSae, Tensor]] = []
        so_far = value
        for attachment in place.saes.values():
            seen.append((attachment, so_far))
            if attachment.delta is not None:
                added.append(attachment.delta)
                if len(place.saes) > 1:
                    so_far = so_far + attachment.delta
        change: Tensor | None = None
        read: Sequence[Tensor] = ()
        if place.edits is not None:
            span = self._span(value)
            change, read = place.edits.change(value, span, self._readings, masks)
        is_moved = added or change is not None
        return _Done(Moved(added, change) if is_moved else None, seen, read)

    def _tell(self, place: Place, done: _Done) -> None:
        """Give what a site did in a pass to the observers, and what was read to conditions at later sites."""
        if place.edits is not None:
            place.edits.note(done.read, self._readings)
        change = None if done.moved is None else done.moved.change
        for attachment, before in done.seen:
            moved = attachment.delta
            if attachment.catches and change is not None:
                moved = change if moved is None else change + moved
                moved = moved[:, -self._tokens :]
            for catch in attachment.catches:
                catch(before[:, -self._tokens :], moved)  # all tokens where the number is 0

    def _masks(self, place: Place, value: Tensor) -> Masks:
        """Where the edits of a site may act."""
        if place.edits is None:
            return ()
        return place.edits.masks(self._span(value), value.shape[1])

    def _span(self, value: Tensor) -> Span:
        """The positions of the rows of a pass in the value [rows, T, width] of a site."""
        width = value.shape[1]
        firsts, sizes = [], []
        for start, size in self._spans:
            # a row that is stepped alone may have its earlier positions in the value too
            firsts.append(start + size - width if self._tokens else start)
            sizes.append(width if self._tokens else size)
        return Span(firsts, sizes)

    def _act_by_table(self, place: Place, value: Tensor) -> Moved:
        """What a pass on static buffers adds. The observers take the value after the pass, because a replay calls no
        hook."""
        assert self._sites is not None
        added: list[Tensor | RowDeltas] = []
        for attachment in place.saes.values():
            self._sites[attachment.number] = value.clone()
            delta = self._table(attachment).edit(value)
            added.append(delta)
            if len(place.saes) > 1:
                value = torch.where(delta.is_added, value + delta.delta, value)
        return Moved(added, None)


def _name(site: Site) -> PlaceName:
    return site.path, site.name


def _by(
    items: Iterable[_Item], name_of: Callable[[_Item], PlaceName]
) -> dict[PlaceName, list[_Item]]:
    """The items by the site where they belong, each in its order."""
    by: dict[PlaceName, list[_Item]] = {}
    for item in items:
        by.setdefault(name_of(item), []).append(item)
    return by
