"""Stored vectors: reading files into them, finding them for requests, their neighbours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import structs

from steerserve import messages as m
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.resident import Attachment
from steerserve.control.steering.directions import Directions
from steerserve.control.steering.reading import DocumentReader
from steerserve.control.steering.vector_views import (
    NearFeature,
    NearVector,
    VectorNeighbours,
)
from steerserve.database.directions import VectorStore
from steerserve.database.labels import Labels
from steerserve.errors import Refusal
from steerserve.files.client_paths import ClientPaths
from steerserve.files.directions import exports
from steerserve.files.directions.vectors import VECTORS
from steerserve.hub.client import Hub
from steerserve.rules.steering import vector as rules
from steerserve.rules.steering.levers import Measured
from steerserve.rules.steering.records import VectorRecord
from steerserve.rules.steering.vector import Direction, ReadVector, Vector

NUMBERS_AT_ONCE = 1 << 20
"""The numbers of two vectors that are compared before documents of others have their turn: in about 0.1 seconds."""


class Vectors(Directions[VectorRecord, Vector, ReadVector]):
    """All vectors, and where they come from."""

    formats = VECTORS

    def __init__(
        self,
        store: VectorStore,
        reader: DocumentReader,
        hub: Hub,
        conductor: Conductor,
        labels: Labels,
        paths: ClientPaths,
    ) -> None:
        super().__init__(store, reader, hub, paths)
        self._store = store
        self._conductor = conductor
        self._labels = labels

    async def keep_measurement(self, vector_id: str, measured: Measured | str) -> VectorRecord:
        """Keep what was measured of a vector, or why nothing was. From now on edits without layers act at its place.

        Raises:
            Refusal: VECTOR_NOT_FOUND; INSUFFICIENT_DISK, DATABASE_UNAVAILABLE.
        """
        row = await self._store.keep_measurement(vector_id, measured)
        self._changed(vector_id)
        return row

    # ------------------------------------------------------------- exporting

    async def export(
        self, id_or_name: str, format: str
    ) -> tuple[VectorRecord, bytes | dict[str, object]]:
        """A vector as a file (`gguf`, `safetensors`), or as a JSON document (`json`).

        Raises:
            Refusal: VECTOR_NOT_FOUND; INVALID_VECTOR for what the format cannot say.
        """
        vector, row = await self.find(id_or_name), await self.get(id_or_name)
        hint, value = row.model_hint, row.suggested_value
        if format == "json":
            return row, await self._reader.read(exports.document, vector, hint, value, row.training)
        if format == "gguf":
            return row, await self._reader.read(exports.gguf, vector, hint, value)
        return row, await self._reader.read(exports.safetensors, vector, hint, value)

    # ------------------------------------------------------------- neighbours

    async def neighbours(self, id_or_name: str, limit: int, layer: int | None) -> VectorNeighbours:
        """The features and the other vectors that are nearest to a vector, `limit` of each, or to its directions at one
        layer.

        Decoder rows of the SAEs at the layers and sites of the vector are compared. Where no such SAE is attached, each
        attached SAE of its width is compared with the direction at the nearest layer. Without a loaded model there are
        no features.

        Raises:
            Refusal: VECTOR_NOT_FOUND; VALIDATION_ERROR for a layer that the vector does not have; VECTOR_MISMATCH for a
                vector that does not fit the loaded model.
        """
        vector = await self.find(id_or_name)
        directions = rules.directions_at(vector, layer)
        features = await self.near_features(vector.name, directions, limit)
        others = await self._near_vectors(vector.id, directions)
        return VectorNeighbours(vector.id, await self._labelled(features[:limit]), others[:limit])

    async def near_features(
        self, name: str, directions: Sequence[Direction], limit: int
    ) -> list[NearFeature]:
        """The features of the attached SAEs that are nearest to the directions of a vector, the nearest first, without
        labels.

        Raises:
            Refusal: VECTOR_MISMATCH for a vector that does not fit the loaded model.
        """
        attached = self._conductor.attachments()
        if not attached:
            return []
        engine, facts = self._conductor.loaded().running()
        rules.check_fits(name, directions, facts.layers, facts.site_widths)
        features = []
        for direction, sae in _pairs(directions, attached, facts.site_widths):
            question = m.Explore(key=sae.key, nearest=limit, direction=direction.data)
            features += [
                NearFeature(
                    layer=direction.layer,
                    site=direction.site,
                    sae_id=sae.sae_id,
                    sae_layer=sae.layer,
                    sae_site=sae.site,
                    feature_idx=index,
                    label=None,
                    cosine=cosine,
                )
                for index, cosine in (await engine.ask(question)).nearest
            ]
        return sorted(features, key=lambda one: -one.cosine)

    async def _labelled(self, features: Sequence[NearFeature]) -> list[NearFeature]:
        labels = {one.sae_id: await self._labels.labels_of(one.sae_id) for one in features}
        return [
            structs.replace(one, label=labels[one.sae_id].get(one.feature_idx)) for one in features
        ]

    async def _near_vectors(
        self, vector_id: str, directions: Sequence[Direction]
    ) -> list[NearVector]:
        """The other vectors that have a direction at the layer and site of one of these, the nearest first."""
        found = []
        async for other in self._store.others(vector_id, directions[0].width):
            near: list[NearVector] = []
            pairs = _shared(directions, other)
            at_once = max(1, NUMBERS_AT_ONCE // directions[0].width)
            for first in range(0, len(pairs), at_once):
                some = pairs[first : first + at_once]
                near.append(await self._reader.read(_nearest, some, other))
            found += sorted(near, key=lambda one: -one.cosine)[:1]
        return sorted(found, key=lambda one: -one.cosine)


def _pairs(
    directions: Sequence[Direction], attached: Sequence[Attachment], widths: Mapping[str, int]
) -> list[tuple[Direction, Attachment]]:
    """The SAEs at the places of the directions; where there are none, all SAEs of their width, each with the direction
    at the nearest layer.

    Raises:
        Refusal: VECTOR_MISMATCH where no SAE has the width.
    """
    by_place = {(one.layer, one.site): one for one in directions}
    here = [
        (by_place[sae.layer, sae.site], sae)
        for sae in attached
        if (sae.layer, sae.site) in by_place
    ]
    width = directions[0].width
    elsewhere = [
        (min(directions, key=lambda one, at=sae.layer: (abs(one.layer - at), one.layer)), sae)  # type: ignore[misc]
        for sae in attached
        if widths.get(sae.site) == width
    ]
    if not here and not elsewhere:
        why = f"the vector has {width} numbers, and no attached SAE reads so many"
        raise Refusal("VECTOR_MISMATCH", why, width=width)
    return here or elsewhere


def _shared(directions: Sequence[Direction], other: Vector) -> list[tuple[Direction, Direction]]:
    """These directions, each with the one of another vector at its place."""
    places = {(one.layer, one.site): one for one in directions}
    return [
        (places[one.layer, one.site], one)
        for one in other.directions
        if (one.layer, one.site) in places
    ]


def _nearest(pairs: Iterable[tuple[Direction, Direction]], other: Vector) -> NearVector:
    """Where another vector is nearest."""
    compared = [(rules.cosine(*pair), pair[1]) for pair in pairs]
    cosine, at = max(compared, key=lambda pair: pair[0])
    return NearVector(
        vector_id=other.id, name=other.name, layer=at.layer, site=at.site, cosine=cosine
    )
