"""Stored things that clients name by their id or by their name: the rows of one table, which are never changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Generic, Protocol, TypeVar

from sqlalchemy import ColumnElement, Table, delete, func, insert, select
from sqlalchemy.engine import RowMapping
from sqlalchemy.exc import IntegrityError

from steerserve.database.catalog import Clock, utc_now
from steerserve.database.db import Database
from steerserve.database.room import UNBOUNDED, DocumentRoom
from steerserve.errors import Refusal
from steerserve.rules.text import UNSTORABLE, shown


class Record(Protocol):
    """What the rows of every kind have. They are dataclasses whose fields are columns of the table."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...


Row = TypeVar("Row", bound=Record)


class NamedStore(Generic[Row]):
    """Reads and writes the rows of one table. A row is never changed. `noun` names one of them in refusals."""

    def __init__(
        self,
        database: Database,
        table: Table,
        kind: type[Row],
        noun: str,
        now: Clock = utc_now,
        room: DocumentRoom = UNBOUNDED,
    ) -> None:
        self._database = database
        self._table = table
        self._kind = kind
        self._noun = noun
        self._now = now
        self._room = room
        self._read = [table.c[field.name] for field in fields(kind)]  # type: ignore[arg-type]

    async def page(self, limit: int, offset: int = 0) -> tuple[list[Row], int]:
        """Some of the rows, oldest first, and how many there are."""
        listed = select(*self._read).order_by(self._table.c.created_at, self._table.c.id)
        async with self._database.read() as connection:
            rows = (await connection.execute(listed.limit(limit).offset(offset))).mappings()
            records = [self._record(row) for row in rows]
            total = await connection.scalar(select(func.count()).select_from(self._table))
        return records, int(total or 0)

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

    async def remove(self, row_id: str) -> None:
        """Raises:
        Refusal: the noun's `_NOT_FOUND`, also if another call has just removed the row.
        """
        removed = 0
        if not UNSTORABLE.search(row_id):
            async with self._database.write(frees=True) as connection:
                done = await connection.execute(
                    delete(self._table).where(self._table.c.id == row_id)
                )
                removed = done.rowcount
        if not removed:
            raise self._unknown(row_id)

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
                await self._room.check(connection)
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
        return self._kind(**{column.name: row[column.name] for column in self._read})

    def _unknown(self, id_or_name: str) -> Refusal:
        wanted = shown(id_or_name)
        why = f"no {self._noun} has the id or the name {wanted!r}"
        return Refusal(f"{self._noun.upper()}_NOT_FOUND", why, **{self._noun: wanted})

    def _taken(self, name: str) -> Refusal:
        why = f"a {self._noun} is named {name!r}"
        return Refusal(f"{self._noun.upper()}_ALREADY_EXISTS", why, name=name)
