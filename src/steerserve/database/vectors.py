"""Stored vectors: the rows, as frozen records, and their directions."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, delete, func, insert, select
from sqlalchemy.engine import RowMapping
from sqlalchemy.exc import IntegrityError

from steerserve.database.catalog import Clock, utc_now
from steerserve.database.db import Database
from steerserve.database.room import UNBOUNDED, DocumentRoom
from steerserve.database.tables import vectors
from steerserve.errors import Refusal
from steerserve.rules.steering.vector import (
    ID_PREFIX,
    Direction,
    LayerNorm,
    ReadVector,
    Vector,
    content_digest,
)
from steerserve.rules.text import UNSTORABLE, shown, storable

_HINT = 255
"""The most characters of the name of a model."""


@dataclass(frozen=True, slots=True)
class VectorRow:
    """One vector without its directions. `layers` say where it has directions. `source` says where it came from, and
    `training` how it was trained here; None for a vector that was not."""

    id: str
    name: str
    content_digest: str
    model_hint: str | None
    operation: str
    width: int
    layers: tuple[LayerNorm, ...]
    suggested_value: float | None
    source: dict[str, Any]
    layer_convention: str
    layer_offset: int
    warnings: list[str]
    training: dict[str, Any] | None
    created_at: datetime


_READ = [vectors.c[field.name] for field in fields(VectorRow)]


def new_vector_id() -> str:
    return ID_PREFIX + secrets.token_hex(6)


class VectorStore:
    """Reads and writes vectors. A vector is never changed."""

    def __init__(
        self,
        database: Database,
        now: Clock = utc_now,
        new_id: Callable[[], str] = new_vector_id,
        room: DocumentRoom = UNBOUNDED,
    ) -> None:
        self._database = database
        self._now = now
        self._new_id = new_id
        self._room = room

    async def page(self, limit: int, offset: int = 0) -> tuple[list[VectorRow], int]:
        """Some of the vectors, oldest first, and how many there are."""
        listed = select(*_READ).order_by(vectors.c.created_at, vectors.c.id)
        async with self._database.read() as connection:
            rows = (await connection.execute(listed.limit(limit).offset(offset))).mappings()
            records = [_record(row) for row in rows]
            total = await connection.scalar(select(func.count()).select_from(vectors))
        return records, int(total or 0)

    async def row(self, id_or_name: str) -> VectorRow:
        """Raises:
        Refusal: VECTOR_NOT_FOUND.
        """
        found = await self._first(id_or_name, _READ)
        return _record(found)

    async def vector(self, id_or_name: str) -> Vector:
        """A vector with its directions.

        Raises:
            Refusal: VECTOR_NOT_FOUND.
        """
        found = await self._first(id_or_name, [*_READ, vectors.c.data])
        return _vector(_record(found), found["data"])

    async def others(self, vector_id: str, width: int) -> AsyncIterator[Vector]:
        """All other vectors of one width, one after the other."""
        matches = (vectors.c.id != vector_id) & (vectors.c.width == width)
        async with self._database.read() as connection:
            listed = select(vectors.c.id).where(matches).order_by(vectors.c.created_at)
            ids = (await connection.execute(listed)).scalars().all()
        for other in ids:
            async with self._database.read() as connection:
                one = select(*_READ, vectors.c.data).where(vectors.c.id == other)
                row = (await connection.execute(one)).mappings().first()
            if row is not None:
                yield _vector(_record(row), row["data"])

    async def check_name(self, name: str) -> None:
        """Raises:
        Refusal: VECTOR_ALREADY_EXISTS.
        """
        async with self._database.read() as connection:
            taken = await connection.scalar(select(vectors.c.id).where(vectors.c.name == name))
        if taken is not None:
            raise _taken(name)

    async def add(
        self,
        name: str,
        read: ReadVector,
        source: dict[str, Any],
        training: dict[str, Any] | None = None,
    ) -> VectorRow:
        """Store a vector under a new id.

        Raises:
            Refusal: VECTOR_ALREADY_EXISTS, DOCUMENT_STORE_FULL, INSUFFICIENT_DISK.
        """
        data = b"".join(one.data for one in read.directions)
        await self._room.check_disk(len(data))
        row = VectorRow(
            id=self._new_id(),
            name=name,
            content_digest=content_digest(read.directions),
            model_hint=storable(read.model_hint)[:_HINT] if read.model_hint else None,
            operation=read.operation,
            width=read.directions[0].width,
            layers=tuple(LayerNorm(d.layer, d.site, d.norm) for d in read.directions),
            suggested_value=read.suggested_value,
            source=source,
            layer_convention=read.layer_convention,
            layer_offset=read.layer_offset,
            warnings=list(read.warnings),
            training=training,
            created_at=self._now(),
        )
        values = {field.name: getattr(row, field.name) for field in fields(VectorRow)}
        try:
            async with self._database.write() as connection:
                await connection.execute(
                    insert(vectors).values(**values, data=data, stored_bytes=len(data))
                )
                await self._room.check(connection)
        except IntegrityError as error:
            raise _taken(name) from error
        return row

    async def remove(self, vector_id: str) -> None:
        """Raises:
        Refusal: VECTOR_NOT_FOUND, also if another call has just removed the vector.
        """
        removed = 0
        if not UNSTORABLE.search(vector_id):
            async with self._database.write(frees=True) as connection:
                done = await connection.execute(delete(vectors).where(vectors.c.id == vector_id))
                removed = done.rowcount
        if not removed:
            raise unknown(vector_id)

    async def _first(self, id_or_name: str, columns: list[ColumnElement[Any]] | list[Any]) -> Any:
        row = None
        if not UNSTORABLE.search(id_or_name):
            # no name looks like an id, so that only one row can match
            is_it = (vectors.c.id == id_or_name) | (vectors.c.name == id_or_name)
            async with self._database.read() as connection:
                row = (await connection.execute(select(*columns).where(is_it))).mappings().first()
        if row is None:
            raise unknown(id_or_name)
        return row


def _record(row: RowMapping) -> VectorRow:
    return VectorRow(**{field.name: row[field.name] for field in fields(VectorRow)})


def _vector(row: VectorRow, data: bytes) -> Vector:
    return Vector(row.id, row.name, row.content_digest, tuple(_split(row, data)), row.operation)


def _split(row: VectorRow, data: bytes) -> Iterator[Direction]:
    size = 4 * row.width
    for index, at in enumerate(row.layers):
        yield Direction(at.layer, at.site, data[index * size : (index + 1) * size])


def unknown(id_or_name: str) -> Refusal:
    wanted = shown(id_or_name)
    why = f"no vector has the id or the name {wanted!r}"
    return Refusal("VECTOR_NOT_FOUND", why, vector=wanted)


def _taken(name: str) -> Refusal:
    return Refusal("VECTOR_ALREADY_EXISTS", f"a vector is named {name!r}", name=name)
