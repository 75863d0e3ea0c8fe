"""Edits: what each kind does, to what, where and when.

Let x be the value of a site in float32. An edit reads one number r of x: the activation of a feature, or the projection
p = x . v / |v| on a direction v. It moves x by strength x (t(r) - r) x w, where t is its target, and w is the decoder
row of the feature, or v / |v|. For a feature this is the same as encoding x, changing one activation, decoding, and
adding back what the SAE does not reconstruct, because the error of the reconstruction cancels. The target of every kind
is an affine function between two bounds, so a kind is a row of `KINDS` and no code. Two kinds write another direction:
`swap` writes w = u / |u| - v / |v| for the direction u of `to`, and `add` of a direction writes v times the scale of
its `unit`. `replace` of a site moves the whole value: x' = x + strength x (1 - factor of t) x (s - x), where s is the
value of its source.

At one site, all edits that add are summed first. The others follow in their order: an activation is read before
anything was added at the site, a projection is read from the value so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType

import msgspec

from steerserve.rules.steering.positions import ALL, Positions
from steerserve.rules.steering.vector import Direction

ADD, ABLATE, SWAP, REPLACE = "add", "ablate", "swap", "replace"
RAW, UNIT, RESIDUAL = "raw", "unit", "residual"
UNITS = (RAW, UNIT, RESIDUAL)
"""What the value of an `add` of a direction v is multiplied with: v, v / |v|, or |x| v / |v|."""
TOKEN, PROMPT_MAX, PROMPT_MEAN, LAST_PROMPT = "token", "prompt_max", "prompt_mean", "last_prompt"
OVER = (TOKEN, PROMPT_MAX, PROMPT_MEAN, LAST_PROMPT)
"""What a condition is decided by: the reading at each position, or one number of the readings of the whole prompt."""


class Target(msgspec.Struct, frozen=True, order=True):
    """t(r) = min(max(factor x r + offset, low), high)."""

    factor: float = 1.0
    offset: float = 0.0
    low: float = -math.inf
    high: float = math.inf

    @property
    def is_added(self) -> bool:
        """Whether the edit adds the same to x whatever it reads."""
        return self.factor == 1.0 and self.low == -math.inf and self.high == math.inf


class Feature(msgspec.Struct, frozen=True, order=True, tag=True, cache_hash=True):
    """The feature `index` of the SAE that is attached as `key`."""

    key: str
    index: int


class Condition(msgspec.Struct, frozen=True, tag=True, cache_hash=True):
    """Whether a reading is above or below a bound; exactly one of the two is given, and the bound itself is neither.

    A feature and a direction are read before anything is added at their site. A condition `over` the positions one by
    one (`token`) holds at the position where it is true and at the next ones, `hold` positions together; None holds to
    the end. One over the whole prompt is decided at its end, and holds or does not hold at every later position.
    """

    reads: Feature | Direction
    above: float | None = None
    below: float | None = None
    over: str = TOKEN
    hold: int | None = 1

    @property
    def is_of_prompt(self) -> bool:
        """Whether the readings of the whole prompt decide."""
        return self.over != TOKEN


class AnyOf(msgspec.Struct, frozen=True, tag=True):
    """Holds where one of its conditions holds."""

    conditions: tuple[Condition | AnyOf | AllOf, ...]


class AllOf(msgspec.Struct, frozen=True, tag=True):
    """Holds where each of its conditions holds."""

    conditions: tuple[Condition | AnyOf | AllOf, ...]


When = Condition | AnyOf | AllOf


class Source(msgspec.Struct, frozen=True):
    """The values that `replace` writes: one for all positions of the edit, or one for each of them in their order. At a
    site they are the numbers of the edit's direction [rows, width]; with `heads`, only the numbers of these heads are
    written. Several `activations` of a feature are here, one for each row. One is the offset of the target."""

    rows: int = 1
    heads: tuple[int, ...] = ()
    activations: tuple[float, ...] = ()


class Edit(msgspec.Struct, frozen=True, cache_hash=True):
    """One edit of a feature, or of a direction at the site of that direction.

    Attributes:
        strength: 1 makes the whole edit, and 0.5 half of the way to it. Edits that add have their strength in the
            offset of the target.
        unit: one of `UNITS`, for edits that add a direction.
        to: the direction that `swap` writes in the place of the one that it reads.
        positions: where the edit acts.
        when: the condition under which it acts there.
        number: the place of the edit in the list that the answer reports. It changes nothing of what the edit does.
        source: what `at` has for an edit that replaces the value of a site; None for all other edits.
    """

    at: Feature | Direction
    target: Target
    strength: float = 1.0
    unit: str = RAW
    to: Direction | None = None
    positions: Positions = ALL
    when: When | None = None
    number: int = 0
    source: Source | None = None

    @property
    def is_added(self) -> bool:
        """Whether the edit belongs to those that are summed before the others."""
        return self.target.is_added

    @property
    def is_idle(self) -> bool:
        """Whether the edit changes nothing, whatever it reads."""
        return self.target == Target() or self.strength == 0.0

    @property
    def is_placed(self) -> bool:
        """Whether the edit leaves out some positions, whatever it reads there. It leaves out positions that it does not
        name. An `add` whose unit is the length of x also leaves out the token that begins a text."""
        return not self.positions.is_every or self.unit == RESIDUAL

    @property
    def key(self) -> str | None:
        """The attachment whose feature is edited; None for a direction."""
        return self.at.key if isinstance(self.at, Feature) else None

    @property
    def keys(self) -> frozenset[str]:
        """The attachments that the edit reads or writes."""
        reads = [condition.reads for condition in conditions(self.when)]
        return frozenset(one.key for one in [self.at, *reads] if isinstance(one, Feature))

    @property
    def content(self) -> Edit:
        """The edit without its number: equal for edits that do the same."""
        return msgspec.structs.replace(self, number=0)


def conditions(when: When | None) -> Iterator[Condition]:
    """All conditions of which a condition is made."""
    if isinstance(when, Condition):
        yield when
    elif when is not None:
        for one in when.conditions:
            yield from conditions(one)


def ordered(edits: Sequence[Edit]) -> tuple[Edit, ...]:
    """The edits of one request in the order in which they are made: first those that add, then the others in their
    order. Neighbours that edit features change nothing for each other, so they are sorted; equal lists then have equal
    bits and equal digests."""
    added = sorted((edit for edit in edits if edit.is_added), key=_sorting)
    made = list(added)
    others = (edit for edit in edits if not edit.is_added)
    for is_feature, run in groupby(others, lambda edit: isinstance(edit.at, Feature)):
        neighbours = list(run)
        made += sorted(neighbours, key=_sorting) if is_feature else neighbours
    return tuple(made)


def _sorting(edit: Edit) -> bytes:
    return msgspec.msgpack.encode(edit.content)


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
        ABLATE: Kind(lambda _: Target(factor=0.0), None, None),
    }
)
"""Op -> its kind, in the order of the documentation."""


def direction_target(op: str, value: float) -> Target:
    """The target of an edit of a direction. The targets are those of features, with two exceptions: `ablate` has a
    value, the part of the projection that it takes away, and `swap` writes the projection on another direction, so its
    target is twice the projection. The value of `replace` is the part of the way to the source."""
    if op == SWAP:
        return Target(factor=2.0)
    if op in (ABLATE, REPLACE):
        return Target(factor=1.0 - value)
    return KINDS[op].target(value)
