"""The live steering values: their owners, their bounds, the switch, the epoch, and the values of a row of the batch.

A key names one attached SAE (`sae_id@layer`). Each value belongs to an owner, and the values of all owners are added.
Every edit returns a new `Live`. The epoch grows by one when an edit changes what is added to a request that follows the
live values. It stays where an edit changes only the rest: a value of 0, a value that is switched off, the switch while
nothing is set, the active profile.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from steerserve.errors import Refusal
from steerserve.rules.saes.attachment import FIRST_SAE, ClusterChoice, SaeChoice
from steerserve.rules.steering import served
from steerserve.rules.steering.edits import Edit
from steerserve.rules.steering.served import ServedCircuit
from steerserve.rules.text import shown

MINIMUM = -200.0
MAXIMUM = 200.0
BATCH_MAXIMUM = 1000

_DIGITS = 15
"""The significant digits that every decimal number keeps as a float."""

MANUAL = "manual"
"""The owner of the values that the steering routes and the profiles set."""

INTERVENTIONS = "interventions"
"""The owner of the values that the live interventions add."""

_INDEX = re.compile(r"0|-?[1-9][0-9]{0,63}")
"""A whole number in its only plain form. Negative numbers match, so that the check of the index refuses them by
number."""

Values = Mapping[int, float]
Owned = Mapping[str, Mapping[str, Values]]
"""Owner -> key -> values. None of these maps is empty."""


@dataclass(frozen=True, slots=True)
class Active:
    """The profile that was activated last.

    Attributes:
        authored: the values of the profile as saved now, before any intensity.
        choice: the SAE that the profile was made for.
        is_applied: whether the values of the profile became live values when it was activated.
        key: the SAE that got these values; None where the profile has no values or was not applied.
        left: all values of MANUAL right after the activation.
        is_muted: for a profile that was not applied: an operator has switched steering off, so the dial does not switch
            it on.
        is_cluster: whether the profile is a cluster.
        declared_range: the range of the intensity that the cluster declares.
        standing: the live interventions that the profile brought when it was activated.
        added, edits: what these interventions do at intensity 1.
    """

    profile_id: str
    authored: Values = field(default_factory=dict)
    choice: SaeChoice | ClusterChoice = FIRST_SAE
    is_applied: bool = False
    key: str | None = None
    left: Mapping[str, Values] = field(default_factory=dict)
    is_muted: bool = False
    is_cluster: bool = False
    declared_range: tuple[float, float] | None = None
    standing: tuple[Standing, ...] = ()
    added: Mapping[str, Values] = field(default_factory=dict)
    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True, slots=True)
class Standing:
    """One live intervention: the JSON with which it was sent, its op, and the attached SAEs that it reads or edits."""

    sent: Mapping[str, object]
    op: str
    keys: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Live:
    """The values that steer every request without an overlay of its own.

    `values` has the sums over the owners, each clamped to [-200, 200]. In a `Live` that is made from `values` alone,
    all values belong to MANUAL. `circuits` are the circuits that serve, in the order of their activation.

    The live interventions are `standing`, in their order. Those of them that add a feature everywhere are values of the
    owner INTERVENTIONS. All others are `edits`, in the order in which they are made; the number of an edit is its place
    in `standing`. With `keeps_norm` the values of sites keep their norms. With `replaces` the values of other owners
    are not added.
    """

    epoch: int = 0
    enabled: bool = False
    values: Mapping[str, Values] = field(default_factory=dict)
    owned: Owned = field(default_factory=dict)
    active: Active | None = None
    circuits: tuple[ServedCircuit, ...] = ()
    edits: tuple[Edit, ...] = ()
    keeps_norm: bool = False
    standing: tuple[Standing, ...] = ()
    replaces: bool = False

    def __post_init__(self) -> None:
        if self.owned:
            added = [self.by(INTERVENTIONS)] if self.replaces else self.owned.values()
            object.__setattr__(self, "values", total(added))
        elif self.values:
            object.__setattr__(self, "owned", {MANUAL: self.values})

    @property
    def is_intervened_by_profile(self) -> bool:
        """Whether the live interventions are those that the active profile brought."""
        return (
            self.active is not None
            and bool(self.standing)
            and self.standing == self.active.standing
        )

    def of(self, key: str) -> Values:
        """Feature -> value at one attachment, summed over the owners."""
        return self.values.get(key, {})

    def by(self, owner: str) -> Mapping[str, Values]:
        """Key -> values of one owner."""
        return self.owned.get(owner, {})


def key_of(sae_id: str, layer: int) -> str:
    """The name of one attachment."""
    return f"{sae_id}@{layer}"


def clamped(value: float) -> float:
    """The value, held within [-200, 200]. A zero has no sign."""
    return min(MAXIMUM, max(MINIMUM, value)) + 0.0


def at_intensity(value: float, intensity: float) -> float:
    """A value times an intensity, clamped. At intensity 1 it is the value itself."""
    return clamped(value if intensity == 1.0 else _rounded(value * intensity))


def _rounded(value: float) -> float:
    """A product or a sum without the noise of binary fractions: 3 x 1.2 is 3.6 and not 3.5999999999999996. A decimal
    number of 15 digits stays as it is. The engine applies values in single precision, which has 7 digits."""
    return float(f"{value:.{_DIGITS}g}")


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


def set_values(live: Live, key: str, d_sae: int, edits: Values, owner: str = MANUAL) -> Live:
    """Set some features of one SAE, merged into the values of this owner. Setting any value switches steering on.

    One bad index or value raises, and nothing changes.
    """
    for index, value in edits.items():
        check_index(index, d_sae)
        check_value(value)
    if not edits:
        return live
    held = live.by(owner)
    merged = {**held, key: {**held.get(key, {}), **edits}}
    return _step(live, {**live.owned, owner: merged}, enabled=True)


def replace_all(live: Live, owner: str, values: Mapping[str, Values]) -> Live:
    """Replace all values of an owner by these. Any value switches steering on. Where no owner has a value left,
    steering is off."""
    owned = {**live.owned, owner: values}
    return _step(live, owned, enabled=live.enabled or any(values.values()))


def take_over(live: Live, owner: str, values: Mapping[str, Values]) -> Live:
    """Replace the values of every owner by these values of one owner, and end the interventions. Any value switches
    steering on."""
    owned = {owner: values}
    return _step(live, owned, enabled=live.enabled or any(values.values()), ends_edits=True)


def intervene(
    live: Live,
    standing: tuple[Standing, ...],
    values: Mapping[str, Values],
    edits: tuple[Edit, ...],
    *,
    keeps_norm: bool,
    replaces: bool,
) -> Live:
    """Replace the live interventions, and switch steering on. Without any the live interventions end. The values of
    other owners stay."""
    others = {owner: held for owner, held in live.owned.items() if owner != INTERVENTIONS}
    owned = _without_empty({**others, INTERVENTIONS: values})
    is_any = bool(standing)
    after = replace(
        live,
        values={},
        owned=owned,
        enabled=is_any or (live.enabled and bool(owned)),
        edits=edits,
        keeps_norm=keeps_norm and is_any,
        standing=standing,
        replaces=replaces and is_any,
    )
    return live if after == live else counted(live, after)


def without_interventions(live: Live) -> Live:
    """The live steering as it would be without interventions, in the same epoch."""
    bare = intervene(live, (), {}, (), keeps_norm=False, replaces=False)
    return replace(bare, epoch=live.epoch, enabled=live.enabled)


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
    if index not in live.of(key):
        return live
    return _step(live, _without(live, key, index), enabled=live.enabled)


def clear(live: Live) -> Live:
    """Forget every feature of every SAE and every owner, and all interventions, and disable."""
    return _step(live, {}, enabled=False, mutes=True, ends_edits=True)


def clear_one(live: Live, key: str) -> Live:
    """Forget every feature of one SAE, of all owners, and disable when no SAE has a value left."""
    return _step(live, _without(live, key), enabled=live.enabled)


def leave(live: Live, key: str) -> Live:
    """Forget every feature of an SAE that was detached, and the interventions that read or edit it. Steering stays on
    or off as it is."""
    active = live.active
    if active is not None and active.standing:
        standing, added, edits = _left(active.standing, active.added, active.edits, key)
        active = replace(active, standing=standing, added=added, edits=edits)
    standing, held, edits = _left(live.standing, live.by(INTERVENTIONS), live.edits, key)
    owned = {**_without(live, key), INTERVENTIONS: held}
    made = replace(live, active=active, standing=standing, edits=edits)
    after = _step(made, owned, enabled=live.enabled, is_kept=True)
    if not after.standing:
        after = replace(without_interventions(after), epoch=after.epoch)
    return live if replace(after, epoch=live.epoch) == live else counted(live, after)


def _left(
    standing: tuple[Standing, ...],
    values: Mapping[str, Values],
    edits: tuple[Edit, ...],
    key: str,
) -> tuple[tuple[Standing, ...], Mapping[str, Values], tuple[Edit, ...]]:
    """The interventions that neither read nor edit the SAE `key`."""
    kept = [place for place, one in enumerate(standing) if key not in one.keys]
    return (
        tuple(standing[place] for place in kept),
        {k: of for k, of in values.items() if k != key},
        tuple(
            structs.replace(edit, number=kept.index(edit.number))
            for edit in edits
            if edit.number in kept
        ),
    )


def mark(before: Live, after: Live, active: Active | None) -> Live:
    """Combine the edit that led from `before` to `after` with a change of the active profile into one step."""
    circuits = served.still(after.circuits, after.owned, active.profile_id if active else None)
    marked = counted(before, replace(after, active=active, circuits=circuits))
    return before if replace(marked, epoch=before.epoch) == before else marked


def counted(before: Live, after: Live) -> Live:
    """`after` with the epoch that follows the one of `before`: one more if they add different values."""
    epoch = before.epoch + (_added(before) != _added(after))
    return after if epoch == after.epoch else replace(after, epoch=epoch)


def _added(live: Live) -> tuple[Mapping[str, Values], tuple[Edit, ...], bool]:
    """What is added to a request that follows the live values, the edits of such a request, and whether norms are
    kept."""
    by_key = {key: effective(live, None, live.epoch, key) for key in live.values}
    values = {key: values for key, values in by_key.items() if values}
    made = live.edits if live.enabled else ()
    keeps_norm = live.keeps_norm and bool(values or made)
    return values, tuple(edit.content for edit in made), keeps_norm


def effective(
    live: Live, overlay: Mapping[str, Values] | None, planned_on: int | None, key: str
) -> Values:
    """The values of one row of the batch at `key`: those of the row's overlay while the epoch is still `planned_on`,
    else the live values. With None as `planned_on` the overlay holds whatever the epoch is.

    Values of 0 are left out, so that an SAE whose values are all 0 leaves the output unchanged, bit for bit.
    """
    if overlay is not None and planned_on in (None, live.epoch):
        chosen: Values = overlay.get(key, {})
    else:
        chosen = live.of(key) if live.enabled else {}
    return {i: v for i, v in chosen.items() if v != 0.0}


def total(parts: Iterable[Mapping[str, Values]]) -> dict[str, Values]:
    """The sums of several maps from key to values, each clamped."""
    sums: dict[str, dict[int, float]] = {}
    for part in parts:
        for key, values in part.items():
            there = sums.setdefault(key, {})
            for index, value in values.items():
                there[index] = _rounded(there[index] + value) if index in there else value
    return {key: {i: clamped(v) for i, v in values.items()} for key, values in sums.items()}


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
    """The values of all owners without the feature `index` at `key`. Without an index, every feature there is left
    out. The values of interventions stay."""

    def left(values: Values) -> Values:
        return {} if index is None else {i: v for i, v in values.items() if i != index}

    return {
        owner: {
            k: left(values) if k == key and owner != INTERVENTIONS else values
            for k, values in held.items()
        }
        for owner, held in live.owned.items()
    }


def _step(
    live: Live,
    owned: Owned,
    *,
    enabled: bool,
    is_kept: bool = False,
    mutes: bool = False,
    ends_edits: bool = False,
) -> Live:
    """The `Live` after an edit, or `live` itself when the edit changed nothing. Where no value is left, steering is
    switched off, unless `is_kept`. `mutes` says that an operator switches steering off, and `ends_edits` that the
    interventions end too."""
    made = (
        replace(live, edits=(), standing=(), keeps_norm=False, replaces=False)
        if ends_edits
        else live
    )
    full = _without_empty(owned)
    circuits = served.still(live.circuits, full, live.active.profile_id if live.active else None)
    ended = {circuit.owner for circuit in live.circuits} - {circuit.owner for circuit in circuits}
    # a circuit that lost a layer loses its other layers too
    full = {owner: held for owner, held in full.items() if owner not in ended}
    enabled = enabled and (is_kept or bool(full) or bool(made.standing))
    active = _still_active(live.active, full, enabled=enabled, mutes=mutes)
    circuits = served.still(circuits, full, active.profile_id if active else None)
    if active is None and made.is_intervened_by_profile:
        # the profile has ended, and takes its interventions with it
        made = replace(made, edits=(), standing=(), keeps_norm=False, replaces=False)
        full = {owner: held for owner, held in full.items() if owner != INTERVENTIONS}
    after = replace(made, enabled=enabled, values={}, owned=full, active=active, circuits=circuits)
    return live if after == live else counted(live, after)


def _without_empty(owned: Owned) -> Owned:
    full = {o: {k: v for k, v in held.items() if v} for o, held in owned.items()}
    return {owner: held for owner, held in full.items() if held}


def _still_active(
    active: Active | None, owned: Owned, *, enabled: bool, mutes: bool
) -> Active | None:
    """The active profile after an edit. A profile whose values were applied ends when its SAE has no values of MANUAL
    any more."""
    if active is None or (active.key is not None and active.key not in owned.get(MANUAL, {})):
        return None
    if active.is_applied:
        return active
    return replace(active, is_muted=(active.is_muted or mutes) and not enabled)
