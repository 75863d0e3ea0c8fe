"""The target of monitoring: an attached SAE, its features that are monitored, and how the values of its site become
these features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from steerserve.messages import RECORD_MAXIMUM, Recorded
from steerserve.rules.steering import live as steering
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.live.ranking import is_active, largest_of_each
from steerserve.worker.rows.rows import BatchRow
from steerserve.worker.sae.canonical import NEEDS_K


class Seen(NamedTuple):
    """A row at its latest observed token, which has `position` in the row. The token's values are `rows[place]`, where
    `rows` [n, d_in] was copied from one pass. `watch` is the number of the watch of the SAE in which it was seen."""

    row: BatchRow
    position: int
    rows: Tensor
    place: int
    watch: int


@dataclass(frozen=True, slots=True)
class Target:
    """The attached SAE `key` with its `number`. `features` are the features that are encoded, None for all of them;
    `encode` turns the site's values [n, d_in] into these features [n, features] in float32."""

    key: str
    number: int
    d_sae: int
    device: torch.device
    encode: Callable[[Tensor], Tensor]
    features: Tensor | None
    top_k: int

    @property
    def width(self) -> int:
        """The number of features that are encoded."""
        return self.d_sae if self.features is None else len(self.features)

    def records(self, ended: Sequence[Seen], values: Tensor) -> list[Recorded]:
        """The records of choices by the values [choices, features] of their last tokens: the largest by magnitude
        first, equals by index. Inactive features are listed only where features were named."""
        every = largest_of_each(values, RECORD_MAXIMUM)
        fired = is_active(values).sum(-1).tolist()
        named = None if self.features is None else self.features.tolist()
        return [self._record(*one, named) for one in zip(ended, every, fired, strict=True)]

    def _record(
        self, seen: Seen, ranked: list[tuple[int, float]], fired: int, named: list[int] | None
    ) -> Recorded:
        row = seen.row
        assert row.label is not None
        if named is None:
            ranked = [(index, value) for index, value in ranked if value != 0]
        else:
            ranked = [(named[place], value) for place, value in ranked]
        return Recorded(
            id=row.request,
            label=row.label,
            key=self.key,
            choice=row.choice,
            position=seen.position,
            token=row.token_at(seen.position),
            activations=ranked,
            top_k=ranked[: self.top_k],
            fired=fired,
        )


def target_of(saes: HookedSaes, key: str, features: list[int] | None, top_k: int) -> Target:
    """The SAE at `key` as a target: all its features, or the `features` named. Where only some features are named and
    the activation allows it, only their columns of the encoder are moved to the site's device.

    Raises:
        Refusal: SAE_NOT_ATTACHED; INVALID_FEATURE_INDEX; INSUFFICIENT_MEMORY as `HookedSaes.sae`.
    """
    hooked = saes.find(key)
    sae, device = hooked.sae, hooked.device
    for index in features or ():
        steering.check_index(index, sae.d_sae)
    columns: Tensor | None = None
    encode: Callable[[Tensor], Tensor]
    if features is None:
        encode = saes.sae(key).encode
    else:
        on_host = torch.tensor(sorted(set(features)))
        columns = on_host.to(device)
        if sae.activation in NEEDS_K:
            encode = partial(saes.sae(key).encode_columns, features=columns)
        else:
            encode = sae.narrowed(on_host).encoder_to(device).encode
    return Target(key, hooked.number, sae.d_sae, device, encode, columns, top_k)
