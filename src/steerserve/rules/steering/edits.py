"""The kinds of edits: what each does to the activation of a feature, and within which bounds.

Let x be the value of a site, a the activation of a feature there before anything was added, and d the decoder direction
of the feature. An edit moves x by strength x (t(a) - a) x d, where t is its target. This is the same as encoding x,
changing one activation, decoding, and adding back what the SAE does not reconstruct, because the error of the
reconstruction cancels. The target of every kind is an affine function between two bounds, so a kind is a row of `KINDS`
and no code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

ADD = "add"
EDITS_MAXIMUM = 64
"""The edits of one request."""
SITE_MAXIMUM = 16
"""The edits of one request at one attached SAE that are not `add`."""


class Target(msgspec.Struct, frozen=True, order=True):
    """t(a) = min(max(factor x a + offset, low), high)."""

    factor: float = 1.0
    offset: float = 0.0
    low: float = -math.inf
    high: float = math.inf

    @property
    def is_added(self) -> bool:
        """Whether the edit adds the same to x whatever the activation is."""
        return self.factor == 1.0 and self.low == -math.inf and self.high == math.inf


class Edit(msgspec.Struct, frozen=True, order=True):
    """One edit of the feature `feature` of the SAE that is attached as `key`. A `strength` of 1 makes the whole edit,
    and of 0.5 half of the way to it. Edits read the activation before anything is added, so their order changes
    nothing but the last bits of a sum; they are made in their sorted order."""

    key: str
    feature: int
    target: Target
    strength: float = 1.0

    @property
    def is_idle(self) -> bool:
        """Whether the edit changes nothing, whatever the activation is."""
        return self.target == Target() or self.strength == 0.0


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of edit.

    Attributes:
        target: its target, from the value of an edit.
        lowest, highest: the bounds of the value. Both are None for a kind without a value.
    """

    target: Callable[[float], Target]
    lowest: float | None = -10_000.0
    highest: float | None = 10_000.0

    @property
    def has_value(self) -> bool:
        return self.lowest is not None


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        ADD: Kind(lambda value: Target(offset=value), -200.0, 200.0),
        "set": Kind(lambda value: Target(factor=0.0, offset=value)),
        "at_least": Kind(lambda value: Target(low=value)),
        "at_most": Kind(lambda value: Target(high=value)),
        "scale": Kind(lambda value: Target(factor=value)),
        "ablate": Kind(lambda _: Target(factor=0.0), None, None),
    }
)
"""Op -> its kind, in the order of the documentation."""
