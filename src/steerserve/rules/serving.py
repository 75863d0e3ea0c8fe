"""What serves: what activating and ending a profile does to the live values, and what the dial scales then.

Each function is one edit of the live values, so that the values and who serves change in one step of the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from steerserve.errors import Refusal
from steerserve.rules import steering
from steerserve.rules.attachment import AttachedSae
from steerserve.rules.profile import Profile, site
from steerserve.rules.steering import MANUAL, Active, Live, Values


def activate(
    live: Live, profile_id: str, profile: Profile, attached: Sequence[AttachedSae]
) -> Live:
    """Steer by a profile. (1) A profile with values needs an attached SAE, (2) the one that it was made for, (3)
    which has all its features. (4) Each value is multiplied by the profile's intensity and clamped. (5) The values
    replace those of MANUAL, and steering is switched on; an empty profile clears. One step of the epoch.

    Raises:
        Refusal: SAE_NOT_ATTACHED, PROFILE_INCOMPATIBLE, INVALID_FEATURE_INDEX.
    """
    if not profile.values:
        after = steering.replace_all(live, MANUAL, {})
        active = Active(profile_id, choice=profile.choice, is_applied=True)
        return steering.mark(live, after, active)
    if not attached:
        raise Refusal(  # (1)
            "SAE_NOT_ATTACHED", f"profile {profile.name!r} steers, and no SAE is attached"
        )
    at = site(profile, attached)  # (2)
    for index in profile.values:
        steering.check_index(index, at.d_sae)  # (3)
    scaled = {i: steering.clamped(v * profile.intensity) for i, v in profile.values.items()}  # (4)
    after = steering.replace_all(live, MANUAL, {at.key: scaled})  # (5)
    active = Active(
        profile_id, dict(profile.values), profile.choice, True, at.key, after.by(MANUAL)
    )
    return steering.mark(live, after, active)


def cleared(before: Live, after: Live) -> dict[str, list[int]]:
    """The features that an operator had set by hand at other SAEs than the one that a profile now steers, by the keys
    of these SAEs. What an earlier activation had set there is not counted."""
    active = before.active
    applied = active.left if active is not None else {}
    return {
        key: sorted(values)
        for key, values in before.by(MANUAL).items()
        if key not in after.by(MANUAL) and values != applied.get(key)
    }


def steered(live: Live, attached: Sequence[AttachedSae]) -> AttachedSae:
    """The only attached SAE that has values, or the first attached SAE where none has any.

    Raises:
        Refusal: SAE_NOT_ATTACHED; PROFILE_INCOMPATIBLE when several have values, which no profile can keep.
    """
    if not attached:
        raise Refusal("SAE_NOT_ATTACHED", "no SAE is attached")
    having = [candidate for candidate in attached if live.of(candidate.key)]
    if len(having) > 1:
        named = ", ".join(candidate.key for candidate in having)
        raise Refusal(
            "PROFILE_INCOMPATIBLE",
            f"{len(having)} attached SAEs have values ({named}), and a profile keeps those of one",
            attached=[{"sae_id": a.sae_id, "layer": a.layer} for a in having],
        )
    return having[0] if having else attached[0]


def adopt(live: Live, profile_id: str, profile: Profile) -> Live:
    """The profile is the active one, and the live values stay. Values that are kept while steering is off show that an
    operator switched it off."""
    is_muted = not live.enabled and bool(live.values)
    active = Active(profile_id, dict(profile.values), profile.choice, is_muted=is_muted)
    return steering.mark(live, live, active)


def amend(live: Live, profile_id: str, profile: Profile) -> Live:
    """The saved profile was changed: where it is active, the dial scales its new values. The live values stay, and it
    is no step of the epoch."""
    active = live.active
    if active is None or active.profile_id != profile_id:
        return live
    changed = replace(active, authored=dict(profile.values), choice=profile.choice)
    return live if changed == active else replace(live, active=changed)


def deactivate(live: Live, profile_id: str, *, clears: bool) -> Live:
    """End the active profile, and forget the values of MANUAL where `clears`. A profile that is not active changes
    nothing."""
    if live.active is None or live.active.profile_id != profile_id:
        return live
    after = steering.replace_all(live, MANUAL, {}) if clears else live
    return steering.mark(live, after, None)


def dialed(live: Live, attached: Sequence[AttachedSae]) -> Mapping[str, Values]:
    """What an intensity alone scales. (1) What an operator switched off stays off. (2) The active profile's values as
    they are saved, so that the dial is absolute; none where no attached SAE fits them. (3) The live values where no
    profile is active, or where an operator has changed what the activation left."""
    active = live.active
    if active is not None and not active.is_applied:
        return {} if active.is_muted else _authored(active, attached)  # (1), (2)
    if not live.enabled:
        return {}  # (1)
    if active is None or active.left != live.by(MANUAL):
        return live.values  # (3)
    return _authored(active, attached)  # (2)


def _authored(active: Active, attached: Sequence[AttachedSae]) -> Mapping[str, Values]:
    """The profile's values at the SAE that got them, or at the first that it fits."""
    fitting = active.choice.among(attached)
    sae = next((one for one in fitting if one.key == active.key), next(iter(fitting), None))
    if sae is None or not all(0 <= index < sae.d_sae for index in active.authored):
        return {}
    return {sae.key: active.authored}
