"""Stored vectors: their records and their directions."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable

from sqlalchemy import select, update

from steerserve.database.catalog import Clock, utc_now
from steerserve.database.db import Database
from steerserve.database.directions import DirectionStore, split
from steerserve.database.room import UNBOUNDED, DocumentRoom
from steerserve.database.tables import vectors
from steerserve.rules.steering.levers import Measured
from steerserve.rules.steering.records import Training, VectorRecord, VectorSource
from steerserve.rules.steering.vector import (
    ID_PREFIX,
    LayerNorm,
    ReadVector,
    Vector,
    content_digest,
)
from steerserve.rules.text import plain

NEVER_ASKED = "no measurement was asked for"
MODEL_HINT = 255
"""The most characters of the name of a model."""


def new_vector_id() -> str:
    return ID_PREFIX + secrets.token_hex(6)


class VectorStore(DirectionStore[VectorRecord]):
    """Reads and writes vectors. The directions of a vector are never changed."""

    def __init__(
        self,
        database: Database,
        now: Clock = utc_now,
        new_id: Callable[[], str] = new_vector_id,
        room: DocumentRoom = UNBOUNDED,
    ) -> None:
        super().__init__(database, vectors, VectorRecord, "vector", now, new_id, room)

    async def vector(self, id_or_name: str) -> Vector:
        """A vector with its directions.

        Raises:
            Refusal: VECTOR_NOT_FOUND.
        """
        return _vector(*await self._with_data(id_or_name))

    async def others(self, vector_id: str, width: int) -> AsyncIterator[Vector]:
        """All other vectors of one width, one after the other."""
        matches = (vectors.c.id != vector_id) & (vectors.c.width == width)
        async with self._database.read() as connection:
            listed = select(vectors.c.id).where(matches).order_by(vectors.c.created_at)
            ids = (await connection.execute(listed)).scalars().all()
        for other in ids:
            async with self._database.read() as connection:
                one = select(*self._read, vectors.c.data).where(vectors.c.id == other)
                row = (await connection.execute(one)).mappings().first()
            if row is not None:
                yield _vector(self._record(row), row["data"])

    async def add(
        self,
        name: str,
        read: ReadVector,
        source: VectorSource,
        training: Training | None = None,
    ) -> VectorRecord:
        """Store a vector under a new id.

        Raises:
            Refusal: VECTOR_ALREADY_EXISTS, DOCUMENT_STORE_FULL, INSUFFICIENT_DISK.
        """
        row = VectorRecord(
            id=self._new_id(),
            name=name,
            content_digest=content_digest(read.directions),
            model_hint=plain(read.model_hint)[:MODEL_HINT] if read.model_hint else None,
            operation=read.operation,
            width=read.directions[0].width,
            layers=tuple(LayerNorm(d.layer, d.site, d.norm) for d in read.directions),
            suggested_value=read.suggested_value,
            source=source,
            layer_convention=read.layer_convention,
            layer_offset=read.layer_offset,
            warnings=list(read.warnings),
            training=training,
            measured=None,
            not_measured=NEVER_ASKED,
            created_at=self._now(),
        )
        return await self._add(row, read.directions)

    async def keep_measurement(self, vector_id: str, measured: Measured | str) -> VectorRecord:
        """Keep what was measured of a vector, or why nothing was. A measurement is not replaced by a reason.

        Raises:
            Refusal: VECTOR_NOT_FOUND; INSUFFICIENT_DISK, DATABASE_UNAVAILABLE.
        """
        is_it = self._is(vector_id)
        if isinstance(measured, str):
            is_it &= vectors.c.measured.is_(None)
            values: dict[str, object] = {"not_measured": measured}
        else:
            values = {"measured": measured, "not_measured": None}
        async with self._writing() as connection:
            await connection.execute(update(vectors).where(is_it).values(**values))
        return await self.row(vector_id)


def _vector(row: VectorRecord, data: bytes) -> Vector:
    directions = tuple(split(row.layers, row.width, data))
    return Vector(
        row.id, row.name, row.content_digest, directions, row.operation, row.default_layers
    )
