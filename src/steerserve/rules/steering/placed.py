"""Edits at attached SAEs and sites of a model, at an intensity: the one form of all that steers.

The live values, a profile, a cluster, a circuit, the live interventions and the steering of a request each are a
`Placed`. They differ in who owns it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import Struct, structs

from steerserve.errors import Refusal
from steerserve.rules.steering.edits import Edit, Feature
from steerserve.rules.steering.vector import FLOAT_MAXIMUM, is_finite32

MANUAL = "manual"
"""The owner of the values that the steering routes and the profiles set."""

INTERVENTIONS = "interventions"
"""The owner of the live interventions."""

MINIMUM = -200.0
MAXIMUM = 200.0

LISTED = 20
"""The most features that a warning or a refusal lists."""

_DIGITS = 15
"""The significant digits that every decimal number keeps as a float."""

Values = Mapping[int, float]


class Modifiers(Struct, frozen=True, omit_defaults=True):
    """What holds for all that steers a request, the added values and the edits together. With `preserve_norm` a value
    at a site has the norm after the steering that it had before."""

    preserve_norm: bool = False

    def __bool__(self) -> bool:
        return self != NO_MODIFIERS

    def __or__(self, other: Modifiers) -> Modifiers:
        """What holds where one of the two asks for it."""
        names = self.__struct_fields__
        return Modifiers(*(getattr(self, name) or getattr(other, name) for name in names))


NO_MODIFIERS = Modifiers()


@dataclass(frozen=True, slots=True)
class Standing:
    """One live intervention: the JSON with which it was sent, its op, and the attached SAEs that it reads or edits."""

    sent: Mapping[str, object]
    op: str
    keys: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Placed:
    """Edits at the attached SAEs and the sites of the model.

    Attributes:
        values: the values of features that are added everywhere, by attachment.
        edits: all other edits that change anything, in the order in which they are made.
        added: the edits that `values` are the sums of, each with its place in the request as its number.
        standing: for edits that steer everyone, each edit as it was sent; the number of an edit is its place here.
        modifiers: what holds for the values and the edits together.
        replaces: whether the values of other owners are not added.
    """

    values: Mapping[str, Values] = field(default_factory=dict)
    edits: tuple[Edit, ...] = ()
    added: tuple[Edit, ...] = ()
    standing: tuple[Standing, ...] = ()
    modifiers: Modifiers = NO_MODIFIERS
    replaces: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.edits or self.standing or any(self.values.values()))

    def at(self, intensity: float, field: str = "") -> Placed:
        """The same at an intensity: values are multiplied and clamped, and any other edit goes that part of its way.
        `field` is where a request has the edits.

        Raises:
            Refusal: as `at_strength`.
        """
        return replace(
            self,
            values=scaled(self.values, intensity),
            edits=tuple(at_strength(edit, intensity, field) for edit in self.edits),
            added=tuple(at_strength(edit, intensity, field) for edit in self.added),
        )

    def without(self, key: str) -> Placed:
        """What neither reads nor edits the SAE `key`."""
        kept = [place for place, one in enumerate(self.standing) if key not in one.keys]
        return replace(
            self,
            values={k: values for k, values in self.values.items() if k != key},
            edits=_numbered(self.edits, kept),
            added=_numbered(self.added, kept),
            standing=tuple(self.standing[place] for place in kept),
        )


NOTHING = Placed()


def _numbered(edits: Iterable[Edit], kept: list[int]) -> tuple[Edit, ...]:
    """The edits whose numbers are kept, with their places among the kept ones as numbers."""
    return tuple(
        structs.replace(edit, number=kept.index(edit.number))
        for edit in edits
        if edit.number in kept
    )


def not_zero(values: Values) -> dict[int, float]:
    """The values that are not 0. An SAE whose values are all 0 leaves the output unchanged, bit for bit."""
    return {i: v for i, v in values.items() if v != 0.0}


def clamped(value: float) -> float:
    """The value, held within [-200, 200]. A zero has no sign."""
    return min(MAXIMUM, max(MINIMUM, value)) + 0.0


def is_clamped(value: float, intensity: float) -> bool:
    """Whether a value times an intensity is outside of [-200, 200]."""
    return abs(value * intensity) > MAXIMUM


def listed(features: Sequence[object]) -> str:
    """Features as a list in words, which has at most LISTED of them."""
    more = f" and {len(features) - LISTED} more" if len(features) > LISTED else ""
    return ", ".join(map(str, features[:LISTED])) + more


def clamp_warnings(features: Sequence[object], intensity: float) -> tuple[str, ...]:
    """The warning about features whose values at an intensity are outside of [-200, 200]."""
    if not features:
        return ()
    bounds = f"[{MINIMUM:g}, {MAXIMUM:g}] and will be clamped"
    values = f"at intensity {intensity:g} the values of features {listed(features)}"
    return (f"{values} are outside {bounds}",)


def at_intensity(value: float, intensity: float) -> float:
    """A value times an intensity, clamped. At intensity 1 it is the value itself."""
    return clamped(value if intensity == 1.0 else _rounded(value * intensity))


def at_strength(edit: Edit, strength: float, field: str = "") -> Edit:
    """An edit at an intensity: what is added is multiplied by the intensity, and any other edit goes that part of its
    way.

    Raises:
        Refusal: INVALID_INTERVENTION for a product that float32 does not have.
    """
    if strength == 1.0:
        return edit
    if not edit.is_added:
        return structs.replace(edit, strength=strength)
    offset = edit.target.offset
    moved = at_intensity(offset, strength) if isinstance(edit.at, Feature) else offset * strength
    if not is_finite32(moved):
        where = ".".join(filter(None, (field, f"edits[{edit.number}].value")))
        why = f"{offset:g} at the intensity {strength:g} is outside of ±{FLOAT_MAXIMUM:g}"
        raise Refusal("INVALID_INTERVENTION", f"{where}: {why}", param=where)
    return structs.replace(edit, target=structs.replace(edit.target, offset=moved))


def scaled(authored: Mapping[str, Values], intensity: float) -> dict[str, Values]:
    """The values at an intensity, each held within [-200, 200]."""
    return {
        key: {index: at_intensity(value, intensity) for index, value in values.items()}
        for key, values in authored.items()
    }


def total(parts: Iterable[Mapping[str, Values]]) -> dict[str, Values]:
    """The sums of several maps from key to values, each clamped."""
    sums: dict[str, dict[int, float]] = {}
    for part in parts:
        for key, values in part.items():
            there = sums.setdefault(key, {})
            for index, value in values.items():
                there[index] = _rounded(there[index] + value) if index in there else value
    return {key: {i: clamped(v) for i, v in values.items()} for key, values in sums.items()}


def _rounded(value: float) -> float:
    """A product or a sum without the noise of binary fractions: 3 x 1.2 is 3.6 and not 3.5999999999999996. A decimal
    number of 15 digits stays as it is. The engine applies values in single precision, which has 7 digits."""
    return float(f"{value:.{_DIGITS}g}")
