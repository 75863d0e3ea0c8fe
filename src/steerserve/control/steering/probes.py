"""Stored probes: reading files into them, their records, and finding them for requests."""

from __future__ import annotations

import base64
from pathlib import Path

from msgspec import structs

from steerserve.control.steering.directions import Directions, Reading
from steerserve.control.steering.hub_files import HubFile, fetched
from steerserve.control.steering.reading import DocumentReader
from steerserve.control.steering.vector_views import (
    ProbeWeights,
    StoredDirection,
)
from steerserve.database.probes import ProbeStore
from steerserve.files import probes as files
from steerserve.files.client_paths import ClientPaths
from steerserve.files.local import PathCheck
from steerserve.files.vectors import VectorFile
from steerserve.hub.client import Hub
from steerserve.rules.steering.probe import ID_PREFIX, Probe, ReadProbe
from steerserve.rules.steering.records import ProbeRecord, Training, VectorSource


class Probes(Directions[ProbeRecord, Probe, ReadProbe]):
    """All probes."""

    UNREADABLE = "INVALID_PROBE"

    def __init__(
        self, store: ProbeStore, reader: DocumentReader, hub: Hub, paths: ClientPaths
    ) -> None:
        reading = Reading(_load, _fetched, files.read, files.inline)
        super().__init__(store, store.probe, ID_PREFIX, reading, reader, hub, paths)
        self._probe_store = store

    async def add(
        self,
        name: str,
        read: ReadProbe,
        source: VectorSource,
        training: Training | None = None,
    ) -> ProbeRecord:
        return await self._probe_store.add(name, read, source, training)


def _load(local_path: str, check: PathCheck) -> tuple[Path, VectorFile]:
    with files.refused_as_probes():
        return files.load(local_path, check)


async def _fetched(hub: Hub, wanted: HubFile) -> tuple[VectorFile, dict[str, str]]:
    with files.refused_as_probes():
        never = files.adapter_name(wanted.path.rpartition("/")[2])
        return await fetched(hub, wanted, files.metadata_name, never)


def weights(row: ProbeRecord, probe: Probe) -> ProbeWeights:
    """The record of a probe with its weights."""
    directions = [
        StoredDirection(
            one.layer, one.site, "float32", [one.width], base64.b64encode(one.data).decode()
        )
        for one in probe.directions
    ]
    return ProbeWeights(**structs.asdict(row), weights=directions)
