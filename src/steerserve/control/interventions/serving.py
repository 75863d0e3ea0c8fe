"""The steering of requests that name no profile themselves: the live values, and the active saved profile.

Only this module activates and ends a profile. The active profile is a field of the live values, so both change in one
step of the epoch, and both are restored together after a crash. Which profile is active is not stored in the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from steerserve.control.interventions.steering import Steering
from steerserve.control.library.sae_records import origin_of
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.resident import Attachment
from steerserve.errors import Refusal
from steerserve.rules import serving as rules
from steerserve.rules.profile import Profile
from steerserve.rules.steering import Live
from steerserve.store.catalog import Catalog
from steerserve.store.documents import Documents, ProfileRow

LISTED = 20
"""How many features a warning lists."""


@dataclass(frozen=True, slots=True)
class ActivationReport:
    """The outcome of an activation. `count` is the number of features that the profile steers now."""

    applied: bool
    count: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ServingProfile:
    """The active profile as health shows it. `sensing_enabled` is always False for a plain profile."""

    id: str
    name: str
    source_kind: str
    intensity: float
    sensing_enabled: bool = False


class Serving:
    """Owner of the active profile. The lock `editing` is held while a profile is activated, ended, changed or deleted,
    so that no profile is changed or deleted between the reading of its record and its activation."""

    def __init__(
        self, documents: Documents, steering: Steering, conductor: Conductor, catalog: Catalog
    ) -> None:
        self._documents = documents
        self._catalog = catalog
        self._steering = steering
        self._conductor = conductor
        self.editing = asyncio.Lock()

    # ------------------------------------------------------------- reading

    @property
    def live(self) -> Live:
        """The live values of this moment, with the active profile."""
        return self._steering.live

    @property
    def profile_id(self) -> str | None:
        """The id of the active profile."""
        active = self.live.active
        return active.profile_id if active else None

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
            return await self._documents.profile(self.profile_id)
        except Refusal as refusal:
            if refusal.code == "PROFILE_NOT_FOUND":  # it was ended and deleted meanwhile
                return None
            raise

    async def profile(self) -> ServingProfile | None:
        """The active profile as health shows it; None while no profile is active."""
        row = await self.active()
        if row is None:
            return None
        return ServingProfile(row.id, row.name, row.source_kind, row.intensity)

    async def applicable(self, row: ProfileRow) -> Profile:
        """The saved profile with the id that its SAE has on this machine, which may differ from the id where the
        profile was made."""
        sae_id, origin = row.sae_id, row.origin.sae if row.origin else None
        if sae_id is not None and origin is not None:
            same = (sae.id for sae in await self._catalog.saes() if origin.is_same(origin_of(sae)))
            sae_id = next(same, sae_id)
        return Profile(row.name, row.steering, row.intensity, sae_id, row.layer)

    # ------------------------------------------------------------- changing

    async def activate(self, profile_id: str, *, applies: bool = True) -> ActivationReport:
        """Make a profile the active one. In one step, its values times its intensity replace the live values, and
        steering is enabled. All checks come before any change. If `applies` is False, the live values stay as they are.

        Raises:
            Refusal: PROFILE_NOT_FOUND, SAE_NOT_ATTACHED, PROFILE_INCOMPATIBLE, INVALID_FEATURE_INDEX.
        """
        async with self.editing:
            row = await self._documents.profile(profile_id)
            profile, warnings = await self.applicable(row), self._warnings(row)
            applied = applies and bool(row.steering)
            if applied:
                warnings += await self._apply(profile_id, profile)
            elif applies:
                await self._steering.everywhere(
                    lambda live: rules.activate(live, profile_id, profile, ())
                )
            else:
                await self._steering.everywhere(lambda live: rules.adopt(live, profile_id, profile))
        return ActivationReport(applied, len(row.steering) if applied else 0, warnings)

    async def deactivate(self, profile_id: str, *, clears: bool = True) -> bool:
        """End a profile, and return whether its values were cleared. If the profile is not active, nothing changes.

        Raises:
            Refusal: PROFILE_NOT_FOUND.
        """
        async with self.editing:
            await self._documents.profile(profile_id)
            was_active = await self.end(profile_id, clears=clears)
        return was_active and clears

    async def end(self, profile_id: str, *, clears: bool) -> bool:
        """End the profile if it is active, and return whether it was. The values that are kept after a crash until
        their model is loaded again lose the profile too. The caller holds `editing`.

        Raises:
            Refusal: ENGINE_UNAVAILABLE, in which case the profile is still active.
        """
        return await self._steering.everywhere(
            lambda live: rules.deactivate(live, profile_id, clears=clears)
        )

    async def amend(self, row: ProfileRow) -> None:
        """Called after a saved profile was changed. If the profile is active, the dial scales its new values from now
        on. The live values stay. The caller holds `editing`."""
        profile = await self.applicable(row)
        await self._steering.everywhere(lambda live: rules.amend(live, row.id, profile))

    # ------------------------------------------------------------- inside

    async def _apply(self, profile_id: str, profile: Profile) -> tuple[str, ...]:
        """Apply a profile. Returns warnings that name the values set by hand at other SAEs which were cleared by
        this."""
        lost: dict[str, list[int]] = {}

        def step(live: Live, attached: Sequence[Attachment]) -> Live:
            after = rules.activate(live, profile_id, profile, attached)
            lost.update(rules.cleared(live, after))
            return after

        await self._steering.act(step)
        return tuple(
            f"the values that were set by hand at {key} were cleared: {_listed(features)}"
            for key, features in lost.items()
        )

    def _warnings(self, row: ProfileRow) -> tuple[str, ...]:
        resident = self._conductor.resident
        if resident is None or row.model_id is None:
            return ()
        name, repo_id = resident.row.name, resident.row.repo_id
        model = row.origin.model if row.origin else None
        if model is not None:
            made_for, is_same = model.name or model.repo_id, model.is_called(name, repo_id)
        else:
            made_for = row.model_id
            is_same = made_for in (str(resident.row.id), name, repo_id)
        if is_same:
            return ()
        return (f"the profile was made for model {made_for!r}; {name!r} is loaded",)


def _listed(features: Sequence[int]) -> str:
    more = f" and {len(features) - LISTED} more" if len(features) > LISTED else ""
    return f"features {', '.join(map(str, features[:LISTED]))}{more}"
