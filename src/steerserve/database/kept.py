"""Keeps the records of a table in memory, exactly as the database has them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from sqlalchemy import Table, select
from sqlalchemy.engine import RowMapping
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from steerserve.database.db import Database
from steerserve.errors import Refusal

if TYPE_CHECKING:
    from _typeshed import SupportsRichComparison

_AT_ONCE = 100
"""Rows that are handled at once. Between two such chunks the event loop can do other work."""
Record = TypeVar("Record")


class KeptRecords(Generic[Record]):
    """The records of one table, as the last write left them in the database. Only this service writes the table.

    While the database has a fault, the records are those of the last write that succeeded.

    Args:
        id_of: gives the id of a record.
        order: gives the value by which the list of all records is sorted.
    """

    def __init__(
        self,
        kind: type[Record],
        table: Table,
        id_of: Callable[[Record], int | str],
        order: Callable[[Record], SupportsRichComparison],
    ) -> None:
        self._kind = kind
        self._table = table
        self._id_of = id_of
        self._order = order
        self._records: dict[int | str, Record] | None = None
        self._listed: tuple[Record, ...] | None = None
        self._is_certain = False
        self._changed: dict[int | str, Record | None] = {}
        # held while the records are read from the database, and from the first statement of a write to its end
        self._lock = asyncio.Lock()

    async def records(self, database: Database) -> dict[int | str, Record]:
        """The records by their ids.

        Raises:
            Refusal: DATABASE_UNAVAILABLE when the records have never been read.
        """
        if not self._is_certain and (self._records is None or database.is_usable):
            try:
                async with self._lock:
                    await self._fill(database)
            except Refusal:
                if self._records is None:
                    raise
        assert self._records is not None
        return self._records

    def kept(self, row_id: int | str) -> Record | None:
        """The record with this id, as it was read or written last."""
        return (self._records or {}).get(row_id)

    async def listed(self, database: Database) -> tuple[Record, ...]:
        """All records in their order. While none is written, each call returns the same tuple.

        Raises:
            Refusal: DATABASE_UNAVAILABLE when the records have never been read.
        """
        records = await self.records(database)
        if self._listed is None:
            self._listed = tuple(sorted(records.values(), key=self._order))
        return self._listed

    @asynccontextmanager
    async def writing(self, database: Database) -> AsyncIterator[AsyncConnection]:
        """A transaction of the database. Its end takes the records that `reread` has read into memory.

        Raises:
            Refusal: DATABASE_UNAVAILABLE.
        """
        async with self._lock:
            await self._fill(database)
            assert self._records is not None
            self._changed = {}
            # a write that is cancelled, or fails by a fault of the database, may have taken effect
            self._is_certain = False
            try:
                async with database.write() as connection:
                    yield connection
            except IntegrityError:
                self._is_certain = True
                raise
            for row_id, record in self._changed.items():
                if record is None:
                    self._records.pop(row_id, None)
                else:
                    self._records[row_id] = record
            self._listed = None
            self._is_certain = True

    async def reread(self, connection: AsyncConnection, row_id: int | str) -> Record | None:
        """The record as the transaction of `connection` has written it; None if there is none."""
        row = await one(connection, self._table, row_id)
        record = None if row is None else _record(self._kind, row)
        self._changed[row_id] = record
        return record

    def drop(self, *row_ids: int | str) -> None:
        """Take note that the transaction has deleted these records."""
        self._changed.update(dict.fromkeys(row_ids))

    async def _fill(self, database: Database) -> None:
        if not self._is_certain:
            records: list[Record] = []
            async with database.read() as connection:
                rows = (await connection.execute(select(self._table))).mappings()
                while chunk := rows.fetchmany(_AT_ONCE):
                    records += [_record(self._kind, row) for row in chunk]
                    await asyncio.sleep(0)
            self._records = {self._id_of(record): record for record in records}
            self._listed = None
            self._is_certain = True


async def one(connection: AsyncConnection, table: Table, row_id: int | str) -> RowMapping | None:
    rows = await connection.execute(select(table).where(table.c.id == row_id))
    row: RowMapping | None = rows.mappings().first()
    return row


def _record(kind: type[Record], row: RowMapping) -> Record:
    return kind(**{field.name: row[field.name] for field in fields(cast(Any, kind))})
