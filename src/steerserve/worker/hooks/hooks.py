"""The SAEs that are attached, each with its hook, the sites of directions, and the live steering.

The weights of an SAE stay on the host, where the few decoder rows that steer are summed. The encoder of an SAE is
copied to the device of its site when activations are first read there. A compiled model skips hooks that are added
later, so no model is compiled. A site without an SAE is hooked for those passes only in which a row edits or reads a
direction there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from weakref import WeakValueDictionary

import torch

from steerserve.errors import Refusal
from steerserve.messages import Follow, Overlay, Plan
from steerserve.parts.row_part import SiteRead
from steerserve.rules.saes.sites import OPERAND_SITES
from steerserve.rules.steering import live as steering
from steerserve.rules.steering.edits import Condition, Edit, Feature, conditions
from steerserve.rules.steering.placed import (
    NO_MODIFIERS,
    NOTHING,
    Modifiers,
    Placed,
    Values,
    not_zero,
)
from steerserve.rules.steering.vector import Direction
from steerserve.worker import memory
from steerserve.worker.hooks.called_sites import PlaceName
from steerserve.worker.hooks.places import HookedSae, Place, name_of
from steerserve.worker.hooks.site_passes import SitePasses
from steerserve.worker.hooks.site_plans import SitePlanner
from steerserve.worker.hooks.table import DirectionTable
from steerserve.worker.rows.steering import RowSteering, needs_record
from steerserve.worker.sae.canonical import Sae
from steerserve.worker.sae.sites import Site

_REMEMBERED = 256
"""The plans whose edits are kept resolved."""

_PACKED_SHARE = 4
"""The encoder of an SAE is packed where its copy takes at most one part in this many of the free memory."""

CheckRoom = Callable[[torch.device, int], None]

FindSite = Callable[[str, int], Site]
"""The site of this name at this layer; refused where the model does not have it."""


Runs = tuple[tuple[float, Hashable], ...]
"""How the positions of a row are steered: the end of each run of positions, and a value that stands for their
steering."""


@dataclass(frozen=True, slots=True)
class Steered:
    """What the edits of a plan are now.

    Attributes:
        edits: those that may change something, in their order.
        places: the sites whose values these edits change. There, all that the row adds is added in float32.
        recorded: the conditions that need readings of earlier positions.
        is_in_attention: whether an edit or a condition is at queries, keys or values.
    """

    edits: tuple[Edit, ...]
    places: frozenset[PlaceName]
    recorded: tuple[Condition, ...]
    modifiers: Modifiers = NO_MODIFIERS
    is_in_attention: bool = False


class HookedSaes:
    """Owner of the attached SAEs, of the hooked sites and of the live steering. `version` rises with each change of
    what steers. `planner` plans what passes do at the sites, and `passes` does it.

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
        self.dtype = dtype
        self._check_room = check_room
        self._on_detach = on_detach
        self._find_site = find_site
        self.attached: dict[str, HookedSae] = {}
        self.places: dict[PlaceName, Place] = {}
        self.passes = SitePasses()
        self.planner = SitePlanner(self)
        self.version = 0
        self._found: dict[tuple[str, int], Site] = {}
        # whether an edit, a condition or a read has been at queries, keys or values
        self._acts_in_attention = False
        self._reads: WeakValueDictionary[Hashable, SiteRead] = WeakValueDictionary()
        self._live = steering.Live()
        self._steered: OrderedDict[tuple[tuple[Edit, ...], Modifiers], Steered] = OrderedDict()

    @property
    def applied(self) -> dict[str, int]:
        """By key, the number of forward passes since the SAE was attached in which its delta was added."""
        return {key: attachment.applied for key, attachment in self.attached.items()}

    def uncount(self, applied: Mapping[str, int]) -> None:
        """Count as before a pass that was stopped and runs again. `applied` is what was counted before the pass."""
        for key, count in applied.items():
            self.attached[key].applied = count

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the attached SAEs. A recorded pass has the hooks of these SAEs."""
        return tuple(attachment.number for attachment in self.attached.values())

    def held_memory(self) -> Iterator[memory.Held]:
        """What the attached SAEs hold in memory, with the copies that reading activations needs."""
        for attachment in self.attached.values():
            yield from attachment.sae.held_memory()
            if attachment.reader is not None:
                yield from attachment.reader.held_memory()

    def attach(self, key: str, sae: Sae, site: Site) -> None:
        """Hook the SAE to its site. An SAE that is at `key` already is detached first."""
        if key in self.attached:
            self.detach(key)
        self.version += 1
        attachment = HookedSae(sae, site, site.device, self.version)
        place = self._place(site)
        held = {**place.saes, key: attachment}
        # where a later hook of a module runs before the earlier ones, so does a later SAE
        order = (key, *place.saes) if site.is_prepended else tuple(held)
        place.saes = {name: held[name] for name in order}
        if place.handle is None:
            place.handle = site.hook(partial(self.passes.act, place))
        self.attached[key] = attachment
        self._steered.clear()

    def detach(self, key: str) -> None:
        """Take the hook and the weights of the SAE at `key` away.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        attachment = self.find(key)
        self.version += 1
        del self.attached[key]
        place = self._place(attachment.site)
        del place.saes[key]
        if not place.saes:
            del self.places[place.name]
            if place.handle:
                place.handle.remove()
        self._steered.clear()
        self.planner.forget_saes()
        self._on_detach(attachment.number)

    def sae(self, key: str) -> Sae:
        """The SAE at `key` with its encoder on the site's device.

        Raises:
            Refusal: SAE_NOT_ATTACHED; INSUFFICIENT_MEMORY when the encoder must be copied there first and does not fit.
        """
        return self._reader(self.find(key))

    def find(self, key: str) -> HookedSae:
        """The attached SAE at `key`, with its site and its state.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        if key not in self.attached:
            raise Refusal("SAE_NOT_ATTACHED", "the SAE was detached")
        return self.attached[key]

    def held(self, key: str) -> Sae:
        """The SAE at `key` as the host holds it.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        return self.find(key).sae

    # ------------------------------------------------------------- sites and readers

    def _reader(self, attachment: HookedSae) -> Sae:
        if attachment.reader is None:
            if attachment.sae.W_enc.device != attachment.device:
                self._check_room(attachment.device, attachment.sae.encoder_bytes)
            attachment.reader = self._packed(attachment.sae.encoder_to(attachment.device))
        return attachment.reader

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

    def _place(self, site: Site) -> Place:
        return self.places.setdefault(name_of(site), Place(site))

    def read_of(self, at: Sequence[tuple[str, int]], is_before: bool) -> SiteRead:
        """What reads these sites, each by its name and its layer; the same object for the same sites.

        Raises:
            Refusal: SAE_INCOMPATIBLE where the model does not have one of them.
        """
        name = tuple(at), is_before
        read = self._reads.get(name)
        if read is None:
            read = self._reads[name] = SiteRead(tuple(self._site_at(*one) for one in at), is_before)
        return read

    def _site(self, direction: Direction) -> Site:
        """Raises:
        Refusal: SAE_INCOMPATIBLE where the model does not have the site.
        """
        return self._site_at(direction.site, direction.layer)

    def _site_at(self, name: str, layer: int) -> Site:
        at = name, layer
        if at not in self._found:
            if self._find_site is None:
                raise Refusal("SAE_INCOMPATIBLE", "this model has no sites for directions")
            self._found[at] = self._find_site(*at)
            self._acts_in_attention |= name in OPERAND_SITES
        return self._found[at]

    def _check_heads(self, edit: Edit, chosen: Sequence[int], site: Site) -> None:
        where = f"interventions.edits[{edit.number}].heads"
        for head in chosen:
            if head >= site.heads:
                has = f"is outside [0, {site.heads})" if site.heads else "is given, and it has none"
                why = f"{where}: {head} {has} at {site.name} of this model"
                raise Refusal("INVALID_INTERVENTION", why, param=where, heads=site.heads)

    def _check_width(self, direction: Direction, site: Site, rows: int = 1) -> None:
        if direction.width != site.width * rows:
            raise Refusal(
                "INVALID_PARAMETER",
                f"a direction of {direction.width} numbers does not fit {direction.site} of layer {direction.layer}, "
                f"which has {site.width}",
                param="interventions",
            )

    def name_at(self, at: Feature | Direction) -> PlaceName:
        """The site of an SAE, or of a direction."""
        return name_of(self.find(at.key).site if isinstance(at, Feature) else self._site(at))

    def place_at(self, name: PlaceName) -> Place:
        """The site of this name, which has an SAE or a direction."""
        place = self.places.get(name)
        return place or Place(next(site for site in self._found.values() if name_of(site) == name))

    def table(self, attachment: HookedSae) -> DirectionTable:
        """The table that steers an SAE in passes on static buffers.

        Raises:
            Refusal: INSUFFICIENT_MEMORY where there is no room for it.
        """
        if attachment.table is None:
            width = attachment.site.width
            self._check_room(attachment.device, DirectionTable.size_bytes(width, self.dtype))
            attachment.table = DirectionTable(width, self.dtype, attachment.device)
        return attachment.table

    # ------------------------------------------------------------- what a plan stands for

    @property
    def epoch(self) -> int:
        """The epoch of the live steering."""
        return self._live.epoch

    def set_live(self, live: steering.Live) -> None:
        """Steer the rows that follow the live values by these values, from the next pass on."""
        self._live = live
        self.version += 1

    def prepare(self, row: RowSteering) -> None:
        """Make what the edits of a row need, before the row has a pass: a refusal costs no other row anything.

        Raises:
            Refusal: SAE_NOT_ATTACHED; SAE_INCOMPATIBLE where the model does not have the site of a direction;
                INVALID_PARAMETER where a direction has another width, or the prompt lacks a position;
                INSUFFICIENT_MEMORY where an encoder has to be copied and does not fit.
        """
        row.check_positions()
        planned = row.plan.epoch if isinstance(row.plan, Follow) else None
        row.epoch = self._live.epoch if planned is None else planned
        edits = self._edits(row.plan)
        self.prepare_edits(edits)
        # edits that were changed before the row could begin are not those of its report
        row.list_edits(() if self.is_changed(row) else edits)
        for edit in edits:
            row.check_source(edit)
        for direction in row.watched:
            self._check_width(direction, self._site(direction))

    def prepare_edits(self, edits: Sequence[Edit]) -> None:
        """Make what edits need.

        Raises:
            Refusal: as `prepare`.
        """
        for edit in edits:
            for key in sorted(edit.keys):
                self._reader(self.find(key))
            reads = (condition.reads for condition in conditions(edit.when))
            for one in (edit.at, edit.to, *reads):
                if isinstance(one, Direction):
                    rows = edit.source.rows if edit.source and one is edit.at else 1
                    self._check_width(one, self._site(one), rows)
            if edit.source is not None and isinstance(edit.at, Direction):
                self._check_heads(edit, edit.source.heads, self._site(edit.at))

    def is_changed(self, row: RowSteering) -> bool:
        """Whether an operator has changed the steering of a row since it began."""
        match row.plan:
            case Follow():
                return row.epoch != self._live.epoch
            case Overlay(epoch=int() as planned):
                return planned != self._live.epoch
        return False

    def may_reuse(self, row: RowSteering) -> bool:
        """Whether the row may begin with keys and values of an earlier row: what it reads and counts at their positions
        would be missing."""
        return row.counted is None and not self.steered(row.plan).recorded

    def may_keep(self, row: RowSteering) -> bool:
        """Whether other rows may begin with the keys and values of this row. The library's attention, which runs where
        an edit acts in attention, rounds differently from the compiled one."""
        return not self.steered(row.plan).is_in_attention

    def acts_in_attention(self, row: RowSteering, first: int, size: int) -> bool:
        """Whether a pass over the positions [first, first + size) of a row changes or reads queries, keys or values
        while attention runs. Other rows keep their bits only in other passes."""
        if not self._acts_in_attention:
            return False
        if any(direction.site in OPERAND_SITES for direction in row.watched):
            return True
        steered = self.steered(row.plan)
        if not steered.is_in_attention:
            return False
        acting = row.active(steered.edits, first, size)
        return any(map(_is_in_attention, acting)) or any(map(_reads_in_attention, steered.recorded))

    def signature(self, row: RowSteering, size: int) -> Runs:
        """How the first `size` positions of a row are steered now. The values of two positions are equal exactly where
        the steering is equal and by the same SAEs."""
        steered = self.steered(row.plan)
        base = tuple(
            (
                attachment.number,
                frozenset(values.items()),
                name_of(attachment.site) in steered.places,
            )
            for key, attachment in self.attached.items()
            if (values := self.values(key, row.plan))
        )
        if not steered.edits:
            return ((float("inf"), (base, steered.modifiers if base else NO_MODIFIERS, ())),)
        is_one = not row.is_positional(steered.edits)
        numbers = {key: attachment.number for key, attachment in self.attached.items()}
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
            runs.append((at, (base, steered.modifiers if base or made else NO_MODIFIERS, made)))
        return tuple(runs)

    def steered(self, plan: Plan) -> Steered:
        """What the edits of a plan are now."""
        edits = tuple(self._edits(plan))
        name = edits, self._now(plan).modifiers
        known = self._steered.get(name)
        if known is None:
            known = self._steered[name] = self._resolved(*name)
            if len(self._steered) > _REMEMBERED:
                self._steered.popitem(last=False)
        return known

    # ------------------------------------------------------------- inside

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

    def values(self, key: str, plan: Plan) -> Values:
        """What a plan adds of each feature of an SAE now."""
        return not_zero(self._now(plan).values.get(key, {}))

    def _resolved(self, edits: tuple[Edit, ...], modifiers: Modifiers) -> Steered:
        places = {self.name_at(edit.at) for edit in edits}
        if modifiers:
            places |= {name_of(attachment.site) for attachment in self.attached.values()}
        found = dict.fromkeys(one for edit in edits for one in conditions(edit.when))
        recorded = tuple(one for one in found if needs_record(one))
        is_in_attention = any(map(_is_in_attention, edits))
        return Steered(edits, frozenset(places), recorded, modifiers, is_in_attention)

    def counted(self, row: RowSteering) -> Sequence[Edit]:
        """The edits among the added values of a row that are counted: after a change by an operator, those whose value
        is still the same."""
        counted = row.counted or ()
        if not self.is_changed(row):
            return counted
        return [
            edit
            for edit in counted
            if isinstance(edit.at, Feature)
            and self.values(edit.at.key, row.plan).get(edit.at.index) == edit.target.offset
        ]


def _is_in_attention(edit: Edit) -> bool:
    """Whether an edit, or one of its conditions, is at queries, keys or values."""
    at_operand = isinstance(edit.at, Direction) and edit.at.site in OPERAND_SITES
    return at_operand or any(map(_reads_in_attention, conditions(edit.when)))


def _reads_in_attention(condition: Condition) -> bool:
    return isinstance(condition.reads, Direction) and condition.reads.site in OPERAND_SITES
