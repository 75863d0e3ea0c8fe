"""Stored probes."""

from __future__ import annotations

from msgspec import structs

from steerserve.control.steering.directions import Directions
from steerserve.control.steering.vector_views import ProbeWeights, StoredDirection
from steerserve.files.directions import exports
from steerserve.files.directions.probes import PROBES
from steerserve.rules.steering.probe import Probe, ReadProbe
from steerserve.rules.steering.records import ProbeRecord


class Probes(Directions[ProbeRecord, Probe, ReadProbe]):
    """All probes."""

    formats = PROBES


def weights(row: ProbeRecord, probe: Probe) -> ProbeWeights:
    """The record of a probe with its weights."""
    directions = [StoredDirection(**exports.stored(one)) for one in probe.directions]
    return ProbeWeights(**structs.asdict(row), weights=directions)
