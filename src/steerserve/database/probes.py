"""Stored probes: their records and their weights."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from steerserve.database.catalog import Clock, utc_now
from steerserve.database.db import Database
from steerserve.database.directions import DirectionStore, split
from steerserve.database.room import UNBOUNDED, DocumentRoom
from steerserve.database.tables import probes
from steerserve.database.vectors import MODEL_HINT
from steerserve.rules.steering.probe import ID_PREFIX, Probe, ProbeLayer, ReadProbe, digest
from steerserve.rules.steering.records import ProbeRecord, Training, VectorSource
from steerserve.rules.text import plain


def new_probe_id() -> str:
    return ID_PREFIX + secrets.token_hex(6)


class ProbeStore(DirectionStore[ProbeRecord]):
    """Reads and writes probes. A probe is never changed."""

    def __init__(
        self,
        database: Database,
        now: Clock = utc_now,
        new_id: Callable[[], str] = new_probe_id,
        room: DocumentRoom = UNBOUNDED,
    ) -> None:
        super().__init__(database, probes, ProbeRecord, "probe", now, new_id, room)

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
            None if row.training is None else row.training.best_layer,
        )

    async def add(
        self,
        name: str,
        read: ReadProbe,
        source: VectorSource,
        training: Training | None,
    ) -> ProbeRecord:
        """Store a probe under a new id.

        Raises:
            Refusal: PROBE_ALREADY_EXISTS, DOCUMENT_STORE_FULL, INSUFFICIENT_DISK.
        """
        hint = read.model_hint
        row = ProbeRecord(
            id=self._new_id(),
            name=name,
            content_digest=digest(read.directions, read.biases),
            model_hint=None if hint is None else plain(hint)[:MODEL_HINT],
            width=read.directions[0].width,
            layers=tuple(
                ProbeLayer(one.layer, one.site, one.norm, bias)
                for one, bias in zip(read.directions, read.biases, strict=True)
            ),
            source=source,
            layer_convention=read.layer_convention,
            layer_offset=read.layer_offset,
            warnings=read.warnings,
            training=training,
            created_at=self._now(),
        )
        return await self._add(row, read.directions)
