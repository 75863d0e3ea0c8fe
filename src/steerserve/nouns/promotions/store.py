"""The promoted tokens of all features of an SAE in a model, by the key of both."""

from __future__ import annotations

from sqlalchemy import Column, Integer, LargeBinary, String, Table, delete, insert, select

from steerserve.database.catalog import Clock, utc_now
from steerserve.database.db import Database
from steerserve.database.room import UNBOUNDED, DocumentRoom
from steerserve.database.tables import UtcDateTime, metadata
from steerserve.rules.sensing.promoting import PromotedTable

promoted_tokens = Table(
    "promoted_tokens",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("top", Integer, nullable=False),
    Column("tokens", LargeBinary, nullable=False),
    Column("effects", LargeBinary, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
)
"""`key` names the content of the SAE and of the model. `tokens` and `effects` are the bytes of a `PromotedTable`."""


KEPT = 16
"""The tables that are kept, those that were written last."""


class PromotedStore:
    """Reads and writes tables. A key names the content of the SAE and of the model, so a table is never out of date."""

    def __init__(
        self, database: Database, room: DocumentRoom = UNBOUNDED, now: Clock = utc_now
    ) -> None:
        self._database = database
        self._room = room
        self._now = now

    async def get(self, key: str) -> PromotedTable | None:
        """Raises:
        Refusal: DATABASE_UNAVAILABLE.
        """
        wanted = select(promoted_tokens).where(promoted_tokens.c.key == key)
        async with self._database.read() as connection:
            row = (await connection.execute(wanted)).first()
        return None if row is None else PromotedTable(row.top, row.tokens, row.effects)

    async def put(self, key: str, table: PromotedTable) -> None:
        """Write a table, in place of the one of the same key, and delete the oldest of too many.

        Raises:
            Refusal: INSUFFICIENT_DISK, DATABASE_UNAVAILABLE.
        """
        await self._room.check_disk(len(table.tokens) + len(table.values))
        at = promoted_tokens.c
        newest = select(at.key).order_by(at.created_at.desc(), at.key).limit(KEPT)
        async with self._database.write() as connection:
            await connection.execute(delete(promoted_tokens).where(at.key == key))
            await connection.execute(
                insert(promoted_tokens).values(
                    key=key,
                    top=table.top,
                    tokens=table.tokens,
                    effects=table.values,
                    created_at=self._now(),
                )
            )
            kept = (await connection.execute(newest)).scalars().all()
            await connection.execute(delete(promoted_tokens).where(at.key.not_in(kept)))
