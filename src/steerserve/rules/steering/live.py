"""The live steering: what each owner adds and edits, what serves, the switch, the epoch, and the values of a row of the
batch.

A key names one attached SAE (`sae_id@layer`). Each value belongs to an owner, and the values of all owners are added.
Every edit returns a new `Live`. The epoch grows by one when an edit changes what is added to a request that follows the
live values. It stays where an edit changes only the rest: a value of 0, a value that is switched off, the switch while
nothing is set, the active profile.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from typing import Any, TypeVar

from steerserve.errors import Refusal
from steerserve.rules.steering.edits import Edit, Feature
from steerserve.rules.steering.placed import (
    INTERVENTIONS,
    MANUAL,
    MAXIMUM,
    MINIMUM,
    NO_MODIFIERS,
    NOTHING,
    Modifiers,
    Placed,
    Standing,
    Values,
    not_zero,
    total,
)
from steerserve.rules.steering.served import Owned, Served, ServedCircuit, ServedProfile, left
from steerserve.rules.text import shown

_INDEX = re.compile(r"0|-?[1-9][0-9]{0,63}")
"""A whole number in its only plain form. Negative numbers match, so that the check of the index refuses them by
number."""


@dataclass(frozen=True, slots=True)
class Live:
    """What steers every request without an overlay of its own.

    `owned` has what each owner adds and edits, and nothing that is empty. `values` are the sums over the owners, each
    clamped to [-200, 200], or the values of the owner that replaces those of all others. In a `Live` that is made from
    `values`, `edits` and `modifiers` alone, all of these belong to MANUAL. `served` has the profile and the circuits
    that serve, in the order of their activation. `applied` is what a request that follows the live steering gets.
    """

    epoch: int = 0
    enabled: bool = False
    values: Mapping[str, Values] = field(default_factory=dict)
    owned: Owned = field(default_factory=dict)
    served: tuple[Served, ...] = ()
    edits: tuple[Edit, ...] = ()
    modifiers: Modifiers = NO_MODIFIERS
    applied: Placed = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.owned:
            parts = self.owned.values()
            added = [one.values for one in parts if one.replaces] or [one.values for one in parts]
            object.__setattr__(self, "values", total(added))
            object.__setattr__(self, "edits", tuple(edit for one in parts for edit in one.edits))
            object.__setattr__(self, "modifiers", reduce(or_, (one.modifiers for one in parts)))
        elif self.values or self.edits:
            own = Placed(self.values, self.edits, modifiers=self.modifiers)
            object.__setattr__(self, "owned", {MANUAL: own})
        made = Placed(self.values, self.edits, modifiers=self.modifiers)
        object.__setattr__(self, "applied", made if self.enabled else NOTHING)

    @property
    def active(self) -> ServedProfile | None:
        """The profile that was activated last."""
        return next((one for one in self.served if isinstance(one, ServedProfile)), None)

    @property
    def circuits(self) -> tuple[ServedCircuit, ...]:
        """The circuits that serve."""
        return tuple(one for one in self.served if isinstance(one, ServedCircuit))

    @property
    def interventions(self) -> Placed:
        """The live interventions."""
        return self.owned.get(INTERVENTIONS, NOTHING)

    @property
    def standing(self) -> tuple[Standing, ...]:
        return self.interventions.standing

    @property
    def is_intervened_by_profile(self) -> bool:
        """Whether the live interventions are those that the active profile brought."""
        active = self.active
        return (
            active is not None and bool(self.standing) and INTERVENTIONS in active.own(self.owned)
        )

    def serving(self, served_id: str) -> Served | None:
        """The profile or the circuit with this id, if it serves."""
        return next((one for one in self.served if one.id == served_id), None)

    def values_at(self, key: str) -> Values:
        """Feature -> value at one attachment, summed over the owners."""
        return self.values.get(key, {})

    def by(self, owner: str) -> Mapping[str, Values]:
        """Key -> values of one owner."""
        return self.owned.get(owner, NOTHING).values


def key_of(sae_id: str, layer: int) -> str:
    """The name of one attachment."""
    return f"{sae_id}@{layer}"


def check_index(index: int, d_sae: int) -> None:
    """Check that a feature index lies in [0, d_sae).

    Raises:
        Refusal: INVALID_FEATURE_INDEX naming the index and `d_sae`.
    """
    if not 0 <= index < d_sae:
        raise Refusal(
            "INVALID_FEATURE_INDEX",
            f"feature index {index} is outside [0, {d_sae}) of the attached SAE",
            feature_idx=index,
            d_sae=d_sae,
        )


def check_value(value: float) -> None:
    """Check that a value that a request sets directly lies in [-200, 200]. Such a value is never clamped.

    Raises:
        Refusal: VALIDATION_ERROR.
    """
    if not (math.isfinite(value) and MINIMUM <= value <= MAXIMUM):
        number = value if math.isfinite(value) else str(value)
        raise Refusal(
            "VALIDATION_ERROR",
            f"steering value {value} is outside [{MINIMUM:g}, {MAXIMUM:g}]",
            errors=[{"loc": ["body", "value"], "msg": "outside [-200, 200]", "input": number}],
        )


def set_values(live: Live, key: str, d_sae: int, edits: Values) -> Live:
    """Set some features of one SAE, merged into the values of MANUAL. Setting any value switches steering on.

    One bad index or value raises, and nothing changes.
    """
    for index, value in edits.items():
        check_index(index, d_sae)
        check_value(value)
    if not edits:
        return live
    held = live.by(MANUAL)
    merged = Placed({**held, key: {**held.get(key, {}), **edits}})
    return _step(live, {**live.owned, MANUAL: merged}, enabled=True)


def give(live: Live, owner: str, placed: Placed) -> Live:
    """Replace all that an owner has. Anything given switches steering on. Where no owner has anything left, steering is
    off."""
    owned = _given(live.owned, {owner: placed})
    return _step(live, owned, enabled=live.enabled or not placed.is_empty)


def serve(live: Live, one: Served, kept: Owned) -> Live:
    """Let a profile or a circuit serve in the place of what served for its owner: what it has at its intensity is given
    to its owners, beside what is `kept`, and steering is switched on. What has no parts changes no live value. Serving
    again changes only what is different."""
    parts = {owner: part.at(one.intensity) for owner, part in one.parts.items()}
    owned = _given(kept, parts)
    full, still = left(_without_empty(owned), live.served)
    others = tuple(other for other in live.served if other in still or other.owner == one.owner)
    return _step(
        live,
        {owner: held for owner, held in owned.items() if owner in full or owner in parts},
        enabled=live.enabled or not all(part.is_empty for part in parts.values()),
        served=_with(others, one),
        is_kept=not parts,
    )


def note(live: Live, one: Served) -> Live:
    """Note what is known of a profile or a circuit that serves, without a change of what is added."""
    return replace(live, served=_with(live.served, one))


def redial(live: Live, served_id: str, intensity: float) -> Live:
    """Give what serves another intensity. All that is its own is made from its values at intensity 1 anew. The steering
    switch stays as it is."""
    one = live.serving(served_id)
    own = one.own(live.owned) if one is not None else {}
    parts = {owner: part.at(intensity) for owner, part in own.items() if not part.is_empty}
    if one is None or not parts:
        return live
    served = _with(live.served, replace(one, intensity=intensity))
    owned = _given(live.owned, parts)
    return _step(live, owned, enabled=live.enabled, served=served, is_kept=True)


def end(live: Live, served_id: str, *, clears: bool = True) -> Live:
    """End a profile or a circuit if it serves, and with `clears` forget what its owner has and what else is its own. A
    cluster that serves one layer of a circuit ends with the circuit."""
    one = live.serving(served_id)
    if one is None:
        return live
    if one.cluster_id is not None:
        return end(live, one.cluster_id)
    gone = (one.owner, *one.own(live.owned)) if clears else ()
    owned = {owner: held for owner, held in live.owned.items() if owner not in gone}
    others = tuple(other for other in live.served if other is not one)
    return _step(live, owned, enabled=live.enabled, served=others, is_kept=not clears)


def without_interventions(live: Live) -> Live:
    """The live steering as it would be without interventions, in the same epoch."""
    others = {owner: held for owner, held in live.owned.items() if owner != INTERVENTIONS}
    return _owning(live, others)


def enable(live: Live) -> Live:
    return _step(live, live.owned, enabled=True, is_kept=True)


def disable(live: Live) -> Live:
    """Stop applying; the values are kept."""
    return _step(live, live.owned, enabled=False, mutes=True)


def switch_off(live: Live) -> Live:
    """Stop applying because no SAE is attached any more. Unlike `disable`, this does not mute the active profile."""
    return _step(live, live.owned, enabled=False)


def remove(live: Live, key: str, d_sae: int, index: int) -> Live:
    """Forget one feature of all owners. Forgetting the last feature switches steering off. Forgetting a feature that is
    not set changes nothing."""
    check_index(index, d_sae)
    if index not in live.values_at(key):
        return live
    return _step(live, _without(live, key, index), enabled=live.enabled)


def clear(live: Live) -> Live:
    """Forget what every owner has, interventions too, and disable."""
    return _step(live, {}, enabled=False, mutes=True)


def clear_one(live: Live, key: str) -> Live:
    """Forget every feature of one SAE, of all owners, and disable when no SAE has a value left."""
    return _step(live, _without(live, key), enabled=live.enabled)


def still_edited(live: Live, key: str, index: int | None = None) -> list[str]:
    """Which live interventions steer a feature of an SAE, or with None any of its features, in words."""
    part = live.interventions
    numbers: dict[int, set[int]] = {}
    for edit in (*part.added, *part.edits) if live.enabled else ():
        at = edit.at
        if isinstance(at, Feature) and at.key == key and index in (None, at.index):
            numbers.setdefault(at.index, set()).add(edit.number)
    named = {
        feature: " and ".join(f"edits[{number}]" for number in sorted(those))
        for feature, those in sorted(numbers.items())
    }
    return [
        f"feature {feature} is still steered by {edits} of the interventions"
        for feature, edits in named.items()
    ]


def leave(live: Live, key: str) -> Live:
    """Forget every feature of an SAE that was detached, and the interventions that read or edit it. A profile with
    values there ends, with all of its edits. Steering stays on or off as it is."""
    is_ending = live.active is not None and live.active.key == key and live.is_intervened_by_profile
    gone = {INTERVENTIONS} if is_ending else set()
    owned = {owner: held.without(key) for owner, held in live.owned.items() if owner not in gone}
    served = tuple(one.without(key) for one in live.served)
    return _step(live, owned, enabled=live.enabled, served=served, is_kept=True)


def counted(before: Live, after: Live) -> Live:
    """`after` with the epoch that follows the one of `before`: one more if they add different values."""
    epoch = before.epoch + (_added(before) != _added(after))
    return after if epoch == after.epoch else replace(after, epoch=epoch)


def _added(live: Live) -> tuple[Mapping[str, Values], tuple[Edit, ...], Modifiers]:
    """What is added to a request that follows the live values, the edits of such a request, and what holds for
    both."""
    made = live.applied
    values = {key: added for key, of in made.values.items() if (added := not_zero(of))}
    edits = tuple(edit.content for edit in made.edits)
    return values, edits, made.modifiers if values or edits else NO_MODIFIERS


Own = TypeVar("Own")


def effective(live: Live, own: Own | None, planned_on: int | None) -> Own | Placed:
    """What one row of the batch gets: what is its own while the epoch is still `planned_on`, else the live steering.
    With None as `planned_on` its own holds whatever the epoch is."""
    return own if own is not None and planned_on in (None, live.epoch) else live.applied


def plain_indices(values: Mapping[str, float], d_sae: int | None = None) -> dict[int, float]:
    """The values of one SAE with integer keys.

    Raises:
        Refusal: INVALID_FEATURE_INDEX for a key that is not an integer in plain digits.
    """
    for key in values:
        if not _INDEX.fullmatch(key):
            index = shown(key)
            more: dict[str, Any] = {} if d_sae is None else {"d_sae": d_sae}
            raise Refusal(
                "INVALID_FEATURE_INDEX",
                f"{index!r} is no feature index; an index is a whole number in plain digits",
                feature_idx=index,
                **more,
            )
    return {int(key): value for key, value in values.items()}


def _without(live: Live, key: str, index: int | None = None) -> Owned:
    """What the owners have without the feature `index` at `key`. Without an index, every feature there is left out. The
    values of interventions stay."""

    def left(values: Values) -> Values:
        return {} if index is None else {i: v for i, v in values.items() if i != index}

    return {
        owner: held
        if owner == INTERVENTIONS
        else replace(held, values={k: left(v) if k == key else v for k, v in held.values.items()})
        for owner, held in live.owned.items()
    }


def _step(
    live: Live,
    owned: Owned,
    *,
    enabled: bool,
    served: tuple[Served, ...] | None = None,
    is_kept: bool = False,
    mutes: bool = False,
) -> Live:
    """The `Live` after an edit, or `live` itself when the edit changed nothing. Where no owner has anything left,
    steering is switched off, unless `is_kept`. An edit that activates, dials or ends something says what is `served`
    then. `mutes` says that an operator switches steering off."""
    full, still = left(_without_empty(owned), live.served if served is None else served)
    enabled = enabled and (is_kept or bool(full))
    still = tuple(one.switched(enabled=enabled, mutes=mutes) for one in still)
    after = _owning(live, full, enabled=enabled, served=still)
    return live if after == live else counted(live, after)


def _owning(live: Live, owned: Owned, **changes: Any) -> Live:
    """The same `Live` with other owners, whose sums are made anew."""
    return replace(live, values={}, edits=(), modifiers=NO_MODIFIERS, owned=owned, **changes)


def _without_empty(owned: Owned) -> Owned:
    full = {
        o: replace(p, values={k: v for k, v in p.values.items() if v}) for o, p in owned.items()
    }
    return {owner: held for owner, held in full.items() if not held.is_empty}


def _given(owned: Owned, parts: Owned) -> Owned:
    """What the owners have, with other parts for some of them. New interventions come last."""
    kept = {owner: held for owner, held in owned.items() if owner not in {INTERVENTIONS} & {*parts}}
    return {**kept, **parts}


def _with(served: tuple[Served, ...], one: Served) -> tuple[Served, ...]:
    """What serves, with this one in the place of what served for its owner, or at the end."""
    if one.owner not in [other.owner for other in served]:
        return (*served, one)
    return tuple(one if other.owner == one.owner else other for other in served)
