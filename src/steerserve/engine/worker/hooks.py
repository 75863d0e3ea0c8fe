"""Steering inside the forward pass: one hook per attached SAE, adding each row's own delta out of place.

It owns the attached SAEs, the live steering and the count of passes each hook acted in. Compiled models skip hooks
added later, so the model is never compiled.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from steerserve.engine.messages import Follow, Overlay, Plan
from steerserve.engine.worker.sae.canonical import Sae
from steerserve.engine.worker.sae.sites import Site
from steerserve.engine.worker.taps import TapReader
from steerserve.errors import Refusal
from steerserve.rules import steering

_REMEMBERED = 256


@dataclass(slots=True)
class Attachment:
    """One SAE at one site. `delta` [rows or 1, 1, d_in] is what the coming pass adds; None adds nothing. `taps` are
    the rows of the coming pass whose hidden states are to be caught; `number` is never given twice."""

    sae: Sae
    site: Site
    handle: RemovableHandle | None = None
    delta: Tensor | None = None
    taps: list[tuple[int, TapReader]] = field(default_factory=list)
    applied: int = 0
    number: int = 0


class Steering:
    """The attached SAEs of the model, and what they add to each row."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device
        self._attachments: dict[str, Attachment] = {}
        self._live = steering.Live()
        self.version = 0
        self._vectors: OrderedDict[tuple[str, frozenset[tuple[int, float]]], Tensor] = OrderedDict()

    @property
    def applied(self) -> dict[str, int]:
        """Per key, the forward passes since it was attached in which its delta was really added."""
        return {key: attachment.applied for key, attachment in self._attachments.items()}

    def attach(self, key: str, sae: Sae, site: Site) -> None:
        self.version += 1
        attachment = Attachment(sae, site, number=self.version)
        attachment.handle = site.hook(lambda hidden: self._add(attachment, hidden))
        self._attachments[key] = attachment

    def detach(self, key: str) -> None:
        self.version += 1
        attachment = self._attachments.pop(key)
        if attachment.handle:
            attachment.handle.remove()
        self._vectors.clear()

    def set_live(self, live: steering.Live) -> None:
        """Steer every following row by these values from the next pass on."""
        self._live = live
        self.version += 1

    def sae(self, key: str) -> Sae:
        """Raises:
        Refusal: SAE_NOT_ATTACHED.
        """
        if key not in self._attachments:
            raise Refusal("SAE_NOT_ATTACHED", "the SAE was detached")
        return self._attachments[key].sae

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
                    if tap is not None and tap.key == key and tap.sae is attachment.sae
                ]
            yield
        finally:
            for attachment in self._attachments.values():
                attachment.delta = None
                attachment.taps = []

    def _delta(self, key: str, attachment: Attachment, plans: Sequence[Plan]) -> Tensor | None:
        vectors = [self._vector(key, attachment, plan) for plan in plans]
        first = vectors[0]
        if all(vector is first for vector in vectors):
            return None if first is None else first[None, None]
        zero = torch.zeros(attachment.sae.d_in, dtype=self._dtype, device=self._device)
        return torch.stack([zero if vector is None else vector for vector in vectors])[:, None]

    def _vector(self, key: str, attachment: Attachment, plan: Plan) -> Tensor | None:
        """One row's delta [d_in]: the sum of value x decoder row, summed in float32. None when it adds nothing."""
        values = self._values(key, plan)
        if not values:
            return None
        name = (key, frozenset(values.items()))
        vector = self._vectors.get(name)
        if vector is None:
            vector = attachment.sae.direction(values).to(self._device, self._dtype)
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

    def _add(self, attachment: Attachment, hidden: Any) -> Tensor | None:
        steered: Tensor | None = None
        if attachment.delta is not None:
            attachment.applied += 1
            steered = hidden + attachment.delta.to(hidden.device)
        for row, tap in attachment.taps:
            tap.catch((hidden if tap.is_before or steered is None else steered)[row])
        return steered
