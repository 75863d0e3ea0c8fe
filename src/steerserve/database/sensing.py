"""The record of firings: the newest events of each cluster and of each circuit, up to an age."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import structlog
from sqlalchemy import ColumnElement, Table, and_, delete, func, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from steerserve.database.catalog import Clock
from steerserve.database.db import Database
from steerserve.rules.sensing.firings import PRUNE_SECONDS, EdgeFiring, Firing, FiringRow

log = structlog.get_logger(__name__)
LOGGED_AGE = timedelta(days=1)
"""How much older than the limit the oldest of the deleted events may be without a line in the log."""
_IDS = (1 << 63) - 1
"""The largest id that a database holds."""


class FiringStore:
    """The events of one kind, in one table. They are deleted with their cluster or circuit.

    Args:
        most: the most events that one cluster or circuit has.
        days: the most days that an event is kept.
        now: the time of day, which each event is marked with.
        seconds: a clock that nobody sets. While the service runs, events grow old by this clock.
    """

    def __init__(
        self,
        database: Database,
        table: Table,
        most: int,
        days: float,
        now: Clock,
        seconds: Callable[[], float],
    ) -> None:
        self._database = database
        self._table = table
        self._most = most
        self._age = timedelta(days=days)
        self._now = now
        self._seconds = seconds
        self._zero = now() - timedelta(seconds=seconds())
        self._pruned: float | None = None

    async def add(self, subject: str, firings: Sequence[Firing]) -> list[FiringRow]:
        """Write the events of one choice, and delete the events that are too old or too many. Without the cluster or
        circuit, which may have been deleted meanwhile, nothing is written."""
        at, now = self._table.c, self._now()
        rows: list[FiringRow] = []
        try:
            async with self._database.write() as connection:
                for firing in firings:
                    new = {"subject": subject, "created_at": now, "firing": firing}
                    if isinstance(firing, EdgeFiring):
                        new["edge_key"] = firing.edge_key
                    made = await connection.execute(insert(self._table).values(**new))
                    number = made.inserted_primary_key
                    assert number is not None
                    rows.append(FiringRow(int(number[0]), subject, now, firing))
                await self._prune(connection)
                newest = (
                    select(at.id)
                    .where(at.subject == subject)
                    .order_by(at.id.desc())
                    .offset(self._most)
                    .limit(1)
                    .scalar_subquery()
                )
                too_many = and_(at.subject == subject, at.id <= newest)
                await connection.execute(delete(self._table).where(too_many))
        except IntegrityError:
            return []
        return rows[-self._most :]

    async def newest(
        self,
        limit: int,
        *,
        subject: str | None = None,
        edge_key: str | None = None,
        since: datetime | None = None,
    ) -> tuple[list[FiringRow], int]:
        """The newest events first, and how many events there are. `since` limits the list only: its events are
        strictly newer."""
        await self._prune_sometimes()
        scope = self._scope(subject, edge_key)
        wanted = scope if since is None else [*scope, self._table.c.created_at > since]
        listed = select(self._table).where(*wanted).order_by(self._table.c.id.desc()).limit(limit)
        counted = select(func.count()).select_from(self._table).where(*scope)
        async with self._database.read() as connection:
            rows = (await connection.execute(listed)).all()
            total = int(await connection.scalar(counted) or 0)
        return [FiringRow(row.id, row.subject, row.created_at, row.firing) for row in rows], total

    async def get(self, event_id: int) -> FiringRow | None:
        """One event; None where there is none, or where it is too old."""
        if not 0 < event_id <= _IDS:
            return None
        wanted = select(self._table).where(self._table.c.id == event_id, *self._scope())
        async with self._database.read() as connection:
            row = (await connection.execute(wanted)).first()
        return None if row is None else FiringRow(row.id, row.subject, row.created_at, row.firing)

    async def clear(self, subject: str | None = None) -> int:
        """Delete all events, or only the events of one cluster or circuit, and return how many there were."""
        async with self._database.write() as connection:
            counted = select(func.count()).select_from(self._table).where(*self._scope(subject))
            count = int(await connection.scalar(counted) or 0)
            is_its = () if subject is None else (self._table.c.subject == subject,)
            await connection.execute(delete(self._table).where(*is_its))
        return count

    def _scope(
        self, subject: str | None = None, edge_key: str | None = None
    ) -> list[ColumnElement[bool]]:
        at = self._table.c
        scope: list[ColumnElement[bool]] = [at.created_at >= self._oldest()]
        if subject is not None:
            scope.append(at.subject == subject)
        if edge_key is not None:
            scope.append(at.edge_key == edge_key)
        return scope

    async def _prune_sometimes(self) -> None:
        if self._pruned is None or self._seconds() - self._pruned >= PRUNE_SECONDS:
            async with self._database.write() as connection:
                await self._prune(connection)

    def _oldest(self) -> datetime:
        """The time of the oldest events that are kept."""
        return self._zero + timedelta(seconds=self._seconds()) - self._age

    async def _prune(self, connection: AsyncConnection) -> None:
        self._pruned = self._seconds()
        kept_since, created_at = self._oldest(), self._table.c.created_at
        oldest = await connection.scalar(
            select(func.min(created_at)).where(created_at < kept_since)
        )
        if oldest is None:
            return
        deleted = await connection.execute(delete(self._table).where(created_at < kept_since))
        if kept_since - oldest > LOGGED_AGE:
            log.warning(
                "old_events_deleted",
                table=self._table.name,
                events=deleted.rowcount,
                oldest=oldest.isoformat(),
                kept_since=kept_since.isoformat(),
            )
