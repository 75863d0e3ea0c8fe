"""Stored vectors and probes: their records, and the numbers of their directions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

from sqlalchemy import (
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    UniqueConstraint,
    select,
    update,
)

from steerserve.database.named import NamedStore
from steerserve.database.stored import Row
from steerserve.database.tables import Encoded, Json, UtcDateTime, metadata
from steerserve.nouns.directions.rules import ProbeRecord, Training, VectorRecord, VectorSource
from steerserve.rules.steering import probe as probe_rules
from steerserve.rules.steering import vector as vector_rules
from steerserve.rules.steering.levers import Measured
from steerserve.rules.steering.probe import Probe, ProbeLayer, ReadProbe
from steerserve.rules.steering.vector import (
    Direction,
    LayerNorm,
    ReadDirections,
    ReadVector,
    StoredDirections,
    Vector,
)
from steerserve.rules.text import plain

vectors = Table(
    "vectors",
    metadata,
    Column("id", String(17), primary_key=True),
    Column("name", String(120), nullable=False),
    Column("content_digest", String(64), nullable=False),
    Column("model_hint", String(255)),
    Column("operation", String(10), nullable=False),
    Column("width", Integer, nullable=False),
    Column("layers", Encoded(tuple[LayerNorm, ...]), nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("suggested_value", Float),
    Column("source", Encoded(VectorSource), nullable=False),
    Column("layer_convention", String(20), nullable=False),
    Column("layer_offset", Integer, nullable=False),
    Column("warnings", Json, nullable=False),
    Column("training", Encoded(Training)),
    Column("measured", Encoded(Measured)),
    Column("not_measured", Text),
    Column("created_at", UtcDateTime, nullable=False),
    Column("stored_bytes", Integer, nullable=False),
    UniqueConstraint("name", name="uq_vectors_name"),
    Index("ix_vectors_listed", "created_at", "id"),
    Index("ix_vectors_stored_bytes", "stored_bytes"),
)
"""`data` has the directions one after the other in the order of `layers`: float32, little-endian, `width` numbers
each."""

probes = Table(
    "probes",
    metadata,
    Column("id", String(18), primary_key=True),
    Column("name", String(120), nullable=False),
    Column("content_digest", String(64), nullable=False),
    Column("model_hint", String(255)),
    Column("width", Integer, nullable=False),
    Column("layers", Encoded(tuple[ProbeLayer, ...]), nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("source", Encoded(VectorSource), nullable=False),
    Column("layer_convention", String(20), nullable=False),
    Column("layer_offset", Integer, nullable=False),
    Column("warnings", Json, nullable=False),
    Column("training", Encoded(Training)),
    Column("created_at", UtcDateTime, nullable=False),
    Column("stored_bytes", Integer, nullable=False),
    UniqueConstraint("name", name="uq_probes_name"),
    Index("ix_probes_listed", "created_at", "id"),
    Index("ix_probes_stored_bytes", "stored_bytes"),
)
"""`data` has the weights of the layers one after the other, as `vectors` has directions."""

NEVER_ASKED = "no measurement was asked for"
MODEL_HINT = 255
"""The most characters of the name of a model."""

Used = TypeVar("Used", bound=StoredDirections)
Read = TypeVar("Read", bound=ReadDirections)


class DirectionStore(NamedStore[Row], Generic[Row, Used, Read]):
    """Reads and writes vectors, or probes. Their numbers are in the column `data`, and are never changed."""

    async def find(self, id_or_name: str) -> Used:
        """A vector, or a probe, with its directions.

        Raises:
            Refusal: VECTOR_NOT_FOUND or PROBE_NOT_FOUND.
        """
        found = await self._first(id_or_name, [*self._read, self._table.c.data])
        return self._used(self._record(found), found["data"])

    async def add(
        self, name: str, read: Read, source: VectorSource, training: Training | None = None
    ) -> Row:
        """Store a vector, or a probe, under a new id.

        Raises:
            Refusal: VECTOR_ALREADY_EXISTS or PROBE_ALREADY_EXISTS, DOCUMENT_STORE_FULL, INSUFFICIENT_DISK.
        """
        row = self._new_row(
            read,
            id=self.new_id(),
            name=name,
            model_hint=plain(read.model_hint)[:MODEL_HINT] if read.model_hint else None,
            width=read.directions[0].width,
            source=source,
            layer_convention=read.layer_convention,
            layer_offset=read.layer_offset,
            warnings=list(read.warnings),
            training=training,
            created_at=self._now(),
        )
        data = b"".join(one.data for one in read.directions)
        return await self._insert(row, len(data), data=data)

    # ------------------------------------------------------------- inside

    def _used(self, row: Row, data: bytes) -> Used:
        """What requests use of a row."""
        raise NotImplementedError

    def _new_row(self, read: Read, **shared: Any) -> Row:
        raise NotImplementedError


class VectorStore(DirectionStore[VectorRecord, Vector, ReadVector]):
    """Reads and writes vectors."""

    table, record, noun, prefix = vectors, VectorRecord, "vector", vector_rules.ID_PREFIX

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
                yield self._used(self._record(row), row["data"])

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

    def _used(self, row: VectorRecord, data: bytes) -> Vector:
        directions = _split(row, data)
        return Vector(
            row.id, row.name, row.content_digest, directions, row.operation, row.default_layers
        )

    def _new_row(self, read: ReadVector, **shared: Any) -> VectorRecord:
        return VectorRecord(
            **shared,
            content_digest=vector_rules.content_digest(read.directions),
            operation=read.operation,
            layers=tuple(LayerNorm(d.layer, d.site, d.norm) for d in read.directions),
            suggested_value=read.suggested_value,
            measured=None,
            not_measured=NEVER_ASKED,
        )


class ProbeStore(DirectionStore[ProbeRecord, Probe, ReadProbe]):
    """Reads and writes probes. A probe is never changed."""

    table, record, noun, prefix = probes, ProbeRecord, "probe", probe_rules.ID_PREFIX

    def _used(self, row: ProbeRecord, data: bytes) -> Probe:
        biases = tuple(one.bias for one in row.layers)
        best = None if row.training is None else row.training.best_layer
        return Probe(row.id, row.name, row.content_digest, _split(row, data), biases, best)

    def _new_row(self, read: ReadProbe, **shared: Any) -> ProbeRecord:
        lines = zip(read.directions, read.biases, strict=True)
        return ProbeRecord(
            **shared,
            content_digest=probe_rules.digest(read.directions, read.biases),
            layers=tuple(ProbeLayer(one.layer, one.site, one.norm, bias) for one, bias in lines),
        )


def _split(row: VectorRecord | ProbeRecord, data: bytes) -> tuple[Direction, ...]:
    """The directions of a row, whose numbers `data` has one after the other."""
    size = 4 * row.width
    return tuple(
        Direction(at.layer, at.site, data[index * size : (index + 1) * size])
        for index, at in enumerate(row.layers)
    )
