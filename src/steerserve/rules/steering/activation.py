"""The active profile: how activating a profile edits the live values, and which values the dial scales.

Each edit changes the live values and the active profile together, in one step of the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from steerserve.errors import Refusal
from steerserve.nouns.clusters import rules as cluster
from steerserve.nouns.profiles.rules import Profile, site
from steerserve.rules.saes.attachment import AttachedSae, ClusterChoice, Sae
from steerserve.rules.steering import live as steering
from steerserve.rules.steering.edits import Feature
from steerserve.rules.steering.live import Live
from steerserve.rules.steering.placed import INTERVENTIONS, MANUAL, Placed, Values, is_clamped
from steerserve.rules.steering.placing import ModelFacts, standing_of
from steerserve.rules.steering.served import Owned, ServedProfile


def activate(
    live: Live,
    profile_id: str,
    profile: Profile,
    attached: Sequence[AttachedSae],
    *,
    displaces: bool = True,
    model: ModelFacts | None = None,
) -> Live:
    """Steer by a profile. (1) The profile must pass the gate. (2) Each value is multiplied by the profile's intensity
    and clamped. (3) The values replace those of every owner, circuits included, and steering is switched on. An empty
    profile clears all values. Without `displaces` the circuits go on serving beside the profile. (4) The edits of the
    profile become the live interventions.

    Raises:
        Refusal: what `gate` raises; what `placing.placed` raises of its edits.
    """
    values = {}
    if profile.values:
        values = {gate(profile_id, profile, attached).key: profile.values}  # (1)
    parts = {MANUAL: Placed(values)}
    if profile.edits is not None:
        made = profile.edits.placed(attached, model or ModelFacts())
        standing = standing_of(profile.edits.own, profile.edits.sent, made)
        parts[INTERVENTIONS] = replace(made, standing=standing)  # (4)
    active = replace(_served(profile_id, profile), parts=parts)
    kept: Owned = {} if displaces else live.owned
    return steering.serve(live, active, kept)  # (2), (3)


def gate(profile_id: str, profile: Profile, attached: Sequence[Sae]) -> Sae:
    """The attached SAE that a profile with values steers. (1) There must be one, and (2) the profile must have been
    made for it. (3) It must have the number of features that a cluster declares, which is checked before (2) where no
    attached SAE has it, and (4) all features of the profile.

    Raises:
        Refusal: SAE_NOT_ATTACHED, PROFILE_INCOMPATIBLE, VALIDATION_ERROR, INVALID_FEATURE_INDEX.
    """
    if not attached:
        raise no_sae(profile)  # (1)
    if profile.cluster is not None and not any(map(profile.cluster.is_wide, attached)):
        cluster.check_fits(profile.cluster, profile_id, attached[0])  # (3)
    at = site(profile, attached)  # (2)
    if profile.cluster is not None:
        cluster.check_fits(profile.cluster, profile_id, at)  # (3), (4)
    for index in profile.values:
        steering.check_index(index, at.d_sae)  # (4)
    return at


def no_sae(profile: Profile, param: str | None = None) -> Refusal:
    """The refusal of a profile with values where no SAE is attached."""
    why = f"profile {profile.name!r} steers features, and no SAE is attached"
    return Refusal("SAE_NOT_ATTACHED", why, param=param)


def clamped_features(active: ServedProfile) -> list[int]:
    """The features whose values, or whose sums of values and edits, are clamped at the intensity of an applied
    profile."""
    clamped: set[int] = set()
    sums: dict[tuple[str, int], float] = {}
    for part in active.parts.values():
        added = [(key, i, v) for key, values in part.values.items() for i, v in values.items()]
        for key, index, value in added:
            sums[key, index] = sums.get((key, index), 0.0) + value
        added += [
            (edit.at.key, edit.at.index, edit.target.offset)
            for edit in part.edits
            if edit.is_added and isinstance(edit.at, Feature)
        ]
        clamped |= {index for _, index, value in added if is_clamped(value, active.intensity)}
    clamped |= {index for (_, index), s in sums.items() if is_clamped(s, active.intensity)}
    return sorted(clamped)


def _served(profile_id: str, profile: Profile) -> ServedProfile:
    declared = profile.cluster.declared_range if profile.cluster is not None else None
    return ServedProfile(
        profile_id,
        intensity=profile.intensity,
        authored=dict(profile.values),
        choice=profile.choice,
        is_cluster=profile.cluster is not None,
        declared_range=declared,
    )


def cleared(before: Live, after: Live) -> dict[str, list[int]]:
    """SAE key -> the features of that SAE that an operator had set by hand, and that activating a profile for another
    SAE has cleared. Values that an earlier activation had set are not listed."""
    active = before.active
    applied = active.applied if active is not None else {}
    return {
        key: sorted(values)
        for key, values in before.by(MANUAL).items()
        if key not in after.by(MANUAL) and values != applied.get(key)
    }


def steered(live: Live, attached: Sequence[AttachedSae]) -> AttachedSae:
    """The only attached SAE that has values, or the first attached SAE where none has any.

    Raises:
        Refusal: SAE_NOT_ATTACHED; PROFILE_INCOMPATIBLE when several SAEs have values, because a profile has one SAE.
    """
    if not attached:
        raise Refusal("SAE_NOT_ATTACHED", "no SAE is attached")
    having = [candidate for candidate in attached if live.values_at(candidate.key)]
    if len(having) > 1:
        named = ", ".join(candidate.key for candidate in having)
        raise Refusal(
            "PROFILE_INCOMPATIBLE",
            f"{len(having)} attached SAEs have values ({named}), and a profile keeps those of one",
            attached=[{"sae_id": a.sae_id, "layer": a.layer} for a in having],
        )
    return having[0] if having else attached[0]


def adopt(live: Live, profile_id: str, profile: Profile) -> Live:
    """Make a profile the active one without changing the live values. If steering is off and values are kept, an
    operator has switched steering off, and the profile is muted."""
    is_muted = not live.enabled and bool(live.values)
    active = replace(_served(profile_id, profile), is_muted=is_muted)
    return steering.serve(live, active, live.owned)


def amend(live: Live, profile_id: str, profile: Profile) -> Live:
    """Give the dial the new values of a saved profile that was changed while active. The live values and the epoch do
    not change."""
    active = live.active
    if active is None or active.id != profile_id:
        return live
    changed = replace(active, authored=dict(profile.values), choice=profile.choice)
    return live if changed == active else steering.note(live, changed)


def dialed(live: Live, attached: Sequence[AttachedSae]) -> Mapping[str, Values]:
    """The values that an intensity scales in a request that names no profile. (1) There are none after an operator
    switched steering off. (2) With an active profile they are the values of the profile as saved, so that the same
    intensity always means the same values; there are none where no attached SAE fits them. (3) They are the live values
    where no profile is active."""
    active = live.active
    if active is not None and not active.is_applied:
        return {} if active.is_muted else _authored(active, attached)  # (1), (2)
    if not live.enabled:
        return {}  # (1)
    if active is None:
        return live.values  # (3)
    return _authored(active, attached)  # (2)


def _authored(active: ServedProfile, attached: Sequence[AttachedSae]) -> Mapping[str, Values]:
    """The profile's values at the SAE that was steered at the activation, or else at the first SAE that fits."""
    fitting = active.choice.among(attached)
    sae = next((one for one in fitting if one.key == active.key), next(iter(fitting), None))
    if sae is None or not all(0 <= index < sae.d_sae for index in active.authored):
        return {}
    if isinstance(active.choice, ClusterChoice) and not active.choice.is_wide(sae):
        return {}
    return {sae.key: active.authored}
