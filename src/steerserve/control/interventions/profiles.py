"""Saved profiles: what is kept in the database. Which one is active is known to `serving.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steerserve.control.interventions.serving import Serving
from steerserve.control.residency.conductor import Conductor
from steerserve.rules import profile as rules
from steerserve.rules.profile import ImportedProfile
from steerserve.rules.serving import steered
from steerserve.store.documents import Documents, ProfileRow


class Profiles:
    """Checks what is saved. Feature indices are checked against an SAE only when a profile is applied to it."""

    def __init__(self, documents: Documents, serving: Serving, conductor: Conductor) -> None:
        self._documents = documents
        self._serving = serving
        self._conductor = conductor

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
        steering: Mapping[str, Any],
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
        at = steered(self._serving.live, self._conductor.attachments())
        resident = self._conductor.resident
        values = self._serving.live.of(at.key)
        return await self.create(
            name,
            description=description,
            steering={str(index): value for index, value in values.items()},
            model_id=str(resident.row.id) if resident else None,
            sae_id=at.sae_id,
            layer=at.layer,
        )

    async def change(self, profile_id: str, changes: Mapping[str, Any]) -> ProfileRow:
        """Replace some fields of a saved profile. The live values stay as they are until the next activation; the dial
        of an active profile scales the new values at once.

        Raises:
            Refusal: PROFILE_NOT_FOUND, PROFILE_ALREADY_EXISTS, VALIDATION_ERROR.
        """
        changed = dict(changes)
        if "intensity" in changed:
            rules.check_intensity(changed["intensity"])
        if "steering" in changed:
            changed["steering"] = rules.feature_values(changed["steering"])
        async with self._serving.editing:
            row = await self._documents.change_profile(profile_id, changed)
            await self._serving.amend(row)
        return row

    async def remove(self, profile_id: str) -> bool:
        """Delete a profile. An active one is ended first and its values are cleared; the answer says whether it was active.

        Raises:
            Refusal: PROFILE_NOT_FOUND; ENGINE_UNAVAILABLE, and then nothing is deleted.
        """
        async with self._serving.editing:
            await self._documents.profile(profile_id)
            was_active = await self._serving.end(profile_id, clears=True)
            await self._documents.remove_profile(profile_id)
        return was_active

    async def add_document(
        self, document: ImportedProfile, fields: Mapping[str, Any]
    ) -> ProfileRow:
        """Save an imported profile. `fields` are the document's, checked.

        Raises:
            Refusal: PROFILE_ALREADY_EXISTS, VALIDATION_ERROR.
        """
        rules.check_intensity(fields.get("intensity", 1.0))
        return await self._documents.add_profile(**fields, steering=document.steering)
