"""Stored things that clients name by their id or by their name: the rows of one table, which are never changed."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, ClassVar

from sqlalchemy import ColumnElement, Table, insert, select
from sqlalchemy.engine import RowMapping
from sqlalchemy.exc import IntegrityError

from steerserve.database.catalog import Clock, utc_now
from steerserve.database.db import Database
from steerserve.database.room import UNBOUNDED, DocumentRoom
from steerserve.database.stored import Row, StoredRows
from steerserve.errors import Refusal
from steerserve.rules.text import UNSTORABLE, shown


class NamedStore(StoredRows[Row]):
    """Reads and writes the rows of one table. A row is never changed. `record` is a row as it is read, `noun` names one
    in refusals, and all ids begin with `prefix`, with which no name begins."""

    table: ClassVar[Table]
    record: ClassVar[type[Any]]
    noun: ClassVar[str]
    prefix: ClassVar[str]

    def __init__(
        self, database: Database, room: DocumentRoom = UNBOUNDED, now: Clock = utc_now
    ) -> None:
        super().__init__(database, self.table, self.record, self.noun, now, self.new_id, room)

    def new_id(self) -> str:
        return self.prefix + secrets.token_hex(6)

    async def page(self, limit: int, offset: int = 0) -> tuple[list[Row], int]:
        """Some of the rows, oldest first, and how many there are."""
        return await self._page(self._kind, limit, offset)

    async def row(self, id_or_name: str) -> Row:
        """Raises:
        Refusal: the noun's `_NOT_FOUND`.
        """
        return self._record(await self._first(id_or_name, self._read))

    async def check_name(self, name: str) -> None:
        """Raises:
        Refusal: the noun's `_ALREADY_EXISTS`.
        """
        having = select(self._table.c.id).where(self._table.c.name == name)
        async with self._database.read() as connection:
            if await connection.scalar(having) is not None:
                raise self._taken(name)

    # ------------------------------------------------------------- inside

    async def _insert(self, row: Row, size: int, **further: object) -> Row:
        """Write a row, with columns that it has `further`. It counts as `size` bytes of what is stored.

        Raises:
            Refusal: the noun's `_ALREADY_EXISTS`, DOCUMENT_STORE_FULL, INSUFFICIENT_DISK.
        """
        await self._room.check_disk(size)
        values = {column.name: getattr(row, column.name) for column in self._read} | further
        try:
            async with self._database.write() as connection:
                await connection.execute(insert(self._table).values(**values, stored_bytes=size))
                await self._room.check_room(connection)
        except IntegrityError as error:
            raise self._taken(row.name) from error
        return row

    async def _first(self, id_or_name: str, columns: Sequence[ColumnElement[object]]) -> RowMapping:
        row = None
        if not UNSTORABLE.search(id_or_name):
            # no name looks like an id, so that only one row can match
            is_it = (self._table.c.id == id_or_name) | (self._table.c.name == id_or_name)
            async with self._database.read() as connection:
                row = (await connection.execute(select(*columns).where(is_it))).mappings().first()
        if row is None:
            raise self._unknown(id_or_name)
        return row

    def _record(self, row: RowMapping) -> Row:
        return self._made(self._kind, row)

    def _unknown(self, id_or_name: str) -> Refusal:
        wanted = shown(id_or_name)
        why = f"no {self._noun} has the id or the name {wanted!r}"
        return Refusal(f"{self._noun.upper()}_NOT_FOUND", why, **{self._noun: wanted})
