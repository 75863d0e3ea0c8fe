"""The steering of requests that name no profile themselves: the live values, and the active saved profile, which may be
a cluster.

Only this module activates and ends a profile. The active profile is a field of the live values, so both change in one
step of the epoch, and both are restored together after a crash. Which profile is active is not stored in the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import structlog
from msgspec import UNSET

from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.resident import Attachment
from steerserve.control.saes.records import origin_of
from steerserve.control.steering.interventions import EditParts, facts_of
from steerserve.control.steering.steering import Steering
from steerserve.database.catalog import Catalog
from steerserve.errors import Refusal
from steerserve.nouns.clusters import rules as cluster
from steerserve.nouns.profiles.form import ActivatedProfile, ServingProfile
from steerserve.nouns.profiles.rules import Profile, ProfileEdits
from steerserve.nouns.profiles.store import ProfileRow, ProfileStore
from steerserve.rules.steering import activation as rules
from steerserve.rules.steering import interventions
from steerserve.rules.steering import live as live_rules
from steerserve.rules.steering.intensity import Range
from steerserve.rules.steering.live import Live
from steerserve.rules.steering.placed import listed
from steerserve.settings import Settings

log = structlog.get_logger(__name__)

Displaced = Callable[[], Awaitable[Sequence[str]]]
"""Ends what the activation of a profile displaces, and answers warnings."""

Followed = Callable[[ProfileRow | None], Awaitable[bool]]
"""Takes the active profile after a change, or None; answers whether the profile is sensed now."""


class Serving:
    """Owner of the active profile. The lock `editing` is held while a profile is activated, ended, changed or deleted,
    so that no profile is changed or deleted between the reading of its record and its activation."""

    def __init__(
        self,
        documents: ProfileStore,
        steering: Steering,
        conductor: Conductor,
        catalog: Catalog,
        settings: Settings,
        parts: EditParts,
    ) -> None:
        self._documents = documents
        self._settings = settings
        self._parts = parts
        self._catalog = catalog
        self._steering = steering
        self._conductor = conductor
        self.editing = asyncio.Lock()
        self._displaced: list[Displaced] = []
        self._followed: list[Followed] = []

    def displaces(self, displaced: Displaced) -> None:
        """Register an owner whose values the activation of a profile removes, such as the circuits. `displaced` is
        awaited after the step that removed the values, while `editing` is held."""
        self._displaced.append(displaced)

    def follow(self, followed: Followed) -> None:
        """Register an owner that follows the active profile, such as sensing. `followed` is awaited after each change
        of the active profile or its record by an operator, while `editing` is held. Other changes, such as a detached
        SAE, are the event `ActiveProfileChanged` only."""
        self._followed.append(followed)

    # ------------------------------------------------------------- reading

    @property
    def live(self) -> Live:
        """The live values of this moment, with the active profile."""
        return self._steering.live

    @property
    def configured(self) -> Range:
        """The range of the intensity of a cluster that declares none."""
        return Range(self._settings.cluster_intensity_min, self._settings.cluster_intensity_max)

    @property
    def profile_id(self) -> str | None:
        """The id of the active profile."""
        active = self.live.active
        return active.id if active else None

    @property
    def feature_count(self) -> int:
        """How many features steer every request; 0 while steering is disabled."""
        live = self.live
        return sum(len(values) for values in live.values.values()) if live.enabled else 0

    async def active(self) -> ProfileRow | None:
        """The active profile as it is saved now."""
        if self.profile_id is None:
            return None
        try:
            return await self._documents.row(self.profile_id)
        except Refusal as refusal:
            if refusal.code == "PROFILE_NOT_FOUND":  # it was ended and deleted meanwhile
                return None
            raise

    async def profile(self) -> ServingProfile | None:
        """The active profile as health shows it; None while no profile is active."""
        row = await self.active()
        if row is None:
            return None
        return ServingProfile(row.id, row.name, row.source_kind, row.intensity, row.sensing_enabled)

    async def applicable(self, row: ProfileRow, *, with_edits: bool = True) -> Profile:
        """The saved profile with the id that its SAE has on this machine, which may differ from the id where the
        profile was made; and `with_edits` with its edits and their vectors.

        Raises:
            Refusal: VECTOR_NOT_FOUND.
        """
        sae_id, origin = row.sae_id, row.origin.sae if row.origin else None
        if sae_id is not None and origin is not None:
            same = (sae.id for sae in await self._catalog.saes() if origin.is_same(origin_of(sae)))
            sae_id = next(same, sae_id)
        return Profile(
            row.name,
            row.steering,
            row.intensity,
            sae_id,
            row.layer,
            row.cluster,
            row.id,
            await self._edits(row) if with_edits and row.edits else None,
        )

    async def _edits(self, row: ProfileRow) -> ProfileEdits:
        sent = row.edits or []
        asked = interventions.parse({"edits": sent}, "profile")
        own = await self._parts.with_vectors(asked, has_layers=True)
        largest = await self._parts.largest(own, self._conductor.attachments())
        return ProfileEdits(own, sent, largest)

    # ------------------------------------------------------------- changing

    async def activate_row(
        self, row: ProfileRow, applies: bool = True, *, displaces: bool = True
    ) -> ActivatedProfile:
        """Make a profile the active one, as its record is now. In one step, its values times its intensity replace the
        live values of every owner, and steering is enabled. All checks come before any change. If `applies` is False,
        the live values stay as they are. Without `displaces` the circuits go on serving. The caller holds `editing`.

        Raises:
            Refusal: what the gate of `rules/steering/activation` raises.
        """
        profile, warnings = (
            await self._with_sources(await self.applicable(row)),
            self._warnings(row),
        )
        applied = applies and bool(row.steering or row.edits)
        if applied:
            warnings += await self._apply(row, profile, displaces)
        elif applies:
            await self._steering.everywhere(lambda live: rules.activate(live, row.id, profile, ()))
        else:
            attached = self._conductor.attachments()
            if profile.cluster is not None and attached:
                rules.gate(row.id, profile, attached)
            await self._steering.everywhere(lambda live: rules.adopt(live, row.id, profile))
        if applies and displaces:
            for displaced in self._displaced:
                warnings += tuple(await displaced())
        row = await self._recorded(row, profile) if applied else row
        is_sensed = await self._tell(row)
        return ActivatedProfile(
            profile_id=row.id,
            applied_steering=applied,
            feature_count=len(row.steering) if applied else 0,
            warnings=warnings,
            # only clusters are sensed
            sensing_armed=UNSET if row.cluster is None else is_sensed,
        )

    async def redial(self, row: ProfileRow) -> bool:
        """Give the active profile the intensity of its record, and return whether its values are live now. Nothing
        else that steers is displaced. The caller holds `editing`.

        Raises:
            Refusal: ENGINE_UNAVAILABLE, in which case the old values are still live.
        """
        await self._steering.everywhere(lambda live: live_rules.redial(live, row.id, row.intensity))
        active = self.live.active
        return active is not None and active.id == row.id and active.is_applied

    async def end(self, profile_id: str, *, clears: bool) -> bool:
        """End the profile if it is active, and return whether it was. The values that are kept after a crash until
        their model is loaded again lose the profile too. The caller holds `editing`.

        Raises:
            Refusal: ENGINE_UNAVAILABLE, in which case the profile is still active.
        """
        was_active = await self._steering.everywhere(
            lambda live: live_rules.end(live, profile_id, clears=clears)
        )
        if was_active:
            await self._tell(None)
        return was_active

    async def amend(self, row: ProfileRow) -> None:
        """Called after a saved profile was changed. If the profile is active, the dial scales its new values from now
        on. The live values stay, and so do its edits. The caller holds `editing`."""
        profile = await self.applicable(row, with_edits=False)
        await self._steering.everywhere(lambda live: rules.amend(live, row.id, profile))
        if self.profile_id == row.id:
            await self._tell(row)

    # ------------------------------------------------------------- inside

    async def _with_sources(self, profile: Profile) -> Profile:
        """The profile with the values that its edits read in other texts, where a model is loaded."""
        resident = self._conductor.resident
        if profile.edits is None or not profile.edits.own.has_sources:
            return profile
        if resident is None or resident.facts is None:
            return profile
        async with self._conductor.in_flight(resident):
            own = await self._parts.with_sources(profile.edits.own, resident)
        return replace(profile, edits=replace(profile.edits, own=own))

    async def _apply(self, row: ProfileRow, profile: Profile, displaces: bool) -> tuple[str, ...]:
        """Apply a profile. Returns warnings: what does not agree between a cluster and its SAE, values that were
        clamped, and values set by hand at other SAEs which were cleared by this."""
        warnings: list[str] = []

        def step(live: Live, attached: Sequence[Attachment]) -> Live:
            model = None
            if profile.edits is not None:
                model = facts_of(self._conductor.loaded(), profile.edits.largest)
            after = rules.activate(
                live, row.id, profile, attached, displaces=displaces, model=model
            )
            warnings[:] = _of_site(row, profile, after, attached)
            warnings.extend(
                f"the values that were set by hand at {key} were cleared: features {listed(features)}"
                for key, features in rules.cleared(live, after).items()
            )
            return after

        await self._steering.act(step)
        return tuple(warnings)

    async def _recorded(self, row: ProfileRow, profile: Profile) -> ProfileRow:
        """Record an activated cluster: its warnings, and the SAE of an unbound one. The cluster serves without the
        record too, so a fault of the database is only logged."""
        active, attached = self.live.active, self._conductor.attachments()
        sae = next((one for one in attached if active and one.key == active.key), None)
        if row.cluster is None or sae is None:
            return row
        warnings = (
            *cluster.site_warnings(row.cluster, profile.sae_id, sae),
            *cluster.own_warnings(row.cluster, row.intensity, self.configured),
        )
        changes: dict[str, object] = {} if warnings == row.warnings else {"warnings": warnings}
        if row.sae_id is None:
            changes |= {"sae_id": sae.sae_id, "layer": sae.layer}
        try:
            changed = await self._documents.change_profile(row.id, changes)
        except Refusal as refusal:
            log.warning("activation_not_recorded", profile_id=row.id, code=refusal.code)
            return row
        if row.sae_id is None:
            bound = await self.applicable(changed, with_edits=False)
            await self._steering.everywhere(lambda live: rules.amend(live, row.id, bound))
        return changed

    async def _tell(self, row: ProfileRow | None) -> bool:
        """Tell the owners that follow the active profile, and return whether it is sensed now."""
        return any([await followed(row) for followed in self._followed])

    def _warnings(self, row: ProfileRow) -> tuple[str, ...]:
        resident = self._conductor.resident
        if resident is None or row.model_id is None:
            return ()
        made_with = row.origin.sae if row.origin else None
        if made_with is not None and any(
            made_with.is_same(one.order.origin) for one in self._conductor.attachments()
        ):
            return ()  # the content of the SAE says more than the name of a model
        name, repo_id = resident.row.name, resident.row.repo_id
        model = row.origin.model if row.origin else None
        if model is not None:
            made_for, is_same = model.name or model.repo_id, model.is_called(name, repo_id)
        elif row.cluster is not None and "/" not in row.model_id:
            return ()  # an id of the studio, which says nothing about a model of the hub
        else:
            made_for = row.model_id
            is_same = made_for in (str(resident.row.id), name, repo_id)
        if is_same:
            return ()
        return (f"the profile was made for model {made_for!r}; {name!r} is loaded",)


def _of_site(
    row: ProfileRow, profile: Profile, after: Live, attached: Sequence[Attachment]
) -> list[str]:
    """The warnings about the SAE that an activated cluster steers now, and about clamped values."""
    active = after.active
    assert active is not None
    warnings: list[str] = []
    if row.cluster is not None:
        at = next(one for one in attached if one.key == active.key)
        warnings += cluster.site_warnings(row.cluster, profile.sae_id, at)
        warnings += cluster.strength_warnings(row.cluster)
    clamped = rules.clamped_features(active)
    if clamped:
        warnings.append(f"the values were clamped to [-200, 200]: features {listed(clamped)}")
    return warnings
