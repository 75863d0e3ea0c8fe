"""Stored probes: reading files into them, their records, and finding them for requests."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from steerserve.control.steering.directions import Directions, Reading
from steerserve.control.steering.hub_files import HubFile, fetched
from steerserve.control.steering.reading import DocumentReader
from steerserve.control.steering.vector_views import (
    ProbeRecord,
    ProbeWeights,
    StoredDirection,
    Training,
    VectorSource,
)
from steerserve.database.probes import ProbeRow, ProbeStore
from steerserve.errors import Refusal
from steerserve.files import probes as files
from steerserve.files.vectors import VectorFile
from steerserve.hub.client import Hub
from steerserve.rules.steering.probe import ID_PREFIX, Probe, ReadProbe

__all__ = ["ProbeRow", "Probes", "record", "weights"]


class Probes(Directions[ProbeRow, Probe, ReadProbe]):
    """All probes."""

    def __init__(self, store: ProbeStore, reader: DocumentReader, hub: Hub) -> None:
        reading = Reading(_load, _fetched, files.read, files.inline)
        super().__init__(store, store.probe, ID_PREFIX, reading, reader, hub)
        self._probe_store = store

    async def add(
        self,
        name: str,
        read: ReadProbe,
        source: VectorSource,
        training: dict[str, object] | None = None,
    ) -> ProbeRow:
        return await self._probe_store.add(name, read, structs.asdict(source), training)

    def _training(self, read: ReadProbe, source: VectorSource) -> dict[str, object] | None:
        try:
            training = msgspec.convert(read.training, Training | None)
        except msgspec.ValidationError as error:
            why = f"{source.file or 'body'}: 'training' {error}"
            raise Refusal("INVALID_PROBE", why, key="training") from None
        layers = {one.layer for one in read.directions}
        if training is not None and training.best_layer not in {None, *layers}:
            why = f"{source.file or 'body'}: the best layer of 'training' is no layer of the probe"
            raise Refusal("INVALID_PROBE", why, key="training")
        told: dict[str, object] | None = msgspec.to_builtins(training)
        return told


def _load(local_path: str) -> tuple[Path, VectorFile]:
    with files.refused_as_probes():
        return files.load(local_path)


async def _fetched(hub: Hub, wanted: HubFile) -> tuple[VectorFile, dict[str, str]]:
    with files.refused_as_probes():
        never = files.adapter_name(wanted.path.rpartition("/")[2])
        return await fetched(hub, wanted, files.metadata_name, never)


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
