"""Stored batches, and the lines of them that are answered: rows as frozen records."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta

from sqlalchemy import LargeBinary, and_, delete, func, insert, select, update

from steerserve.database import by_bytes
from steerserve.database.catalog import Clock
from steerserve.database.db import Database
from steerserve.database.files import listed, new_file_id, unknown
from steerserve.database.room import DocumentRoom
from steerserve.database.tables import batch_lines, batches, files
from steerserve.errors import Refusal
from steerserve.rules.bounds import STORED_READ_BYTES
from steerserve.rules.inference.batches import (
    MAY_CANCEL,
    UNFINISHED,
    AttachedSae,
    BatchStatus,
    LineFault,
    seconds,
)
from steerserve.rules.text import UNSTORABLE, shown

AT_ONCE = 500
"""Lines that one statement writes."""


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One batch. `times` has the seconds since 1970 of each change of the status. `attached` has the SAEs that were
    attached when its first line ran; None before that. `is_strict` is the X-Service-Strict header of the request that
    made the batch."""

    id: str
    endpoint: str
    input_file_id: str
    client: str
    status: str
    created_at: datetime
    expires_at: datetime
    times: dict[str, int]
    output_seconds: int | None
    metadata: dict[str, str] | None
    errors: tuple[LineFault, ...] | None = None
    model: str | None = None
    model_id: int | None = None
    is_steered: bool = False
    attached: tuple[AttachedSae, ...] | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None
    is_strict: bool | None = None


@dataclass(frozen=True, slots=True)
class LineAnswer:
    """The answer to a line, as a line of a file of the batch, and the tokens that it counts."""

    number: int
    is_failed: bool
    answer: bytes
    input_tokens: int = 0
    output_tokens: int = 0


_READ = [batches.c[field.name] for field in fields(BatchRow)]


class BatchStore:
    """Reads and writes batches."""

    def __init__(self, database: Database, room: DocumentRoom, now: Clock) -> None:
        self._database = database
        self._room = room
        self._now = now

    async def add(
        self,
        endpoint: str,
        input_file_id: str,
        client: str,
        metadata: dict[str, str] | None,
        output_seconds: int | None,
        window: timedelta,
        most: int,
        is_strict: bool | None = None,
    ) -> BatchRow:
        """A new batch.

        Raises:
            Refusal: TOO_MANY_BATCHES where `most` are not over, FILE_NOT_FOUND, DOCUMENT_STORE_FULL,
                INSUFFICIENT_DISK.
        """
        await self._room.check_disk(0)
        now = self._now()
        row = BatchRow(
            "batch_" + secrets.token_hex(12),
            endpoint,
            input_file_id,
            client,
            BatchStatus.VALIDATING,
            now,
            now + window,
            {},
            output_seconds,
            metadata,
            is_strict=is_strict,
        )
        values = {column.name: getattr(row, column.name) for column in _READ}
        unfinished = select(func.count()).where(batches.c.status.in_(UNFINISHED))
        async with self._database.write() as connection:
            if (await connection.scalar(unfinished) or 0) >= most:
                why = f"{most} batches are not over yet; cancel one, or wait until one has ended"
                raise Refusal("TOO_MANY_BATCHES", why, batches=most)
            asked = select(files.c.id).where(files.c.id == input_file_id)
            if await connection.scalar(asked) is None:
                raise unknown(input_file_id)
            await connection.execute(insert(batches).values(**values))
            await self._room.check_room(connection)
        return row

    async def get(self, batch_id: str) -> BatchRow:
        """Raises:
        Refusal: BATCH_NOT_FOUND.
        """
        found = None
        if not UNSTORABLE.search(batch_id):
            async with self._database.read() as connection:
                asked = select(*_READ).where(batches.c.id == batch_id)
                found = (await connection.execute(asked)).mappings().first()
        if found is None:
            raise Refusal("BATCH_NOT_FOUND", f"no batch {shown(batch_id)!r}", param="batch_id")
        return BatchRow(**found)

    async def page(self, limit: int, after: str | None) -> tuple[list[BatchRow], bool]:
        """Some batches after the one with the id `after`, the newest first, and whether there are more.

        Raises:
            Refusal: BATCH_NOT_FOUND for `after`.
        """
        last = await self.get(after) if after is not None else None
        place = None if last is None else (last.created_at, last.id)
        asked = listed(select(*_READ), batches, place, limit, is_ascending=False)
        async with self._database.read() as connection:
            rows = [BatchRow(**row) for row in (await connection.execute(asked)).mappings()]
        return rows[:limit], len(rows) > limit

    async def unfinished(self) -> list[str]:
        """The ids of the batches that are not over, the oldest first."""
        asked = select(batches.c.id).where(batches.c.status.in_(UNFINISHED))
        async with self._database.read() as connection:
            rows = await connection.execute(asked.order_by(batches.c.created_at, batches.c.id))
            return list(rows.scalars())

    async def change(self, row: BatchRow, status: BatchStatus, **values: object) -> BatchRow:
        """Change a batch whose status is that of the row, and note the time where the status changes. Returns the batch
        as it is then."""
        times = dict(row.times)
        if status != row.status:
            times[f"{status}_at"] = seconds(self._now())
        async with self._database.write() as connection:
            await connection.execute(
                update(batches)
                .where(batches.c.id == row.id, batches.c.status == row.status)
                .values(status=status, times=times, **values)
            )
        return await self.get(row.id)

    async def cancelling(self, row: BatchRow) -> BatchRow:
        """Say that a batch is being cancelled. A batch that is over stays as it is."""
        times = {**row.times, "cancelling_at": seconds(self._now())}
        async with self._database.write(frees=True) as connection:
            await connection.execute(
                update(batches)
                .where(batches.c.id == row.id, batches.c.status.in_(MAY_CANCEL))
                .values(status=BatchStatus.CANCELLING, times=times)
            )
        return await self.get(row.id)

    async def answered(self, batch_id: str) -> set[int]:
        """The numbers of the lines that are answered."""
        asked = select(batch_lines.c.number).where(batch_lines.c.batch_id == batch_id)
        async with self._database.read() as connection:
            return set((await connection.execute(asked)).scalars())

    async def keep(self, batch_id: str, lines: Sequence[LineAnswer]) -> None:
        """Store answers. A line that is answered already keeps its answer.

        Raises:
            Refusal: DOCUMENT_STORE_FULL, INSUFFICIENT_DISK.
        """
        await self._room.check_disk(sum(len(line.answer) for line in lines))
        at, counted = batch_lines.c, batches.c
        numbers = [line.number for line in lines]
        there = select(at.number).where(at.batch_id == batch_id, at.number.in_(numbers))
        async with self._database.write() as connection:
            known = set((await connection.execute(there)).scalars())
            new = [line for line in lines if line.number not in known]
            if not new:
                return
            failed = sum(line.is_failed for line in new)
            await connection.execute(
                insert(batch_lines),
                [
                    {
                        "batch_id": batch_id,
                        "number": line.number,
                        "is_failed": line.is_failed,
                        "answer": line.answer,
                    }
                    for line in new
                ],
            )
            await connection.execute(
                update(batches)
                .where(counted.id == batch_id)
                .values(
                    completed=counted.completed + len(new) - failed,
                    failed=counted.failed + failed,
                    input_tokens=counted.input_tokens + sum(line.input_tokens for line in new),
                    output_tokens=counted.output_tokens + sum(line.output_tokens for line in new),
                    stored_bytes=counted.stored_bytes + sum(len(line.answer) for line in new),
                )
            )
            await self._room.check_room(connection)

    async def end(
        self, row: BatchRow, status: BatchStatus, keep: timedelta, **values: object
    ) -> None:
        """End a batch whose status is that of the row: write its files, for the time that it names or else for `keep`,
        and its status. A file without lines is not written."""
        now = self._now()
        lasts = keep if row.output_seconds is None else timedelta(seconds=row.output_seconds)
        at = batch_lines.c
        sizes = select(func.count(), func.sum(func.length(at.answer) + 1)).where(
            at.batch_id == row.id
        )
        times = {**row.times, "finalizing_at": seconds(now), f"{status}_at": seconds(now)}
        if status == BatchStatus.CANCELLED:
            del times["finalizing_at"]
        named: dict[str, str] = {}
        async with self._database.write() as connection:
            present = select(batches.c.status).where(batches.c.id == row.id)
            if await connection.scalar(present) != row.status:
                return
            for name, is_failed in (("output", False), ("error", True)):
                asked = sizes.where(at.is_failed == is_failed)
                count, size = (await connection.execute(asked)).one()
                if not count:
                    continue
                named[f"{name}_file_id"] = file_id = new_file_id()
                await connection.execute(
                    insert(files).values(
                        id=file_id,
                        purpose="batch_output",
                        filename=f"{row.id}_{name}.jsonl",
                        bytes=size,
                        created_at=now,
                        expires_at=now + lasts,
                        batch_id=row.id,
                        is_of_failed=is_failed,
                        stored_bytes=0,
                    )
                )
            await connection.execute(
                update(batches)
                .where(batches.c.id == row.id)
                .values(status=status, times=times, **named, **values)
            )

    async def lines(self, batch_id: str, *, are_failed: bool) -> AsyncIterator[bytes]:
        """The answers that succeeded, or those that failed, in the order of the input, as parts of a file.

        Raises:
            Refusal: FILE_NOT_FOUND where the answers are deleted meanwhile.
        """
        at, last = batch_lines.c, -1
        its = and_(at.batch_id == batch_id, at.is_failed == are_failed)
        sized = select(at.number, func.length(at.answer)).where(its).order_by(at.number)
        while True:
            async with self._database.read() as connection:
                page = sized.where(at.number > last).limit(by_bytes.SIZES_AT_ONCE)
                sizes = [(number, size) for number, size in await connection.execute(page)]
            if not sizes:
                return
            last = sizes[-1][0]
            for portion in by_bytes.portions(sizes):
                if portion.size > STORED_READ_BYTES:
                    async for part in self._pieces(batch_id, portion):
                        yield part
                    continue
                some = select(at.answer).where(its, at.number.between(*portion[:2]))
                async with self._database.read() as connection:
                    answers = (await connection.scalars(some.order_by(at.number))).all()
                yield b"".join(answer + b"\n" for answer in answers)

    async def _pieces(self, batch_id: str, line: by_bytes.Portion) -> AsyncIterator[bytes]:
        """One long answer."""
        at = batch_lines.c
        for start in range(1, line.size + 1, STORED_READ_BYTES):
            piece = func.substr(at.answer, start, STORED_READ_BYTES, type_=LargeBinary)
            asked = select(piece).where(at.batch_id == batch_id, at.number == line.first)
            async with self._database.read() as connection:
                found = await connection.scalar(asked)
            if found is None:
                raise unknown(batch_id)
            yield found
        yield b"\n"

    async def forget(self, before: datetime) -> None:
        """Delete the batches that were made before a time and are over, with their files."""
        is_over = batches.c.status.not_in(UNFINISHED)
        async with self._database.write(frees=True) as connection:
            await connection.execute(delete(batches).where(batches.c.created_at < before, is_over))
