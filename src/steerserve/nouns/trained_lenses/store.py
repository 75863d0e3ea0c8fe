"""Registered trained lenses: the rows, as frozen records."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import BigInteger, Column, Index, Integer, String, Table, UniqueConstraint, select

from steerserve.database.named import NamedStore
from steerserve.database.paths import DataPath
from steerserve.database.tables import Encoded, UtcDateTime, metadata
from steerserve.nouns.lens.rules import ID_PREFIX, LensRecord, LensSource

lenses = Table(
    "lenses",
    metadata,
    Column("id", String(17), primary_key=True),
    Column("name", String(120), nullable=False),
    Column("kind", String(20), nullable=False),
    Column("width", Integer, nullable=False),
    Column("layers", Encoded(tuple[int, ...]), nullable=False),
    Column("model_layers", Integer),
    Column("model_hint", String(255)),
    Column("unembed_hash", String(64)),
    Column("source", Encoded(LensSource), nullable=False),
    Column("path", DataPath, nullable=False),
    Column("file_bytes", BigInteger, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("stored_bytes", Integer, nullable=False),
    UniqueConstraint("name", name="uq_lenses_name"),
    UniqueConstraint("path", name="uq_lenses_path"),
    Index("ix_lenses_listed", "created_at", "id"),
    Index("ix_lenses_stored_bytes", "stored_bytes"),
)
"""Trained lenses. `path` is the folder or the file on this machine."""


class LensRow(LensRecord, frozen=True, kw_only=True):
    """One trained lens. `path` is its folder or its file on this machine."""

    path: str

    @property
    def record(self) -> LensRecord:
        """The lens as it is answered."""
        return msgspec.convert(self, LensRecord, from_attributes=True)


class LensStore(NamedStore[LensRow]):
    """Reads and writes lenses."""

    table, record, noun, prefix = lenses, LensRow, "lens", ID_PREFIX

    async def add(self, **values: Any) -> LensRow:
        """Store a lens under a new id. The values are those of the other fields of `LensRow`.

        Raises:
            Refusal: LENS_ALREADY_EXISTS, DOCUMENT_STORE_FULL, INSUFFICIENT_DISK.
        """
        row = LensRow(id=self.new_id(), created_at=self._now(), **values)
        size = len(msgspec.json.encode(row))
        return await self._insert(row, size)

    async def at(self, path: str) -> LensRow | None:
        """The lens whose files are at a path."""
        async with self._database.read() as connection:
            found = select(*self._read).where(lenses.c.path == path)
            row = (await connection.execute(found)).mappings().first()
        return None if row is None else self._record(row)
