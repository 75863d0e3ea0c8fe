"""Stored vectors and probes: files become rows of either kind, and requests read them by name. The ones read last stay
in memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic

import msgspec
from msgspec import structs

from steerserve.control.steering.reading import DocumentReader
from steerserve.database.directions import DirectionStore, Read, Used
from steerserve.database.stored import Row as Row
from steerserve.engines.sandbox.directions import read_file
from steerserve.errors import Refusal
from steerserve.files.client_paths import ClientPaths
from steerserve.files.directions.reader import METADATA_MAXIMUM, Formats, needs_adapter
from steerserve.files.directions.stored import DirectionFile as DirectionFile
from steerserve.hub.client import Hub
from steerserve.rules import field_faults
from steerserve.rules.steering.records import SourceKind, Training, VectorSource
from steerserve.rules.steering.vector import (
    ReadOptions,
    StoredDirections,
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
        reader: DocumentReader,
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
        read = await self._reader.read(self.formats.read_inline, document, new.options)
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
