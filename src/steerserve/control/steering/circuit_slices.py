"""Serves one layer of a circuit by a cluster, where SAEs of the other layers are missing."""

from __future__ import annotations

from steerserve.control.steering.clusters import Clusters, ImportOptions
from steerserve.control.steering.reading import DocumentReader
from steerserve.control.steering.serving import Serving
from steerserve.database.circuits import CircuitRow, CircuitStore
from steerserve.database.documents import Documents, ProfileRow, SliceOf
from steerserve.errors import Refusal
from steerserve.rules.steering import slices
from steerserve.rules.steering.circuit import Circuit


class CircuitSlices:
    """Saves the layer of a circuit as a cluster and activates this cluster."""

    def __init__(
        self,
        store: CircuitStore,
        reader: DocumentReader,
        clusters: Clusters,
        serving: Serving,
        documents: Documents,
    ) -> None:
        self._store = store
        self._reader = reader
        self._documents = documents
        self._clusters = clusters
        self._serving = serving

    async def serve(
        self, row: CircuitRow, circuit: Circuit, layer: int, intensity: float
    ) -> tuple[str, tuple[str, ...]]:
        """Activate the cluster of a layer, and return its id and warnings. The cluster of an earlier activation is used
        again, or replaced where the circuit has another intensity by now. The caller holds `editing`.

        Raises:
            Refusal: SAE_SET_INCOMPLETE where the cluster cannot be saved and bound, or not be activated.
        """
        text = await self._store.document(row.id)
        imported = await self._reader.read(slices.imported, text, circuit, row.id, layer, intensity)
        saved = await self._earlier(row.id, layer, imported.document)
        if saved is None:
            options = ImportOptions("rename", slice_of=SliceOf(row.id, layer))
            item = await self._clusters.add(imported, options)
            if item.profile_id is None or item.status != "imported":
                raise _incomplete(circuit, layer, f"slice_import_{item.status}", item.error)
            saved = await self._clusters.get(item.profile_id)
        try:
            report = await self._serving.activate_row(saved, displaces=False)
        except Refusal as refusal:
            raise _incomplete(
                circuit, layer, "slice_activation_failed", refusal.message
            ) from refusal
        return saved.id, report.warnings

    async def remove(self, circuit_id: str) -> None:
        """Delete the clusters of a circuit's layers. A cluster that an operator renamed or activated by hand stays.
        The caller holds `editing`."""
        for row in await self._documents.slices(circuit_id):
            if row.id != self._serving.profile_id:
                await self._documents.remove(row.id)

    async def _earlier(self, circuit_id: str, layer: int, document: str) -> ProfileRow | None:
        """The saved cluster of the layer with exactly this document. One with another document is deleted."""
        for row in await self._documents.slices(circuit_id, layer):
            if await self._clusters.document(row.id) == document:
                return row
            await self._documents.remove(row.id)
        return None


def _incomplete(circuit: Circuit, layer: int, reason: str, why: str | None) -> Refusal:
    """The refusal of a circuit whose one layer cannot be served by a cluster."""
    offenders = [
        {"feature_idx": member.feature_idx, "layer": layer, "reason": reason}
        for member in circuit.members[layer]
    ]
    message = f"layer {layer} of the circuit cannot be served by a cluster"
    return Refusal(
        "SAE_SET_INCOMPLETE", f"{message}: {why}" if why else message, offenders=offenders
    )
