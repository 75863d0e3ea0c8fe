"""Stored probes, and their records as they are answered."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from steerserve.control.steering.directions import Directions
from steerserve.control.steering.vector_views import (
    ProbeRecord,
    ProbeWeights,
    StoredDirection,
    Training,
)
from steerserve.database.probes import ProbeRow, ProbeStore
from steerserve.rules.steering.probe import ID_PREFIX, Probe


class Probes(Directions[ProbeRow, Probe]):
    """All probes. A training adds one to the store."""

    def __init__(self, store: ProbeStore) -> None:
        super().__init__(store, store.probe, ID_PREFIX)
        self.store = store


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
