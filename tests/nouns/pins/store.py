"""The table of pins."""

from __future__ import annotations

from sqlalchemy import Column, Integer, MetaData, String, Table, delete, insert, select

from steerserve.database.db import Database

from .form import Pin

pins = Table(
    "pins",
    MetaData(),
    Column("sae_id", String(50), primary_key=True),
    Column("index", Integer, primary_key=True, autoincrement=False),
    Column("note", String(200), nullable=False),
)


class PinStore:
    """Reads and writes pins."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> list[Pin]:
        async with self._database.read() as connection:
            rows = await connection.execute(select(pins).order_by(pins.c.sae_id, pins.c.index))
        return [Pin(**row) for row in rows.mappings()]

    async def put(self, pin: Pin) -> None:
        same = (pins.c.sae_id == pin.sae_id) & (pins.c.index == pin.index)
        async with self._database.write() as connection:
            await connection.execute(delete(pins).where(same))
            await connection.execute(
                insert(pins).values(sae_id=pin.sae_id, index=pin.index, note=pin.note)
            )
