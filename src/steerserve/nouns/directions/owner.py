"""Stored vectors and probes: files become rows of either kind, and requests read them by name. The ones read last stay
in memory. Vectors have neighbours, and are written to files again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic

import msgspec
from msgspec import structs

from steerserve import messages as m
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.resident import Attachment
from steerserve.control.threads import Threads
from steerserve.database.stored import Row as Row
from steerserve.engines.sandbox.directions import read_file
from steerserve.errors import Refusal
from steerserve.files.client_paths import ClientPaths
from steerserve.files.directions import exports
from steerserve.files.directions.probes import PROBES
from steerserve.files.directions.reader import METADATA_MAXIMUM, Formats, needs_adapter
from steerserve.files.directions.stored import DirectionFile as DirectionFile
from steerserve.files.directions.vectors import VECTORS
from steerserve.hub.client import Hub
from steerserve.nouns.directions.form import (
    NearFeature,
    NearVector,
    ProbeWeights,
    StoredDirection,
    VectorNeighbours,
)
from steerserve.nouns.directions.rules import (
    ProbeRecord,
    SourceKind,
    Training,
    VectorRecord,
    VectorSource,
)
from steerserve.nouns.directions.store import DirectionStore, Read, Used, VectorStore
from steerserve.nouns.labels.store import Labels
from steerserve.rules import field_faults
from steerserve.rules.steering import vector as rules
from steerserve.rules.steering.levers import Measured
from steerserve.rules.steering.probe import Probe, ReadProbe
from steerserve.rules.steering.vector import (
    Direction,
    ReadOptions,
    ReadVector,
    StoredDirections,
    Vector,
    check_name,
    check_written,
    invalid,
)
from steerserve.rules.text import shown

HUB_FILE_MAXIMUM = 10 << 20
"""The largest file in bytes that is read from the hub."""

KEYS_KEPT = 128
"""The most keys of a file that a record names."""

KEPT_BYTES = 64 << 20
"""The most bytes of directions that are kept in memory for requests, of one kind."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository of the model hub. The token is sent to the hub and kept nowhere."""

    repo_id: str
    path: str
    revision: str | None
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class NewVector:
    """What a client says about a vector or a probe. `model_hint` replaces what the file says."""

    name: str
    options: ReadOptions = field(default_factory=ReadOptions)
    model_hint: str | None = None


class Directions(Generic[Row, Used, Read]):
    """Owner of the vectors, or of the probes, that are kept in memory. All are records of `store`. `formats` are those
    of their files."""

    formats: ClassVar[Formats[Any]]

    def __init__(
        self,
        store: DirectionStore[Row, Used, Read],
        reader: Threads,
        hub: Hub,
        paths: ClientPaths,
    ) -> None:
        self._rows = store
        self._reader = reader
        self._hub = hub
        self._paths = paths
        self._reading = asyncio.Lock()
        self._kept: dict[str, Used] = {}
        self._ids: dict[str, str] = {}
        self._bytes = 0
        self._changes = 0

    async def page(self, limit: int, offset: int = 0) -> tuple[list[Row], int]:
        """Some of the rows, oldest first, and how many there are."""
        return await self._rows.page(limit, offset)

    async def get(self, id_or_name: str) -> Row:
        """The row of one, without its directions.

        Raises:
            Refusal: VECTOR_NOT_FOUND or PROBE_NOT_FOUND.
        """
        return await self._rows.row(id_or_name)

    async def find(self, id_or_name: str) -> Used:
        """The one that a request names by its id or its name. One that was found lately comes from memory.

        Raises:
            Refusal: VECTOR_NOT_FOUND or PROBE_NOT_FOUND; DATABASE_UNAVAILABLE.
        """
        kept = self._kept.get(self._ids.get(id_or_name, id_or_name))
        if kept is None:
            changes = self._changes
            kept = await self._rows.find(id_or_name)
            if changes != self._changes:
                return kept  # it may be the one that was changed or removed meanwhile
        self._forget(kept.id)
        self._kept[kept.id], self._ids[kept.name] = kept, kept.id
        self._bytes += _size(kept)
        while self._bytes > KEPT_BYTES:
            self._forget(next(iter(self._kept)))
        return kept

    async def add_local(self, new: NewVector, local_path: str) -> Row:
        """Read a file of this machine.

        Raises:
            Refusal: VALIDATION_ERROR for the name; INVALID_LOCAL_PATH; INVALID_VECTOR or INVALID_PROBE;
                DOCUMENT_STORE_FULL, INSUFFICIENT_DISK; VECTOR_ALREADY_EXISTS or PROBE_ALREADY_EXISTS.
        """
        await self._check_new(new)
        path, file = await asyncio.to_thread(
            self.formats.load, local_path, self._paths.check_allowed
        )
        return await self._add_file(new, file, "local", local_path=str(path))

    async def add_from_hub(self, new: NewVector, wanted: HubFile) -> Row:
        """Read a file of a repository of the hub.

        Raises:
            Refusal: what `Hub.describe` raises; and as `add_local`, also for a file that is not there or is too large.
        """
        await self._check_new(new)
        with self.formats.refused():
            file, place = await self._fetched(wanted)
        return await self._add_file(new, file, "huggingface", **place)

    async def add_upload(self, new: NewVector, file: DirectionFile) -> Row:
        """Read a file that a client sent.

        Raises:
            Refusal: as `add_local`.
        """
        await self._check_new(new)
        return await self._add_file(new, file, "upload")

    async def add_inline(self, new: NewVector, document: dict[str, object]) -> Row:
        """Read the directions that a request has in its body, in the form of an exported document.

        Raises:
            Refusal: as `add_local`.
        """
        await self._check_new(new)
        read = await self._reader.run(self.formats.read_inline, document, new.options)
        return await self._add_read(new, read, VectorSource(kind="inline", format=read.format))

    async def add(
        self, name: str, read: Read, source: VectorSource, training: Training | None = None
    ) -> Row:
        """Store what was read, or trained here. `training` says how it was trained.

        Raises:
            Refusal: VALIDATION_ERROR for the name; DOCUMENT_STORE_FULL, INSUFFICIENT_DISK; VECTOR_ALREADY_EXISTS or
                PROBE_ALREADY_EXISTS.
        """
        check_name(name, self._rows.prefix)
        return await self._rows.add(name, read, source, training)

    async def _check_new(self, new: NewVector) -> None:
        """Raises:
        Refusal: VALIDATION_ERROR for the name or the hint; VECTOR_ALREADY_EXISTS or PROBE_ALREADY_EXISTS.
        """
        check_written(new.model_hint, "model_hint")
        await self.check_name(new.name)

    async def _fetched(self, wanted: HubFile) -> tuple[DirectionFile, dict[str, str]]:
        """A file of the hub with the one beside it that says more about it, and its place: its path, its repository and
        the commit.

        Raises:
            Refusal: what `Hub.describe` raises; INVALID_VECTOR for a file that is not there, is too large, or is beside
                an adapter that it needs.
        """
        described = await self._hub.describe(wanted.repo_id, wanted.revision, wanted.token)
        name = wanted.path.rpartition("/")[2]
        folder = wanted.path.removesuffix(name)
        sizes = {one.path: one.size for one in described.files}
        if wanted.path not in sizes:
            raise invalid(shown(wanted.path), f"is no file of {described.repo_id}")
        adapter = self.formats.adapters.get(name)
        if adapter is not None and folder + adapter in sizes:
            raise needs_adapter(name, adapter)
        if (sizes[wanted.path] or 0) > HUB_FILE_MAXIMUM:
            why = f"is larger than {HUB_FILE_MAXIMUM} bytes; download it, and give its local_path"
            raise invalid(name, why)

        async def content(path: str, most: int) -> bytes:
            at = described.repo_id, described.sha
            return await self._hub.content(*at, path, most, wanted.token)

        data = await content(wanted.path, HUB_FILE_MAXIMUM)
        beside, metadata = self.formats.metadata_name(name), None
        if beside is not None and folder + beside in sizes:
            metadata = await content(folder + beside, METADATA_MAXIMUM)
        place = {"file": wanted.path, "repository_id": described.repo_id, "revision": described.sha}
        return DirectionFile(name, data, metadata), place

    async def _add_file(
        self, new: NewVector, file: DirectionFile, kind: SourceKind, /, **place: str
    ) -> Row:
        async with self._reading:
            read = await read_file(self.formats, file, new.options)
        named = {"file": file.name} | place
        source = VectorSource(kind=kind, format=read.format, keys=read.keys[:KEYS_KEPT], **named)
        return await self._add_read(new, read, source)

    async def _add_read(self, new: NewVector, read: Read, source: VectorSource) -> Row:
        if new.model_hint is not None:
            read = structs.replace(read, model_hint=new.model_hint)
        return await self.add(new.name, read, source, self._training(read, source))

    def _training(self, read: Read, source: VectorSource) -> Training | None:
        """How a file says that it was trained.

        Raises:
            Refusal: INVALID_VECTOR, INVALID_PROBE.
        """
        try:
            training = msgspec.convert(read.training, Training | None)
        except msgspec.ValidationError as error:
            raise self._bad_training(source, field_faults.spoken(str(error))) from None
        layers = {one.layer for one in read.directions}
        if training is not None and training.best_layer not in {None, *layers}:
            raise self._bad_training(source, "names a best layer that has no direction")
        return training

    def _bad_training(self, source: VectorSource, why: str) -> Refusal:
        message = f"{source.file or 'body'}: 'training' {why}"
        return Refusal(self.formats.invalid_code, message, key="training")

    async def check_name(self, name: str) -> None:
        """Refuse a name before a file is read or a text.

        Raises:
            Refusal: VALIDATION_ERROR; VECTOR_ALREADY_EXISTS or PROBE_ALREADY_EXISTS.
        """
        check_name(name, self._rows.prefix)
        await self._rows.check_name(name)

    async def remove(self, id_or_name: str) -> str:
        """Delete one, and return its id.

        Raises:
            Refusal: VECTOR_NOT_FOUND or PROBE_NOT_FOUND.
        """
        row = await self._rows.row(id_or_name)
        await self._rows.remove(row.id)
        self._changed(row.id)
        return row.id

    def _changed(self, changed: str) -> None:
        """Take one out of memory whose row was changed or deleted."""
        self._changes += 1
        self._forget(changed)

    def _forget(self, forgotten: str) -> None:
        one = self._kept.pop(forgotten, None)
        if one is not None:
            self._bytes -= _size(one)
            del self._ids[one.name]


def _size(one: StoredDirections) -> int:
    return sum(len(direction.data) for direction in one.directions)


NUMBERS_AT_ONCE = 1 << 20
"""The numbers of two vectors that are compared before documents of others have their turn: in about 0.1 seconds."""


class Vectors(Directions[VectorRecord, Vector, ReadVector]):
    """All vectors, and where they come from."""

    formats = VECTORS

    def __init__(
        self,
        store: VectorStore,
        reader: Threads,
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
            return row, await self._reader.run(exports.document, vector, hint, value, row.training)
        if format == "gguf":
            return row, await self._reader.run(exports.gguf, vector, hint, value)
        return row, await self._reader.run(exports.safetensors, vector, hint, value)

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
                near.append(await self._reader.run(_nearest, some, other))
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


class Probes(Directions[ProbeRecord, Probe, ReadProbe]):
    """All probes."""

    formats = PROBES


def weights(row: ProbeRecord, probe: Probe) -> ProbeWeights:
    """The record of a probe with its weights."""
    directions = [StoredDirection(**exports.stored(one)) for one in probe.directions]
    return ProbeWeights(**structs.asdict(row), weights=directions)


@dataclass(frozen=True, slots=True)
class BothKinds:
    """The owners of the two kinds of stored directions."""

    vectors: Vectors
    probes: Probes
