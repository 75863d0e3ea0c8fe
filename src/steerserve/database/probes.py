"""Stored probes: the rows, as frozen records, and their weights."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from steerserve.database.catalog import Clock, utc_now
from steerserve.database.db import Database
from steerserve.database.directions import DirectionStore, split
from steerserve.database.room import UNBOUNDED, DocumentRoom
from steerserve.database.tables import probes
from steerserve.database.vectors import MODEL_HINT
from steerserve.rules.steering.probe import ID_PREFIX, Probe, ProbeLayer, digest
from steerserve.rules.steering.vector import Direction
from steerserve.rules.text import storable


@dataclass(frozen=True, slots=True)
class ProbeRow:
    """One probe without its weights. `layers` say where it reads, and `training` how it was trained."""

    id: str
    name: str
    content_digest: str
    model_hint: str | None
    width: int
    layers: tuple[ProbeLayer, ...]
    training: dict[str, Any]
    created_at: datetime


def new_probe_id() -> str:
    return ID_PREFIX + secrets.token_hex(6)


class ProbeStore(DirectionStore[ProbeRow]):
    """Reads and writes probes. A probe is never changed."""

    def __init__(
        self,
        database: Database,
        now: Clock = utc_now,
        new_id: Callable[[], str] = new_probe_id,
        room: DocumentRoom = UNBOUNDED,
    ) -> None:
        super().__init__(database, probes, ProbeRow, "probe", now, room)
        self._new_id = new_id

    async def probe(self, id_or_name: str) -> Probe:
        """A probe with its weights.

        Raises:
            Refusal: PROBE_NOT_FOUND.
        """
        row, data = await self._with_data(id_or_name)
        return Probe(
            row.id,
            row.name,
            row.content_digest,
            tuple(split(row.layers, row.width, data)),
            tuple(one.bias for one in row.layers),
            row.training["best_layer"],
        )

    async def add(
        self,
        name: str,
        directions: Sequence[Direction],
        biases: Sequence[float],
        model_hint: str,
        training: dict[str, Any],
    ) -> ProbeRow:
        """Store a probe under a new id.

        Raises:
            Refusal: PROBE_ALREADY_EXISTS, DOCUMENT_STORE_FULL, INSUFFICIENT_DISK.
        """
        row = ProbeRow(
            id=self._new_id(),
            name=name,
            content_digest=digest(directions, biases),
            model_hint=storable(model_hint)[:MODEL_HINT],
            width=directions[0].width,
            layers=tuple(
                ProbeLayer(one.layer, one.site, one.norm, bias)
                for one, bias in zip(directions, biases, strict=True)
            ),
            training=training,
            created_at=self._now(),
        )
        return await self._insert(row, directions)
