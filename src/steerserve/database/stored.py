"""The rows of one table of stored documents: how they are listed, found, written and deleted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec
from sqlalchemy import Column, ColumnElement, Select, Table, delete, func, insert, select, update
from sqlalchemy.engine import RowMapping
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from steerserve.database.catalog import Clock
from steerserve.database.db import Database
from steerserve.database.room import DocumentRoom
from steerserve.errors import Refusal
from steerserve.rules.text import UNSTORABLE, shown

_AT_ONCE = 10
"""Rows that are read at once, each with up to a thousand values. Between two such chunks the event loop can do other
work."""


class Record(Protocol):
    """What the rows of every kind have. They are dataclasses or structs whose fields are columns of the table."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...


Row = TypeVar("Row", bound=Record)
Kind = TypeVar("Kind")


class NameTaken(Refusal):
    """Another row has the name."""


class StoredRows(Generic[Row]):
    """Reads and writes the rows of one table. Two names are equal only if every character is equal. `kind` is a row as
    it is read, and `noun` names one in refusals."""

    def __init__(
        self,
        database: Database,
        table: Table,
        kind: type[Row],
        noun: str,
        now: Clock,
        new_id: Callable[[], str],
        room: DocumentRoom,
    ) -> None:
        self._database = database
        self._table = table
        self._kind = kind
        self._noun = noun
        self._now = now
        self._new_id = new_id
        self._room = room
        self._read = self._columns(kind)

    async def first_free(
        self, names: Sequence[str], add: Callable[[str], Awaitable[Row]], told: str
    ) -> Row:
        """The row that `add` saves under the first of the names that no row has.

        Raises:
            NameTaken: rows have all of the names. The refusal tells the name `told`.
        """
        wanted = select(self._table.c.name).where(self._table.c.name.in_(names))
        async with self._database.read() as connection:
            taken = set((await connection.execute(wanted)).scalars())
        for name in [name for name in names if name not in taken]:
            try:
                return await add(name)
            except NameTaken:
                continue  # another call has just taken the name
        raise self._taken(told)

    async def document(self, row_id: str) -> str | None:
        """The JSON text of the document that a row was imported from, as it came; None where it was not imported.

        Raises:
            Refusal: the noun's `_NOT_FOUND`.
        """
        row = None
        if not UNSTORABLE.search(row_id):
            wanted = select(self._table.c.document).where(self._is(row_id))
            async with self._database.read() as connection:
                row = (await connection.execute(wanted)).first()
        if row is None:
            raise self._unknown(row_id)
        return cast("str | None", row.document)

    # ------------------------------------------------------------- reading

    async def row(self, row_id: str) -> Row:
        """Raises:
        Refusal: the noun's `_NOT_FOUND`.
        """
        row = await self._find(self._is(row_id), row_id)
        if row is None:
            raise self._unknown(row_id)
        return row

    async def _find(self, is_it: ColumnElement[bool], wanted: str) -> Row | None:
        """The row that a client names by the text `wanted`."""
        if UNSTORABLE.search(wanted):
            return None
        async with self._database.read() as connection:
            return await self._found(connection, is_it)

    async def _all(
        self, kind: type[Kind], *where: ColumnElement[bool], is_newest_first: bool = False
    ) -> list[Kind]:
        """All rows that match."""
        wanted = self._select(kind, *where, is_newest_first=is_newest_first)
        async with self._database.read() as connection:
            return await self._listed(connection, kind, wanted)

    async def _page(
        self,
        kind: type[Kind],
        limit: int,
        offset: int,
        *where: ColumnElement[bool],
        is_newest_first: bool = False,
    ) -> tuple[list[Kind], int]:
        """Some of the rows that match, and how many match in all."""
        listed = self._select(kind, *where, is_newest_first=is_newest_first)
        counted = select(func.count()).select_from(self._table).where(*where)
        async with self._database.read() as connection:
            rows = await self._listed(connection, kind, listed.limit(limit).offset(offset))
            return rows, int(await connection.scalar(counted) or 0)

    def _select(
        self, kind: type[Any], *where: ColumnElement[bool], is_newest_first: bool = False
    ) -> Select[Any]:
        """The columns of a kind of row, the oldest row first or the newest."""
        at = self._table.c
        created = at.created_at.desc() if is_newest_first else at.created_at
        return select(*self._columns(kind)).where(*where).order_by(created, at.id)

    async def _listed(
        self, connection: AsyncConnection, kind: type[Kind], wanted: Select[Any]
    ) -> list[Kind]:
        records: list[Kind] = []
        rows = (await connection.execute(wanted)).mappings()
        while chunk := rows.fetchmany(_AT_ONCE):
            records += [self._made(kind, row) for row in chunk]
            await asyncio.sleep(0)
        return records

    async def _found(self, connection: AsyncConnection, is_it: ColumnElement[bool]) -> Row | None:
        row = (await connection.execute(select(*self._read).where(is_it))).mappings().first()
        return None if row is None else self._made(self._kind, row)

    def _columns(self, kind: type[Any]) -> list[Column[Any]]:
        return [self._table.c[name] for name in _fields(kind)]

    def _made(self, kind: type[Kind], row: RowMapping) -> Kind:
        return kind(**{name: row[name] for name in _fields(kind)})

    def _is(self, row_id: str) -> ColumnElement[bool]:
        return self._table.c.id == row_id

    # ------------------------------------------------------------- writing

    async def _save(self, values: Mapping[str, Any], own_id: str | None) -> Row:
        """Save a row under a new id, or under its own.

        Raises:
            NameTaken: another row has exactly this name.
            Refusal: DOCUMENT_STORE_FULL, INSUFFICIENT_DISK.
        """
        await self._room.check_disk(len(values.get("document") or ""))
        row_id, now = own_id or self._new_id(), self._now()
        new = {**values, "id": row_id, "created_at": now, "updated_at": now}
        try:
            async with self._writing() as connection:
                await connection.execute(insert(self._table).values(**new))
                row = await self._counted(connection, row_id)
        except IntegrityError as error:
            raise self._taken(values["name"]) from error
        assert row is not None
        return row

    async def _change(
        self, row_id: str, changes: Mapping[str, Any], *, counts: bool = False
    ) -> Row:
        """Replace columns of a row, and with `counts` count its size anew.

        Raises:
            NameTaken: another row has exactly this name.
            Refusal: the noun's `_NOT_FOUND`; DOCUMENT_STORE_FULL.
        """
        row = None
        if not UNSTORABLE.search(row_id):
            new = {**changes, "updated_at": self._now()}
            changed = update(self._table).where(self._is(row_id)).values(**new)
            try:
                async with self._writing() as connection:
                    await connection.execute(changed)
                    if counts:
                        row = await self._counted(connection, row_id)
                    else:
                        row = await self._found(connection, self._is(row_id))
            except IntegrityError as error:
                raise self._taken(changes.get("name")) from error
        if row is None:
            raise self._unknown(row_id)
        return row

    async def remove(self, row_id: str) -> None:
        """Delete a row.

        Raises:
            Refusal: the noun's `_NOT_FOUND`, also if another call has just removed the row.
        """
        removed = 0
        if not UNSTORABLE.search(row_id):
            async with self._writing(frees=True) as connection:
                done = await connection.execute(delete(self._table).where(self._is(row_id)))
                removed = done.rowcount
                await self._removed(connection, row_id)
        if not removed:
            raise self._unknown(row_id)

    async def _removed(self, connection: AsyncConnection, row_id: str) -> None:
        """What else changes in the transaction that deletes a row."""

    @asynccontextmanager
    async def _writing(self, *, frees: bool = False) -> AsyncIterator[AsyncConnection]:
        async with self._database.write(frees=frees) as connection:
            yield connection

    async def _counted(self, connection: AsyncConnection, row_id: str) -> Row | None:
        """The row that was just written, once its size is counted and there is room for it.

        Raises:
            Refusal: DOCUMENT_STORE_FULL.
        """
        counted = update(self._table).where(self._is(row_id)).values(stored_bytes=self._size())
        await connection.execute(counted)
        await self._room.check_room(connection)
        return await self._found(connection, self._is(row_id))

    def _size(self) -> ColumnElement[int]:
        """The bytes of what a row stores."""
        raise NotImplementedError

    # ------------------------------------------------------------- refusals

    def _taken(self, name: object) -> NameTaken:
        why = f"a {self._noun} is named {name!r}"
        return NameTaken(f"{self._noun.upper()}_ALREADY_EXISTS", why, name=name)

    def _unknown(self, row_id: str) -> Refusal:
        unknown, field = shown(row_id), f"{self._noun}_id"
        why = f"no {self._noun} has the id {unknown!r}"
        return Refusal(f"{self._noun.upper()}_NOT_FOUND", why, **{field: unknown})


def _fields(kind: type[Any]) -> tuple[str, ...]:
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    return tuple(field.name for field in fields(kind))
