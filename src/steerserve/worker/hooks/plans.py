"""What the plan of each row stands for now: the values that are added, and the edits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby

from steerserve.messages import Follow, Overlay, Plan
from steerserve.rules.steering import live as steering
from steerserve.rules.steering.edits import Condition, Edit, Feature, conditions
from steerserve.rules.steering.placed import NOTHING, Placed, Values, not_zero
from steerserve.rules.steering.vector import Direction
from steerserve.worker.hooks.attached import AttachedSaes, CheckRoom, FindSite
from steerserve.worker.hooks.called_sites import PlaceName
from steerserve.worker.hooks.places import name_of
from steerserve.worker.rows.steering import RowSteering, needs_record
from steerserve.worker.sae.canonical import Sae
from steerserve.worker.sae.sites import Site

_REMEMBERED = 256
"""The plans whose edits are kept resolved."""

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
    """

    edits: tuple[Edit, ...]
    places: frozenset[PlaceName]
    recorded: tuple[Condition, ...]
    keeps_norm: bool = False


class PlannedSaes(AttachedSaes):
    """The attached SAEs, and the live steering, which this class owns."""

    def __init__(
        self,
        check_room: CheckRoom,
        on_detach: Callable[[int], None],
        find_site: FindSite | None,
    ) -> None:
        super().__init__(check_room, on_detach, find_site)
        self._live = steering.Live()
        self._steered: OrderedDict[tuple[tuple[Edit, ...], bool], Steered] = OrderedDict()

    def attach(self, key: str, sae: Sae, site: Site) -> None:
        super().attach(key, sae, site)
        self._steered.clear()

    def detach(self, key: str) -> None:
        super().detach(key)
        self._steered.clear()

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
                self._reader(self.find(key))
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

    def may_reuse(self, row: RowSteering) -> bool:
        """Whether the row may begin with keys and values of an earlier row: what it reads and counts at their positions
        would be missing."""
        return row.counted is None and not self.steered(row.plan).recorded

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

    def _values(self, key: str, plan: Plan) -> Values:
        return not_zero(self._now(plan).values.get(key, {}))

    def _resolved(self, edits: tuple[Edit, ...], keeps_norm: bool) -> Steered:
        places = {self._name_of(edit.at) for edit in edits}
        if keeps_norm:
            places |= {name_of(attachment.site) for attachment in self._attachments.values()}
        found = dict.fromkeys(one for edit in edits for one in conditions(edit.when))
        recorded = tuple(one for one in found if needs_record(one))
        return Steered(edits, frozenset(places), recorded, keeps_norm)

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
