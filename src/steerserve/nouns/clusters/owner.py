"""Clusters: profiles that were imported from cluster documents. `serving.py` activates them, through the same gate as
every profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from steerserve.control.residency.conductor import Conductor
from steerserve.control.steering.interventions import EditParts
from steerserve.control.steering.serving import Serving
from steerserve.control.threads import Threads
from steerserve.database.catalog import Catalog
from steerserve.database.stored import NameTaken
from steerserve.errors import Refusal
from steerserve.messages.carried import carried
from steerserve.nouns.clusters import rules
from steerserve.nouns.clusters.form import ImportedItem, IntensityReport
from steerserve.nouns.clusters.rules import ImportedCluster, ReadClusters
from steerserve.nouns.profiles.owner import Profiles
from steerserve.nouns.profiles.store import ProfileRow, ProfileStore
from steerserve.rules.steering import documents
from steerserve.rules.steering.members import names_to_try

OnConflict = Literal["rename", "fail"]
"""What is done with a document whose name is taken: save it as `name (2)`, or refuse it."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """How a document is imported. `own_id` is the id of its record, by default a new one. `columns` are further columns
    of the record: the file of the hub that the document came from, or the layer of a circuit that it was made of."""

    on_conflict: OnConflict = "rename"
    activate: bool = False
    own_id: str | None = None
    columns: Mapping[str, object] = field(default_factory=dict)


class Clusters(Profiles):
    """Imports clusters, and changes them. A cluster is a profile with a document."""

    def __init__(
        self,
        documents: ProfileStore,
        serving: Serving,
        conductor: Conductor,
        catalog: Catalog,
        parts: EditParts,
        reader: Threads,
    ) -> None:
        super().__init__(documents, serving, conductor, catalog, parts)
        self._reader = reader

    async def page(self, limit: int, offset: int = 0) -> tuple[list[ProfileRow], int]:
        """Some of the clusters, oldest first, and how many there are."""
        return await self._documents.page(limit, offset, only_clusters=True)

    async def get(self, profile_id: str) -> ProfileRow:
        row = await super().get(profile_id)
        if row.cluster is None:
            raise rules.not_a_cluster(row.id, row.source_kind)
        return row

    async def document(self, cluster_id: str) -> str:
        """The JSON text of the document of a cluster, as it was imported.

        Raises:
            Refusal: PROFILE_NOT_FOUND, VALIDATION_ERROR.
        """
        await self.get(cluster_id)
        document = await self._documents.document(cluster_id)
        assert document is not None
        return document

    # ------------------------------------------------------------- importing

    async def add_body(self, body: bytes, options: ImportOptions) -> Sequence[ImportedItem]:
        """Import the definition or the bundle in the body of an import, which is checked as a whole.

        Raises:
            DocumentRefusal: PAYLOAD_TOO_LARGE, UNKNOWN_KIND, VALIDATION_ERROR.
            Refusal: VALIDATION_ERROR for a body that is not JSON; DATABASE_UNAVAILABLE.
        """
        read = await self._reader.run(documents.parse, body, rules.imported)
        return await self.add_all(read, options)

    async def add_all(self, read: ReadClusters, options: ImportOptions) -> Sequence[ImportedItem]:
        """Import each definition of a document on its own: one that cannot be saved does not keep the others out.
        Nothing of a bundle is activated.

        Raises:
            Refusal: DOCUMENT_STORE_FULL, INSUFFICIENT_DISK, DATABASE_UNAVAILABLE.
        """
        size = sum(len(one.document) for one in read.clusters)
        await self._documents.check_room(len(read.clusters), size)
        if read.is_bundle:
            options = replace(options, activate=False)
        return [await self.add(one, options) for one in read.clusters]

    async def add(self, imported: ImportedCluster, options: ImportOptions) -> ImportedItem:
        """Import one definition: save it, bind it to an attached SAE if one fits, and activate it if that is asked for.
        A failed activation leaves the cluster saved, with a warning.

        Raises:
            Refusal: DATABASE_UNAVAILABLE.
        """
        cluster, intensity = imported.cluster, imported.intensity
        binding = rules.bind(cluster, self._conductor.attachments())
        own = rules.own_warnings(cluster, intensity, self._serving.configured)
        warnings = binding.warnings + own
        values = {
            "description": imported.description,
            "model_id": imported.model_id,
            "sae_id": binding.sae_id,
            "layer": cluster.sae.layer,
            "steering": cluster.values,
            "intensity": intensity,
            "source_kind": "cluster",
            "document": imported.document,
            "cluster": cluster,
            "warnings": warnings,
            **options.columns,
        }
        may_rename = options.on_conflict == "rename"
        names = names_to_try(imported.name, rules.NAME_MAXIMUM, may_rename=may_rename)
        add = partial(self._documents.add_profile, own_id=options.own_id, **values)
        try:
            row = await self._documents.first_free(names, lambda name: add(name=name), names[-1])
        except NameTaken as taken:
            return ImportedItem(imported.name, "error", error=taken.message)
        if options.activate:
            warnings += await self._activated(row)
        status: Literal["imported", "imported_unbound"] = (
            "imported" if binding.sae_id is not None else "imported_unbound"
        )
        return ImportedItem(row.name, status, row.id, warnings)

    async def _activated(self, row: ProfileRow) -> tuple[str, ...]:
        """Activate an imported cluster, and return warnings."""
        if row.sae_id is None:
            return ("the cluster is not bound to an SAE, so it was not activated",)
        try:
            report = await self.activate(row.id)
        except Refusal as refusal:
            return (f"the cluster was imported, but not activated: {refusal.message}",)
        return tuple(one for one in report.warnings if one not in row.warnings)

    # ------------------------------------------------------------- changing

    async def set_active_intensity(self, intensity: float, *, reapply: bool) -> IntensityReport:
        """Raises:
        Refusal: NO_ACTIVE_CLUSTER; what `set_intensity` raises.
        """
        row = await self._serving.active()
        if row is None or row.cluster is None:
            raise Refusal("NO_ACTIVE_CLUSTER", "no cluster is active")
        return await self.set_intensity(row.id, intensity, reapply=reapply)

    @carried
    async def set_intensity(
        self, cluster_id: str, intensity: float, *, reapply: bool
    ) -> IntensityReport:
        """Save the intensity of a cluster. With `reapply`, an active cluster steers by it at once; if that fails, the
        old intensity is saved again.

        Raises:
            Refusal: PROFILE_NOT_FOUND; VALIDATION_ERROR for a profile that is no cluster, and for an intensity above
                the end of the range; ENGINE_UNAVAILABLE.
        """
        async with self._serving.editing:
            row = await self.get(cluster_id)
            assert row.cluster is not None
            rules.check_intensity(row.cluster, row.id, intensity, self._serving.configured)
            changed = await self._documents.change_profile(row.id, {"intensity": intensity})
            try:
                reapplied = reapply and await self._serving.redial(changed)
            except Refusal:
                await self._documents.change_profile(row.id, {"intensity": row.intensity})
                raise
        return IntensityReport(row.id, intensity, reapplied)
