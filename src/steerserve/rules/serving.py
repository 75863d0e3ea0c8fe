"""What serves: what activating and ending a profile does to the live values, and what the dial scales then.

Each function is one edit of the live values, so that the values and who serves change in one step of the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from steerserve.errors import Refusal
from steerserve.rules import steering
from steerserve.rules.attachment import AttachedSae
from steerserve.rules.profile import Profile, site
from steerserve.rules.steering import MANUAL, Active, Live, Values


def activate(
    live: Live, profile_id: str, profile: Profile, attached: Sequence[AttachedSae]
) -> Live:
    """(1) Values need an attached SAE, (2) the one they were made for, (3) whose features they name. (4) Each is
    scaled by the profile's intensity and clamped, and (5) all of them replace what MANUAL held, and steering is
    enabled; an empty profile clears. One step of the epoch.

    Raises:
        Refusal: SAE_NOT_ATTACHED, PROFILE_INCOMPATIBLE, INVALID_FEATURE_INDEX.
    """
    if not profile.values:
        return steering.mark(live, steering.replace_all(live, MANUAL, {}), Active(profile_id))
    if not attached:
        raise Refusal(  # (1)
            "SAE_NOT_ATTACHED", f"profile {profile.name!r} steers, and no SAE is attached"
        )
    at = site(profile, attached)  # (2)
    for index in profile.values:
        steering.check_index(index, at.d_sae)  # (3)
    scaled = {i: steering.clamped(v * profile.intensity) for i, v in profile.values.items()}  # (4)
    after = steering.replace_all(live, MANUAL, {at.key: scaled})  # (5)
    active = Active(profile_id, at.key, dict(profile.values), after.by(MANUAL))
    return steering.mark(live, after, active)


def steered(live: Live, attached: Sequence[AttachedSae]) -> AttachedSae:
    """The attached SAE whose values are all there are; the first where none has any.

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


def adopt(live: Live, profile_id: str) -> Live:
    """The profile is the active one, and nothing else changes."""
    return steering.mark(live, live, Active(profile_id))


def deactivate(live: Live, profile_id: str, *, clears: bool) -> Live:
    """No profile is active, and what MANUAL held is forgotten where `clears`; for one that is not active, nothing."""
    if live.active is None or live.active.profile_id != profile_id:
        return live
    after = steering.replace_all(live, MANUAL, {}) if clears else live
    return steering.mark(live, after, None)


def dialed(live: Live) -> Mapping[str, Values]:
    """What an intensity alone scales: the active profile's values as they were authored, so that the dial is absolute;
    the live ones once an operator has changed what the activation left."""
    active = live.active
    if active is None or active.key is None or active.left != live.by(MANUAL):
        return live.values
    return {active.key: active.authored}
