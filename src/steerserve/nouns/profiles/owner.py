"""Saved profiles, which are kept in the database. `serving.py` knows which profile is active."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from steerserve.control.residency.conductor import Conductor
from steerserve.control.saes.records import origin_of
from steerserve.control.steering.interventions import EditParts
from steerserve.control.steering.serving import Serving
from steerserve.database.catalog import Catalog
from steerserve.messages.carried import carried
from steerserve.nouns.profiles import rules
from steerserve.nouns.profiles.form import ActivatedProfile
from steerserve.nouns.profiles.rules import ImportedProfile
from steerserve.nouns.profiles.store import ProfileRow, ProfileStore
from steerserve.rules.saes.provenance import ModelOrigin, Origin
from steerserve.rules.steering.activation import steered
from steerserve.rules.steering.live import without_interventions


class Profiles:
    """Checks profiles before they are saved. Feature indices are checked only when a profile is applied to an SAE."""

    def __init__(
        self,
        documents: ProfileStore,
        serving: Serving,
        conductor: Conductor,
        catalog: Catalog,
        parts: EditParts,
    ) -> None:
        self._documents = documents
        self._catalog = catalog
        self._serving = serving
        self._conductor = conductor
        self._parts = parts

    async def page(self, limit: int, offset: int) -> tuple[list[ProfileRow], int]:
        """Some of the profiles, oldest first, and how many there are."""
        return await self._documents.page(limit, offset)

    async def get(self, profile_id: str) -> ProfileRow:
        """Raises:
        Refusal: PROFILE_NOT_FOUND; and for clusters VALIDATION_ERROR for a profile that is no cluster.
        """
        return await self._documents.row(profile_id)

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
        steering: Mapping[str, Any],
        intensity: float = 1.0,
        edits: Sequence[Mapping[str, object]] | None = None,
        has_layers: bool = False,
        **fields: Any,
    ) -> ProfileRow:
        """Save a profile under a name that no other profile has. `fields` are the columns that need no check. Edits of
        trained vectors get their layers, unless `has_layers` says that those without layers act at all layers of the
        vector.

        Raises:
            Refusal: PROFILE_ALREADY_EXISTS, VALIDATION_ERROR, INVALID_INTERVENTION, TOO_MANY_EDITS.
        """
        rules.check_intensity(intensity)
        return await self._documents.add_profile(
            name=name,
            steering=rules.feature_values(steering),
            intensity=intensity,
            edits=rules.checked_edits(edits) if has_layers else await self._checked(edits),
            **fields,
        )

    async def _checked(
        self, edits: Sequence[Mapping[str, object]] | None
    ) -> list[dict[str, object]] | None:
        """The edits of a profile as they are saved.

        Raises:
            Refusal: as `rules.checked_edits`; DATABASE_UNAVAILABLE.
        """
        checked = rules.checked_edits(edits)
        return None if checked is None else await self._parts.with_layers(checked)

    async def save_current(self, name: str, description: str | None) -> ProfileRow:
        """Save the live values and interventions together with their SAE and the loaded model. The SAE is the one that
        has values; if none has values, the first attached SAE, or none where there are interventions only.

        Raises:
            Refusal: SAE_NOT_ATTACHED, PROFILE_ALREADY_EXISTS; PROFILE_INCOMPATIBLE when several SAEs have values;
                VALIDATION_ERROR for more than 1,000 features.
        """
        live, attached = self._serving.live, self._conductor.attachments()
        bare = without_interventions(live)
        at = steered(bare, attached) if attached or not live.standing else None
        resident = self._conductor.resident
        values = {} if at is None else bare.values_at(at.key)
        return await self.create(
            name,
            description=description,
            steering={str(index): value for index, value in values.items()},
            model_id=str(resident.row.id) if resident else None,
            sae_id=None if at is None else at.sae_id,
            layer=None if at is None else at.layer,
            edits=[one.sent for one in live.standing],
            has_layers=True,
        )

    @carried
    async def change(self, profile_id: str, changes: Mapping[str, Any]) -> ProfileRow:
        """Replace some fields of a saved profile. The live values stay as they are until the next activation. If the
        profile is active, the dial scales the new values from now on.

        Raises:
            Refusal: PROFILE_NOT_FOUND, PROFILE_ALREADY_EXISTS, VALIDATION_ERROR.
        """
        changed = dict(changes)
        if "intensity" in changed:
            rules.check_intensity(changed["intensity"])
        if "steering" in changed:
            changed["steering"] = rules.feature_values(changed["steering"])
        if "edits" in changed:
            changed["edits"] = await self._checked(changed["edits"])
        async with self._serving.editing:
            row = await self._documents.row(profile_id)
            if row.cluster is not None:
                new = {field: v for field, v in changed.items() if v != getattr(row, field)}
                rules.check_cluster_changes(row.cluster, row.id, new, self._serving.configured)
            if row.origin is not None:
                # the origin loses the SAE or the model that the changes replace
                sae = None if "sae_id" in changed else row.origin.sae
                model = None if "model_id" in changed else row.origin.model
                changed["origin"] = Origin(sae, model)
            if changed.get("name", row.name) != row.name:
                # a slice that an operator renames is the operator's own, and outlives its circuit
                changed |= {"slice_of": None, "slice_layer": None}
            row = await self._documents.change_profile(profile_id, changed)
            await self._serving.amend(row)
        return row

    @carried
    async def activate(self, profile_id: str, *, applies: bool = True) -> ActivatedProfile:
        """Make a profile the active one (`Serving.activate_row`).

        Raises:
            Refusal: as `get`; what the gate of `rules/steering/activation` raises.
        """
        async with self._serving.editing:
            return await self._serving.activate_row(await self.get(profile_id), applies)

    @carried
    async def deactivate(self, profile_id: str, *, clears: bool = True) -> bool:
        """End a profile, and return whether its values were cleared. If the profile is not active, nothing changes.

        Raises:
            Refusal: as `get`; ENGINE_UNAVAILABLE.
        """
        async with self._serving.editing:
            await self.get(profile_id)
            was_active = await self._serving.end(profile_id, clears=clears)
        return was_active and clears

    @carried
    async def remove(self, profile_id: str) -> bool:
        """Delete a profile. If the profile is active, it is ended first and its values are cleared. Returns whether it
        was active.

        Raises:
            Refusal: as `get`; ENGINE_UNAVAILABLE, in which case nothing is deleted.
        """
        async with self._serving.editing:
            await self.get(profile_id)
            was_active = await self._serving.end(profile_id, clears=True)
            await self._documents.remove(profile_id)
        return was_active

    async def add_document(
        self, document: ImportedProfile, fields: Mapping[str, Any]
    ) -> ProfileRow:
        """Save an imported profile. `fields` are the checked fields of the document.

        Raises:
            Refusal: PROFILE_ALREADY_EXISTS, VALIDATION_ERROR.
        """
        rules.check_intensity(fields.get("intensity", 1.0))
        return await self._documents.add_profile(
            **fields,
            steering=document.steering,
            origin=document.origin,
            edits=document.edits,
        )

    async def origin(self, row: ProfileRow) -> Origin:
        """The SAE and the model of a profile, for an export. They are taken from the document with which the profile
        was imported, or else from the records of this service.

        Raises:
            Refusal: VALIDATION_ERROR for a cluster, whose own export has its whole document.
        """
        if row.cluster is not None:
            raise rules.is_cluster(row.id)
        known = row.origin or Origin()
        saes, models = await self._catalog.saes(), await self._catalog.models()
        sae = next((origin_of(sae) for sae in saes if row.sae_id in sae.ids), None)
        names = (ModelOrigin(m.name, m.repo_id) for m in models if str(m.id) == row.model_id)
        return Origin(known.sae or sae, known.model or next(names, None))
