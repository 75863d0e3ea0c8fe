"""The records of answers: as many as fit into a size, up to an age."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import (
    Column,
    ColumnElement,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
    delete,
    func,
    insert,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from steerserve.database import by_bytes
from steerserve.database.catalog import Clock, utc_now
from steerserve.database.db import Database
from steerserve.database.room import UNBOUNDED, DocumentRoom
from steerserve.database.tables import Encoded, UtcDateTime, metadata
from steerserve.nouns.runs.rules import RunSummary
from steerserve.rules.units import MIB

runs = Table(
    "runs",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("request_id", String(64), nullable=False),
    Column("summary", Encoded(RunSummary), nullable=False),
    Column("run", Text, nullable=False),
    Column("kept_at", UtcDateTime, nullable=False),
    Column("stored_bytes", Integer, nullable=False),
    Column("x_request_id", String(128)),
    UniqueConstraint("request_id", name="uq_runs_request_id"),
    Index("ix_runs_kept_at", "kept_at"),
    Index("ix_runs_x_request_id", "x_request_id"),
    Index("ix_runs_stored_bytes", "stored_bytes"),
    sqlite_autoincrement=True,
)
"""`run` is the whole record as JSON."""


ALSO_MAXIMUM = 1000
"""The most records of one X-Request-Id that are looked at."""
_AT_ONCE = 50
"""Records that are deleted in one statement."""


@dataclass(frozen=True, slots=True)
class NewRun:
    """A record to write: its summary, the whole of it as JSON, and the X-Request-Id of its request."""

    summary: RunSummary
    text: str
    x_request_id: str | None = None


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A record as JSON, and the ids of the other records of its request, the newest first."""

    text: str
    also: tuple[str, ...] = ()


class RunStore:
    """Reads and writes records. The oldest are deleted where there are too many bytes of them.

    Args:
        days: the days for which a record is kept, counted from when it was written here.
        most_mb: the most MiB of the records in all.
    """

    def __init__(
        self,
        database: Database,
        days: float,
        most_mb: int,
        room: DocumentRoom = UNBOUNDED,
        now: Clock = utc_now,
    ) -> None:
        self._database = database
        self._age = timedelta(days=days)
        self._most = most_mb * MIB
        self._room = room
        self._now = now

    async def add(self, new: Sequence[NewRun]) -> int:
        """Write records, and return how many of them were new: one whose id is known is left as it is.

        Raises:
            Refusal: INSUFFICIENT_DISK, DATABASE_UNAVAILABLE.
        """
        await self._room.check_disk(sum(len(one.text) for one in new))
        at, now = runs.c, self._now()
        by_id = {one.summary.request_id: one for one in reversed(new)}
        async with self._database.write() as connection:
            known = set(
                (
                    await connection.execute(
                        select(at.request_id).where(at.request_id.in_(list(by_id)))
                    )
                ).scalars()
            )
            rows = [
                {
                    "request_id": request_id,
                    "summary": one.summary,
                    "run": one.text,
                    "kept_at": now,
                    "stored_bytes": len(one.text.encode()),
                    "x_request_id": one.x_request_id,
                }
                for request_id, one in by_id.items()
                if request_id not in known
            ]
            if rows:
                await connection.execute(insert(runs), rows[::-1])
            await self._prune(connection)
        return len(rows)

    async def newest(self, limit: int) -> tuple[list[RunSummary], int, int]:
        """The newest records first, how many there are, and their bytes.

        Raises:
            Refusal: DATABASE_UNAVAILABLE.
        """
        at = runs.c
        listed = select(at.summary).where(self._is_kept()).order_by(at.number.desc()).limit(limit)
        counted = select(func.count(), func.sum(at.stored_bytes)).where(self._is_kept())
        async with self._database.read() as connection:
            found = list((await connection.execute(listed)).scalars())
            count, size = (await connection.execute(counted)).one()
        return found, int(count), int(size or 0)

    async def get(self, request_id: str) -> FoundRun | None:
        """The record of the answer with this id, or else the newest of a request with this X-Request-Id; None where
        there is none.

        Raises:
            Refusal: DATABASE_UNAVAILABLE.
        """
        at = runs.c
        wanted = select(at.run).where(at.request_id == request_id, self._is_kept())
        listed = select(at.request_id).where(at.x_request_id == request_id, self._is_kept())
        async with self._database.read() as connection:
            found: str | None = await connection.scalar(wanted)
            if found is not None:
                return FoundRun(found)
            rows = await connection.execute(listed.order_by(at.number.desc()).limit(ALSO_MAXIMUM))
            newest, *also = rows.scalars().all() or [None]
            if newest is None:
                return None
            named = select(at.run).where(at.request_id == newest)
            return FoundRun(str(await connection.scalar(named)), tuple(also))

    async def remove(self, request_id: str) -> bool:
        """Delete one record, and return whether there was one.

        Raises:
            Refusal: DATABASE_UNAVAILABLE.
        """
        gone = delete(runs).where(runs.c.request_id == request_id, self._is_kept())
        async with self._database.write(frees=True) as connection:
            return (await connection.execute(gone)).rowcount > 0

    async def all(self) -> AsyncIterator[str]:
        """Every record as JSON, the oldest first.

        Raises:
            Refusal: DATABASE_UNAVAILABLE.
        """
        at, last = runs.c, -1
        sized = select(at.number, at.stored_bytes).where(self._is_kept()).order_by(at.number)
        while True:
            async with self._database.read() as connection:
                page = sized.where(at.number > last).limit(by_bytes.SIZES_AT_ONCE)
                sizes = [(number, size) for number, size in await connection.execute(page)]
            if not sizes:
                return
            last = sizes[-1][0]
            for portion in by_bytes.portions(sizes):
                some = select(at.run).where(at.number.between(*portion[:2]))
                async with self._database.read() as connection:
                    found = (await connection.scalars(some.order_by(at.number))).all()
                for run in found:
                    yield run

    def _is_kept(self) -> ColumnElement[bool]:
        return runs.c.kept_at >= self._now() - self._age

    async def _prune(self, connection: AsyncConnection) -> None:
        at = runs.c
        await connection.execute(delete(runs).where(at.kept_at < self._now() - self._age))
        stored = int(await connection.scalar(select(func.sum(at.stored_bytes))) or 0)
        oldest = select(at.number, at.stored_bytes).order_by(at.number).limit(_AT_ONCE)
        while stored > self._most:
            gone = []
            for number, size in (await connection.execute(oldest)).all():
                if stored > self._most:
                    gone.append(number)
                    stored -= size
            await connection.execute(delete(runs).where(at.number.in_(gone)))
