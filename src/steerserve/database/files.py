"""Stored files of batches: rows as frozen records, and their contents."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Table, and_, delete, func, insert, or_, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from steerserve.database.catalog import Clock
from steerserve.database.db import Database
from steerserve.database.room import DocumentRoom
from steerserve.database.tables import batch_lines, batches, file_parts, files
from steerserve.errors import Refusal
from steerserve.rules.inference.batches import UNFINISHED
from steerserve.rules.text import UNSTORABLE, shown

PART = 1 << 20
"""The most bytes of a content that one row has."""
UPLOADED = "batch"

Listing = TypeVar("Listing", bound=Any)


@dataclass(frozen=True, slots=True)
class FileRow:
    """One file. `batch_id` is the batch that wrote it, None for an uploaded file; `is_of_failed` says which of its two
    files it is."""

    id: str
    purpose: str
    filename: str
    bytes: int
    created_at: datetime
    expires_at: datetime | None
    batch_id: str | None
    is_of_failed: bool


_READ = [files.c[field.name] for field in fields(FileRow)]


def new_file_id() -> str:
    return "file-" + secrets.token_hex(12)


def listed(
    asked: Listing,
    table: Table,
    after: tuple[datetime, str] | None,
    limit: int,
    *,
    is_ascending: bool,
) -> Listing:
    """The rows of a list after a place in it, ordered by their time, and one more than `limit`."""
    place = tuple_(table.c.created_at, table.c.id)
    if after is not None:
        at, last = after
        newer, same = (
            (table.c.created_at > at, table.c.id > last)
            if is_ascending
            else (table.c.created_at < at, table.c.id < last)
        )
        asked = asked.where(or_(newer, and_(table.c.created_at == at, same)))
    order = [column.asc() if is_ascending else column.desc() for column in place]
    ordered: Listing = asked.order_by(*order).limit(limit + 1)
    return ordered


class FileStore:
    """Reads and writes files. A file that has expired is not found, unless a batch that is not over reads it."""

    def __init__(self, database: Database, room: DocumentRoom, now: Clock) -> None:
        self._database = database
        self._room = room
        self._now = now

    async def add(self, filename: str, content: bytes, expires_at: datetime) -> FileRow:
        """Store an uploaded file.

        Raises:
            Refusal: DOCUMENT_STORE_FULL, INSUFFICIENT_DISK.
        """
        await self._room.check_disk(len(content))
        row = FileRow(
            new_file_id(),
            UPLOADED,
            filename,
            len(content),
            self._now(),
            expires_at,
            None,
            False,
        )
        values = {column.name: getattr(row, column.name) for column in _READ}
        async with self._database.write() as connection:
            await self._room.check_room(connection, 1, len(content))
            await connection.execute(insert(files).values(**values, stored_bytes=len(content)))
            for number, start in enumerate(range(0, len(content), PART)):
                part = content[start : start + PART]
                await connection.execute(
                    insert(file_parts).values(file_id=row.id, number=number, content=part)
                )
        return row

    async def get(self, file_id: str) -> FileRow:
        """Raises:
        Refusal: FILE_NOT_FOUND.
        """
        found = None
        if not UNSTORABLE.search(file_id):
            async with self._database.read() as connection:
                asked = select(*_READ).where(files.c.id == file_id, self._is_there())
                found = (await connection.execute(asked)).mappings().first()
        if found is None:
            raise unknown(file_id)
        return FileRow(**found)

    async def page(
        self, limit: int, after: str | None, purpose: str | None, *, is_ascending: bool
    ) -> tuple[list[FileRow], bool]:
        """Some files after the one with the id `after`, by their times, and whether there are more.

        Raises:
            Refusal: FILE_NOT_FOUND for `after`.
        """
        last = await self.get(after) if after is not None else None
        place = None if last is None else (last.created_at, last.id)
        asked = select(*_READ).where(self._is_there())
        if purpose is not None:
            asked = asked.where(files.c.purpose == purpose)
        asked = listed(asked, files, place, limit, is_ascending=is_ascending)
        async with self._database.read() as connection:
            rows = [FileRow(**row) for row in (await connection.execute(asked)).mappings()]
        return rows[:limit], len(rows) > limit

    async def parts(self, file_id: str) -> AsyncIterator[bytes]:
        """The content of an uploaded file, part by part."""
        number = 0
        while True:
            at = file_parts.c
            asked = select(at.content).where(at.file_id == file_id, at.number == number)
            async with self._database.read() as connection:
                part = await connection.scalar(asked)
            if part is None:
                return
            yield part
            number += 1

    async def remove(self, row: FileRow) -> None:
        """Delete a file, and the answers of a batch that are its content.

        Raises:
            Refusal: FILE_IN_USE; FILE_NOT_FOUND if another call has just removed it.
        """
        reading = select(batches.c.id).where(
            batches.c.input_file_id == row.id, batches.c.status.in_(UNFINISHED)
        )
        async with self._database.write(frees=True) as connection:
            reader = await connection.scalar(reading)
            if reader is not None:
                why = f"batch {reader} is not over yet, and reads this file"
                raise Refusal("FILE_IN_USE", why, batch_id=reader)
            await self._remove(connection, row)

    async def forget(self) -> None:
        """Delete the files that have expired."""
        asked = select(*_READ).where(~self._is_there())
        async with self._database.read() as connection:
            rows = [FileRow(**row) for row in (await connection.execute(asked)).mappings()]
        for row in rows:
            async with self._database.write(frees=True) as connection:
                await self._remove(connection, row)

    # ------------------------------------------------------------- inside

    async def _remove(self, connection: AsyncConnection, row: FileRow) -> None:
        done = await connection.execute(delete(files).where(files.c.id == row.id))
        if not done.rowcount:
            raise unknown(row.id)
        if row.batch_id is None:
            return
        at = batch_lines.c
        its = (at.batch_id == row.batch_id) & (at.is_failed == row.is_of_failed)
        size = select(func.coalesce(func.sum(func.length(at.answer)), 0)).where(its)
        gone = await connection.scalar(size)
        await connection.execute(delete(batch_lines).where(its))
        await connection.execute(
            update(batches)
            .where(batches.c.id == row.batch_id)
            .values(stored_bytes=batches.c.stored_bytes - gone)
        )

    def _is_there(self) -> ColumnElement[bool]:
        in_use = select(batches.c.input_file_id).where(batches.c.status.in_(UNFINISHED))
        lasts = or_(files.c.expires_at.is_(None), files.c.expires_at > self._now())
        return or_(lasts, files.c.id.in_(in_use))


def unknown(file_id: str) -> Refusal:
    return Refusal("FILE_NOT_FOUND", f"no file {shown(file_id)!r}", file_id=shown(file_id))
