"""Saved profiles, and which one is active: what it applied is live steering, which has its own owner."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from steerserve.control.interventions.steering import Steering
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.resident import Resident
from steerserve.errors import Refusal
from steerserve.rules import profile as rules
from steerserve.rules.profile import Document, Profile
from steerserve.store.documents import Documents, ProfileRow


@dataclass(frozen=True, slots=True)
class Activated:
    """What an activation did. `count` is the number of features that steer by it."""

    applied: bool
    count: int
    warnings: tuple[str, ...]


class Profiles:
    """Checks what is saved, and activates it. Indices are checked against an SAE only when a profile is applied to it.

    The active profile is part of the live steering, so that both change in one step; it is not stored.
    """

    def __init__(self, documents: Documents, steering: Steering, conductor: Conductor) -> None:
        self._documents = documents
        self._steering = steering
        self._conductor = conductor
        # a profile is not removed while it is being activated
        self._acting = asyncio.Lock()

    @property
    def active_id(self) -> str | None:
        active = self._steering.live.active
        return active.profile_id if active else None

    async def active(self) -> ProfileRow | None:
        """The active profile as it is saved now."""
        if self.active_id is None:
            return None
        try:
            return await self._documents.profile(self.active_id)
        except Refusal:  # deleted, and about to be active no longer
            return None

    async def list(self) -> list[ProfileRow]:
        """All of them, oldest first."""
        return await self._documents.profiles()

    async def get(self, profile_id: str) -> ProfileRow:
        """Raises:
        Refusal: PROFILE_NOT_FOUND.
        """
        return await self._documents.profile(profile_id)

    async def named(self, name: str) -> ProfileRow:
        """The profile that a request's `profile` names.

        Raises:
            Refusal: PROFILE_NOT_FOUND.
        """
        return await self._documents.profile_named(name)

    async def create(
        self,
        name: str,
        *,
        description: str | None = None,
        steering: Mapping[str, float],
        model_id: str | None = None,
        sae_id: str | None = None,
        layer: int | None = None,
        intensity: float = 1.0,
    ) -> ProfileRow:
        """Save a profile under a name that no other has.

        Raises:
            Refusal: PROFILE_ALREADY_EXISTS, VALIDATION_ERROR.
        """
        rules.check_intensity(intensity)
        return await self._documents.add_profile(
            name=name,
            description=description,
            steering=rules.feature_values(steering),
            model_id=model_id,
            sae_id=sae_id,
            layer=layer,
            intensity=intensity,
        )

    async def save_current(self, name: str, description: str | None) -> ProfileRow:
        """Save the live values, and what they were found good for: the attached SAE that has some, else the first.

        Raises:
            Refusal: SAE_NOT_ATTACHED, PROFILE_ALREADY_EXISTS; PROFILE_INCOMPATIBLE when several SAEs have values;
                VALIDATION_ERROR for more than 1,000 features.
        """
        at = rules.steered(self._steering.live, self._conductor.attachments())
        resident = self._conductor.resident
        values = self._steering.live.of(at.key)
        return await self.create(
            name,
            description=description,
            steering={str(index): value for index, value in values.items()},
            model_id=str(resident.row.id) if resident else None,
            sae_id=at.sae_id,
            layer=at.layer,
        )

    async def change(self, profile_id: str, changes: Mapping[str, Any]) -> ProfileRow:
        """Replace some fields of what is saved; what steers now stays as it is until the next activation.

        Raises:
            Refusal: PROFILE_NOT_FOUND, PROFILE_ALREADY_EXISTS, VALIDATION_ERROR.
        """
        changed = dict(changes)
        if "intensity" in changed:
            rules.check_intensity(changed["intensity"])
        if "steering" in changed:
            changed["steering"] = rules.feature_values(changed["steering"])
        return await self._documents.change_profile(profile_id, changed)

    async def remove(self, profile_id: str) -> bool:
        """Delete a profile; one that is active is deactivated first, and its values cleared. Whether it was.

        Raises:
            Refusal: PROFILE_NOT_FOUND; ENGINE_UNAVAILABLE and nothing is deleted.
        """
        async with self._acting:
            await self._documents.profile(profile_id)
            was_active = await self._end(profile_id, clears=True)
            await self._documents.remove_profile(profile_id)
        return was_active

    async def activate(self, profile_id: str, *, applies: bool = True) -> Activated:
        """Make a profile the active one: its values times its intensity replace what steers, in one step, and steering is
        enabled. Everything is checked before anything changes. Without `applies` the steering stays as it is.

        Raises:
            Refusal: PROFILE_NOT_FOUND, SAE_NOT_ATTACHED, PROFILE_INCOMPATIBLE, INVALID_FEATURE_INDEX.
        """

        async with self._acting:
            row = await self._documents.profile(profile_id)
            profile = Profile(row.name, row.steering, row.intensity, row.sae_id, row.layer)
            applied = applies and bool(row.steering)
            if applied:
                await self._steering.act(
                    lambda live, attached: rules.activate(live, profile_id, profile, attached)
                )
            elif applies:
                await self._steering.everywhere(
                    lambda live: rules.activate(live, profile_id, profile, ())
                )
            else:
                await self._steering.everywhere(lambda live: rules.adopt(live, profile_id))
        return Activated(applied, len(row.steering) if applied else 0, self._warnings(row))

    async def deactivate(self, profile_id: str, *, clears: bool = True) -> bool:
        """No profile is active any more; whether its steering was cleared. One that is not active changes nothing.

        Raises:
            Refusal: PROFILE_NOT_FOUND.
        """
        async with self._acting:
            await self._documents.profile(profile_id)
            was_active = await self._end(profile_id, clears=clears)
        return was_active and clears

    async def add_document(self, document: Document, fields: Mapping[str, Any]) -> ProfileRow:
        """Save an imported profile. `fields` are the document's, checked.

        Raises:
            Refusal: PROFILE_ALREADY_EXISTS, VALIDATION_ERROR.
        """
        rules.check_intensity(fields.get("intensity", 1.0))
        return await self._documents.add_profile(**fields, steering=document.steering)

    async def _end(self, profile_id: str, *, clears: bool) -> bool:
        """The profile is active no longer, and will not be once what a crash took is back; whether it was."""
        return await self._steering.everywhere(
            lambda live: rules.deactivate(live, profile_id, clears=clears)
        )

    def _warnings(self, row: ProfileRow) -> tuple[str, ...]:
        resident = self._conductor.resident
        if row.model_id is None or resident is None or row.model_id in _names(resident):
            return ()
        return (
            f"the profile was made for model {row.model_id!r}; {resident.row.name!r} is loaded",
        )


def _names(resident: Resident) -> tuple[str | None, ...]:
    """What a profile may call the loaded model."""
    return (str(resident.row.id), resident.row.name, resident.row.repo_id)
