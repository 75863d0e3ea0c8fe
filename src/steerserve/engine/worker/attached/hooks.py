"""Steering inside the forward pass: one hook per attached SAE, adding each row's own delta out of place.

It owns the attached SAEs, the live steering and the count of passes each hook acted in. Weights stay on the host: what
steers is a few decoder rows, summed there; an encoder goes to its site's device when something first reads activations.
Compiled models skip hooks added later, so the model is never compiled.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from steerserve.engine.wire.messages import Follow, Overlay, Plan
from steerserve.engine.worker.observing.monitor import Monitor, Target
from steerserve.engine.worker.rows.taps import TapReader
from steerserve.engine.worker.sae.canonical import NEEDS_K, Sae
from steerserve.engine.worker.sae.sites import Handle, Site
from steerserve.errors import Refusal
from steerserve.rules import steering

_REMEMBERED = 256

CheckRoom = Callable[[torch.device, int], None]


@dataclass(slots=True)
class Attachment:
    """One SAE at one site. `delta` [rows or 1, 1, width] is what the coming pass adds; None adds nothing. `taps` are
    the rows of the coming pass whose values are to be caught; `number` is never given twice. `reader` is the SAE on the
    site's device, once something reads activations; `made` is the last delta, and what it was made of."""

    sae: Sae
    site: Site
    device: torch.device
    number: int
    handle: Handle | None = None
    reader: Sae | None = None
    delta: Tensor | None = None
    made: tuple[int, Sequence[Plan], Tensor | None] = (-1, (), None)
    taps: list[tuple[int, TapReader]] = field(default_factory=list)
    monitor: Monitor | None = None
    applied: int = 0


class Steering:
    """The attached SAEs of the model, what they add to each row, and the one that is monitored.

    Tokens in `special` are never monitored. `check_room` refuses so many bytes more on a device that lacks them.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        special: frozenset[int] = frozenset(),
        check_room: CheckRoom = lambda device, size: None,
    ) -> None:
        self._dtype = dtype
        self._check_room = check_room
        self._attachments: dict[str, Attachment] = {}
        self._live = steering.Live()
        self.version = 0
        self.monitor = Monitor(special)
        self._vectors: OrderedDict[tuple[str, frozenset[tuple[int, float]]], Tensor] = OrderedDict()

    @property
    def applied(self) -> dict[str, int]:
        """Per key, the forward passes since it was attached in which its delta was really added."""
        return {key: attachment.applied for key, attachment in self._attachments.items()}

    def attach(self, key: str, sae: Sae, site: Site) -> None:
        """Hook the SAE to its site, in the place of one that is at `key` already."""
        if key in self._attachments:
            self.detach(key)
        self.version += 1
        attachment = Attachment(sae, site, site.device, self.version)
        attachment.handle = site.hook(lambda value: self._act(attachment, value))
        self._attachments[key] = attachment

    def detach(self, key: str) -> None:
        """Take the hook and the weights away; what was monitored there is forgotten.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        attachment = self._at(key)
        self.version += 1
        del self._attachments[key]
        if attachment.handle:
            attachment.handle.remove()
        self.monitor.drop(attachment.number)
        self._vectors.clear()

    def watch(self, key: str | None, features: list[int] | None = None, top_k: int = 10) -> None:
        """Monitor the SAE at `key` from the next pass on, all its features or those named; None monitors nothing.

        Raises:
            Refusal: SAE_NOT_ATTACHED; INVALID_FEATURE_INDEX; INSUFFICIENT_MEMORY as `sae`.
        """
        target = None if key is None else self._target(key, features, top_k)
        for attachment in self._attachments.values():
            is_watched = target is not None and attachment.number == target.number
            attachment.monitor = self.monitor if is_watched else None
        self.monitor.watch(target)

    def set_live(self, live: steering.Live) -> None:
        """Steer every following row by these values from the next pass on."""
        self._live = live
        self.version += 1

    def sae(self, key: str) -> Sae:
        """The SAE at `key` with its encoder on the site's device.

        Raises:
            Refusal: SAE_NOT_ATTACHED; INSUFFICIENT_MEMORY when it must go there first and does not fit any more.
        """
        return self._reader(self._at(key))

    def held(self, key: str) -> Sae:
        """The SAE at `key` as the host holds it.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        return self._at(key).sae

    def signature(self, plan: Plan) -> Hashable:
        """What a row of this plan is steered by now: equal exactly for equal steering by the same SAEs."""
        found = []
        for key, attachment in self._attachments.items():
            values = self._values(key, plan)
            if values:
                found.append((attachment.number, frozenset(values.items())))
        return tuple(found)

    @contextmanager
    def of(self, plans: Sequence[Plan], taps: Sequence[TapReader | None] = ()) -> Iterator[None]:
        """While open, a forward pass over these rows is steered and tapped row by row."""
        try:
            for key, attachment in self._attachments.items():
                attachment.delta = self._delta(key, attachment, plans)
                attachment.taps = [
                    (i, tap)
                    for i, tap in enumerate(taps)
                    if tap is not None and tap.key == key and tap.sae is attachment.reader
                ]
            yield
        finally:
            for attachment in self._attachments.values():
                attachment.delta = None
                attachment.taps = []

    def _at(self, key: str) -> Attachment:
        if key not in self._attachments:
            raise Refusal("SAE_NOT_ATTACHED", "the SAE was detached")
        return self._attachments[key]

    def _reader(self, attachment: Attachment) -> Sae:
        if attachment.reader is None:
            if attachment.sae.W_enc.device != attachment.device:
                self._check_room(attachment.device, attachment.sae.encoder_bytes)
            attachment.reader = attachment.sae.encoder_to(attachment.device)
        return attachment.reader

    def _target(self, key: str, features: list[int] | None, top_k: int) -> Target:
        attachment = self._at(key)
        sae, device = attachment.sae, attachment.device
        for index in features or ():
            steering.check_index(index, sae.d_sae)
        chosen: Tensor | None = None
        encode: Callable[[Tensor], Tensor]
        if features is None:
            encode = self._reader(attachment).encode
        else:
            there = torch.tensor(sorted(set(features)))
            chosen = there.to(device)
            if sae.activation in NEEDS_K:
                encode = partial(self._reader(attachment).encode_columns, features=chosen)
            else:
                encode = sae.narrowed(there).encoder_to(device).encode
        return Target(key, attachment.number, sae.d_sae, device, encode, chosen, top_k)

    def _delta(self, key: str, attachment: Attachment, plans: Sequence[Plan]) -> Tensor | None:
        version, made_of, delta = attachment.made
        same = version == self.version and len(made_of) == len(plans)
        if same and all(a is b for a, b in zip(made_of, plans, strict=True)):
            return delta
        delta = self._stacked([self._vector(key, attachment, plan) for plan in plans])
        attachment.made = self.version, tuple(plans), delta
        return delta

    def _stacked(self, vectors: list[Tensor | None]) -> Tensor | None:
        first = vectors[0]
        if all(vector is first for vector in vectors):
            return None if first is None else first[None, None]
        zero = torch.zeros_like(next(vector for vector in vectors if vector is not None))
        return torch.stack([zero if vector is None else vector for vector in vectors])[:, None]

    def _vector(self, key: str, attachment: Attachment, plan: Plan) -> Tensor | None:
        """One row's delta [d_in]: the sum of value x decoder row, summed in float32. None when it adds nothing."""
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

    def _act(self, attachment: Attachment, value: Tensor) -> Tensor | None:
        """What to add to the site's value [rows, T, width]; what is read there is copied on the way."""
        delta = attachment.delta
        if attachment.monitor is not None:
            attachment.monitor.catch(value)
        for row, tap in attachment.taps:
            added = None
            if delta is not None and not tap.is_before:
                added = delta[row if len(delta) > 1 else 0]
            tap.catch(value[row], added)
        if delta is not None:
            attachment.applied += 1
        return delta
