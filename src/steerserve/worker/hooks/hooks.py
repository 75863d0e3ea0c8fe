"""Steering inside the forward pass: one hook per attached SAE adds each row's own delta to the value of its site, and
makes the row's other edits, in a new tensor.

This module owns the attached SAEs, the live steering, and the count of passes in which each hook added something. The
weights of an SAE stay on the host, where the few decoder rows that steer are summed. The encoder of an SAE is copied to
the device of its site when activations are first read there. A compiled model skips hooks that are added later, so no
model is compiled.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from steerserve.errors import Refusal
from steerserve.messages import Follow, Overlay, Plan
from steerserve.rules.steering import live as steering
from steerserve.rules.steering.edits import Edit
from steerserve.worker.hooks.edits import RowEdits
from steerserve.worker.hooks.table import DirectionTable
from steerserve.worker.sae.canonical import Sae
from steerserve.worker.sae.sites import EditedRows, Handle, RowDeltas, Site

_REMEMBERED = 256
_PACKED_SHARE = 4
"""The encoder of an SAE is packed where its copy takes at most one part in this many of the free memory."""

CheckRoom = Callable[[torch.device, int], None]


Catch = Callable[[Tensor, Tensor | None], None]
"""A function that is called within a pass with a site's value [rows, T, width], before the SAE's own steering is added,
and with the delta of that steering ([rows or 1, T or 1, width]; None where nothing is added). The function copies the
parts that it keeps. It raises nothing, because the pass belongs to other rows too."""


@dataclass(slots=True)
class HookedSae:
    """One SAE at one site; no other attached SAE ever has the same `number`.

    `delta` [rows or 1, 1, width] is added by the coming pass; None adds nothing. `edits` has the edits of each row of
    the coming pass, and is empty where no row has any. `catches` take the site's value in the
    coming pass. `reader` is the SAE on the site's device, once activations are read there. `made` holds the last delta,
    after the version and the plans from which it was made.

    `table` steers the passes on static buffers, once there was one.
    """

    sae: Sae
    site: Site
    device: torch.device
    number: int
    handle: Handle | None = None
    reader: Sae | None = None
    delta: Tensor | None = None
    edits: Sequence[RowEdits | None] = ()
    made: tuple[int, Sequence[Plan], Tensor | None] = (-1, (), None)
    catches: Sequence[Catch] = ()
    applied: int = 0
    table: DirectionTable | None = None


class HookedSaes:
    """The attached SAEs of the model, and the deltas that they add to each row.

    `check_room` refuses where a device lacks memory for so many bytes. `on_detach` is called with the number of each
    SAE that is taken away.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        check_room: CheckRoom = lambda device, size: None,
        on_detach: Callable[[int], None] = lambda number: None,
    ) -> None:
        self._dtype = dtype
        self._check_room = check_room
        self._on_detach = on_detach
        self._attachments: dict[str, HookedSae] = {}
        self._live = steering.Live()
        self._tokens = 0
        self._sites: dict[int, Tensor] | None = None
        self._filled: tuple[int, tuple[Plan, ...]] = (-1, ())
        self.version = 0
        self._vectors: OrderedDict[tuple[str, frozenset[tuple[int, float]]], Tensor] = OrderedDict()
        self._edits: OrderedDict[tuple[int, tuple[Edit, ...]], RowEdits] = OrderedDict()

    @property
    def applied(self) -> dict[str, int]:
        """By key, the number of forward passes since the SAE was attached in which its delta was added."""
        return {key: attachment.applied for key, attachment in self._attachments.items()}

    def tensors(self) -> Iterator[Tensor]:
        """The tensors of the attached SAEs, with the copies that reading activations needs."""
        for attachment in self._attachments.values():
            yield from attachment.sae.tensors()
            if attachment.reader is not None:
                yield from attachment.reader.tensors()

    def attach(self, key: str, sae: Sae, site: Site) -> None:
        """Hook the SAE to its site. An SAE that is at `key` already is detached first."""
        if key in self._attachments:
            self.detach(key)
        self.version += 1
        attachment = HookedSae(sae, site, site.device, self.version)
        attachment.handle = site.hook(lambda value: self._act(attachment, value))
        self._attachments[key] = attachment

    def detach(self, key: str) -> None:
        """Take the hook and the weights of the SAE at `key` away.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        attachment = self._at(key)
        self.version += 1
        del self._attachments[key]
        if attachment.handle:
            attachment.handle.remove()
        self._on_detach(attachment.number)
        self._vectors.clear()
        self._edits.clear()

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

    def signature(self, plan: Plan) -> Hashable:
        """A value that stands for the steering that a row of this plan gets now. Two such values are equal exactly when
        the steering is equal and by the same SAEs."""
        acting = []
        for key, attachment in self._attachments.items():
            values, edits = self._values(key, plan), self._edits_of(key, plan)
            if values or edits:
                acting.append((attachment.number, frozenset(values.items()), edits))
        return tuple(acting)

    def prepare(self, plan: Plan) -> None:
        """Make what the edits of a plan need, before the row has a pass: a refusal costs no other row anything.

        Raises:
            Refusal: SAE_NOT_ATTACHED; INSUFFICIENT_MEMORY where an encoder has to be copied and does not fit.
        """
        for key in dict.fromkeys(key for edit in _edits(plan) for key in edit.keys):
            self._row_edits(self._at(key), self._edits_of(key, plan))

    def has_edits(self, plans: Sequence[Plan]) -> bool:
        """Whether a row with one of these plans has edits that a recorded pass does not make."""
        return any(self._edits_of(key, plan) for plan in plans for key in self._attachments)

    @contextmanager
    def of(
        self,
        plans: Sequence[Plan],
        catches: Mapping[int, Sequence[Catch]] | None = None,
        *,
        rows: int = 0,
        tokens: int = 0,
    ) -> Iterator[None]:
        """While open, a forward pass over rows with these plans is steered row by row. `catches` has, by the number of
        an attached SAE, the functions that take the value of its site. The pass has `rows` rows where that is more than
        the plans; nobody reads what the model computes for the others. The functions get the last `tokens` tokens of
        the value only, or all where `tokens` is 0."""
        catches = catches or {}
        rows = max(rows, len(plans))
        try:
            for key, attachment in self._attachments.items():
                attachment.delta = self._delta(key, attachment, plans, rows)
                edits = [self._edits_of(key, plan) for plan in plans]
                attachment.edits = (
                    [self._row_edits(attachment, one) for one in edits] if any(edits) else ()
                )
                attachment.catches = catches.get(attachment.number, ())
            self._tokens = tokens
            yield
        finally:
            for attachment in self._attachments.values():
                attachment.delta = None
                attachment.edits = ()
                attachment.catches = ()

    # ------------------------------------------------------------- passes on static buffers

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the attached SAEs. A recorded pass has the hooks of these SAEs."""
        return tuple(attachment.number for attachment in self._attachments.values())

    def fill_tables(self, plans: Sequence[Plan]) -> None:
        """Have the passes of `by_table` that follow steer rows with these plans, and no other rows.

        Raises:
            Refusal: INSUFFICIENT_MEMORY where there is no room for the table of an SAE.
        """
        version, made_of = self._filled
        same = version == self.version and len(made_of) == len(plans)
        if same and all(a is b for a, b in zip(made_of, plans, strict=True)):
            return
        self._filled = (-1, ())
        for key, attachment in self._attachments.items():
            wanted = [frozenset(self._values(key, plan).items()) or None for plan in plans]
            table = self._table(attachment)
            table.fill(wanted, partial(self._direction, key, attachment, plans))
        self._filled = (self.version, tuple(plans))

    @contextmanager
    def by_table(self) -> Iterator[dict[int, Tensor]]:
        """While open, passes over one token of each row are steered by the tables, and recorded passes read the tables
        at each replay. Gives the values [rows, 1, width] of the sites in the last pass, by the number of the SAE."""
        self._sites = {}
        try:
            yield self._sites
        finally:
            self._sites = None

    def forget_counts(self) -> None:
        """Count the steered rows from 0."""
        for attachment in self._attachments.values():
            self._table(attachment).steered.zero_()

    def has_steered(self) -> bool:
        """Whether one pass since `forget_counts` has steered all rows that it had to steer, at all sites."""
        tables = [self._table(attachment) for attachment in self._attachments.values()]
        if not tables:
            return True
        counts = torch.stack([table.steered for table in tables]).tolist()
        return bool(counts == [table.expected for table in tables])

    def tell(self, values: Mapping[int, Tensor], catches: Mapping[int, Sequence[Catch]]) -> None:
        """Give the values of the sites in a pass to the functions that take them, and count the pass."""
        handed = [
            (attachment.number, self._table(attachment).deltas())
            for attachment in self._attachments.values()
            if attachment.number in catches
        ]
        for number, delta in handed:
            for catch in catches[number]:
                catch(values[number], delta)
        for attachment in self._attachments.values():
            attachment.applied += self._table(attachment).expected > 0

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
        same = version == self.version and len(made_of) == len(plans)
        same = same and (delta is None or delta.shape[0] in (1, rows))
        if same and all(a is b for a, b in zip(made_of, plans, strict=True)):
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
        """One row's delta [d_in]: the sum of value x decoder row, summed in float32. None when the plan adds
        nothing."""
        values = self._values(key, plan)
        if not values:
            return None
        name = (key, frozenset(values.items()))
        vector = self._vectors.get(name)
        if vector is None:
            vector = attachment.sae.direction(values).to(attachment.device, self._dtype)
            self._vectors[name] = vector
            if len(self._vectors) > _REMEMBERED:
                self._vectors.popitem(last=False)
        return vector

    def _values(self, key: str, plan: Plan) -> steering.Values:
        if isinstance(plan, Follow):
            return steering.effective(self._live, None, 0, key)
        if isinstance(plan, Overlay):
            return steering.effective(self._live, plan.values, plan.epoch, key)
        return {}

    def _edits_of(self, key: str, plan: Plan) -> tuple[Edit, ...]:
        return tuple(edit for edit in _edits(plan) if edit.key == key and not edit.is_idle)

    def _row_edits(self, attachment: HookedSae, edits: tuple[Edit, ...]) -> RowEdits | None:
        if not edits:
            return None
        name = attachment.number, edits
        made = self._edits.get(name)
        if made is None:
            made = RowEdits(edits, self._reader(attachment), attachment.device)
            self._edits[name] = made
            if len(self._edits) > _REMEMBERED:
                self._edits.popitem(last=False)
        return made

    def _act(self, attachment: HookedSae, value: Tensor) -> Tensor | EditedRows | RowDeltas | None:
        """Called by the hook: give the site's value [rows, T, width] to its observers, and return what is done to the
        value."""
        if self._sites is not None:
            # the observers take the value after the pass, because a replay calls no hook
            self._sites[attachment.number] = value.clone()
            return self._table(attachment).edit(value)
        delta = attachment.delta
        read = value[:, -self._tokens :]  # all tokens where the number is 0
        if not attachment.edits:
            for catch in attachment.catches:
                catch(read, delta)
            attachment.applied += delta is not None
            return delta
        change = torch.zeros(value.shape, dtype=torch.float32, device=value.device)
        for row, edits in enumerate(attachment.edits):
            if edits is not None:
                change[row] = edits.change(value[row])
        if attachment.catches:
            moved = change if delta is None else change + delta
            for catch in attachment.catches:
                catch(read, moved[:, -self._tokens :])
        attachment.applied += 1
        return EditedRows(delta, change)


def _edits(plan: Plan) -> Sequence[Edit]:
    return plan.edits if isinstance(plan, Overlay) else ()
