"""Stored probes: their records, and finding them for requests."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import msgspec

from steerserve.control.steering.kept import Kept
from steerserve.control.steering.vector_views import (
    ProbeRecord,
    ProbeWeights,
    StoredDirection,
    Training,
)
from steerserve.database.probes import ProbeRow, ProbeStore
from steerserve.rules.steering.probe import ID_PREFIX, Probe
from steerserve.rules.steering.vector import Direction, check_name


class Probes:
    """Owner of the probes that are kept in memory. All probes are records of `ProbeStore`."""

    def __init__(self, store: ProbeStore) -> None:
        self._store = store
        self._kept = Kept[Probe](store.probe)

    async def page(self, limit: int, offset: int = 0) -> tuple[list[ProbeRow], int]:
        """Some of the probes, oldest first, and how many there are."""
        return await self._store.page(limit, offset)

    async def get(self, id_or_name: str) -> tuple[ProbeRow, Probe]:
        """A probe with its record.

        Raises:
            Refusal: PROBE_NOT_FOUND.
        """
        return await self._store.row(id_or_name), await self.find(id_or_name)

    async def find(self, id_or_name: str) -> Probe:
        """The probe that a request names by its id or its name. A probe that was found lately comes from memory.

        Raises:
            Refusal: PROBE_NOT_FOUND, DATABASE_UNAVAILABLE.
        """
        return await self._kept.find(id_or_name)

    async def check_name(self, name: str) -> None:
        """Raises:
        Refusal: VALIDATION_ERROR for the name, PROBE_ALREADY_EXISTS.
        """
        check_name(name, ID_PREFIX)
        await self._store.check_name(name)

    async def add(
        self,
        name: str,
        directions: Sequence[Direction],
        biases: Sequence[float],
        model_hint: str,
        training: dict[str, Any],
    ) -> ProbeRow:
        """Store a probe.

        Raises:
            Refusal: PROBE_ALREADY_EXISTS, DOCUMENT_STORE_FULL, INSUFFICIENT_DISK.
        """
        return await self._store.add(name, directions, biases, model_hint, training)

    async def remove(self, id_or_name: str) -> str:
        """Delete a probe, and return its id.

        Raises:
            Refusal: PROBE_NOT_FOUND.
        """
        row = await self._store.row(id_or_name)
        await self._store.remove(row.id)
        self._kept.remove(row.id)
        return row.id


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
    return values | {"training": msgspec.convert(row.training, Training)}
