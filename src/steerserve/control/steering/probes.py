"""Stored probes: reading files into them, their records, and finding them for requests."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import msgspec
from msgspec import structs

from steerserve.control.steering.directions import Directions
from steerserve.control.steering.hub_files import KEYS_KEPT, HubFile, fetched
from steerserve.control.steering.reading import DocumentReader
from steerserve.control.steering.vector_views import (
    ProbeRecord,
    ProbeWeights,
    SourceKind,
    StoredDirection,
    Training,
    VectorSource,
)
from steerserve.control.steering.vectors import NewVector
from steerserve.database.probes import ProbeRow, ProbeStore
from steerserve.errors import Refusal
from steerserve.files import probes as files
from steerserve.files.vectors import VectorFile
from steerserve.hub.client import Hub
from steerserve.rules.steering.probe import ID_PREFIX, Probe, ReadProbe

__all__ = ["ProbeRow", "Probes", "record", "weights"]


class Probes(Directions[ProbeRow, Probe]):
    """All probes."""

    def __init__(self, store: ProbeStore, reader: DocumentReader, hub: Hub) -> None:
        super().__init__(store, store.probe, ID_PREFIX)
        self._probe_store = store
        self._reader = reader
        self._hub = hub

    async def add(
        self, name: str, read: ReadProbe, source: VectorSource, training: dict[str, object] | None
    ) -> ProbeRow:
        """Store a probe. `training` says how it was trained.

        Raises:
            Refusal: PROBE_ALREADY_EXISTS, DOCUMENT_STORE_FULL, INSUFFICIENT_DISK.
        """
        return await self._probe_store.add(name, read, structs.asdict(source), training)

    async def add_local(self, new: NewVector, local_path: str) -> ProbeRow:
        """Read a file of this machine.

        Raises:
            Refusal: VALIDATION_ERROR for the name, INVALID_LOCAL_PATH, INVALID_PROBE, and what `add` raises.
        """
        await self.check_name(new.name)
        with files.refused_as_probes():
            path, file = await asyncio.to_thread(files.load, local_path)
        return await self._add_file(new, file, "local", local_path=str(path))

    async def add_from_hub(self, new: NewVector, wanted: HubFile) -> ProbeRow:
        """Read a file of a repository of the hub.

        Raises:
            Refusal: what `Hub.describe` raises, and as `add_local`.
        """
        await self.check_name(new.name)
        with files.refused_as_probes():
            never = files.adapter_name(wanted.path.rpartition("/")[2])
            file, place = await fetched(self._hub, wanted, files.metadata_name, never)
        return await self._add_file(new, file, "huggingface", **place)

    async def add_upload(self, new: NewVector, file: VectorFile) -> ProbeRow:
        """Read a file that a client sent.

        Raises:
            Refusal: as `add_local`.
        """
        await self.check_name(new.name)
        return await self._add_file(new, file, "upload")

    async def add_inline(self, new: NewVector, document: dict[str, object]) -> ProbeRow:
        """Read weights that a request has in its body.

        Raises:
            Refusal: as `add_local`.
        """
        await self.check_name(new.name)
        read = await self._reader.read(files.inline, document, new.options)
        return await self._add_read(new, read, VectorSource(kind="inline", format=read.format))

    async def _add_file(
        self, new: NewVector, file: VectorFile, kind: SourceKind, /, **place: str
    ) -> ProbeRow:
        read = await self._reader.read(files.read, file, new.options)
        named = {"file": file.name} | place
        source = VectorSource(kind=kind, format=read.format, keys=read.keys[:KEYS_KEPT], **named)
        return await self._add_read(new, read, source)

    async def _add_read(self, new: NewVector, read: ReadProbe, source: VectorSource) -> ProbeRow:
        if new.model_hint is not None:
            read = structs.replace(read, model_hint=new.model_hint)
        try:
            training = msgspec.convert(read.training, Training | None)
        except msgspec.ValidationError as error:
            why = f"{source.file or 'body'}: 'training' {error}"
            raise Refusal("INVALID_PROBE", why, key="training") from None
        layers = {one.layer for one in read.directions}
        if training is not None and training.best_layer not in {None, *layers}:
            why = f"{source.file or 'body'}: the best layer of 'training' is no layer of the probe"
            raise Refusal("INVALID_PROBE", why, key="training")
        return await self.add(new.name, read, source, msgspec.to_builtins(training))


def record(row: ProbeRow) -> ProbeRecord:
    """The record of a probe, as it is answered."""
    return ProbeRecord(**_fields(row))


def weights(row: ProbeRow, probe: Probe) -> ProbeWeights:
    """The record of a probe with its weights."""
    directions = [
        StoredDirection(
            one.layer, one.site, "float32", [one.width], base64.b64encode(one.data).decode()
        )
        for one in probe.directions
    ]
    return ProbeWeights(**_fields(row), weights=directions)


def _fields(row: ProbeRow) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in ProbeRecord.__struct_fields__}
    values["source"] = msgspec.convert(row.source, VectorSource)
    return values | {"training": msgspec.convert(row.training, Training | None)}
