"""Writes the statuses of the resident model and its SAEs to the database.

A change in memory stands even if the database cannot be written. The record follows as soon as it can be written again,
or at the next start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import structlog

from steerserve.control.residency.occupant import Occupant
from steerserve.database.catalog import Catalog
from steerserve.errors import Refusal
from steerserve.logs import background
from steerserve.rules.models.status import AFTER, Event

log = structlog.get_logger(__name__)
Row = TypeVar("Row")

RETRY_SECONDS = 1.0
"""Seconds between two attempts to write what the database has not taken."""


@dataclass(frozen=True, slots=True)
class Owed:
    """Values that the database has not taken yet. `change` writes them."""

    change: Callable[..., Awaitable[object]]
    values: dict[str, object]


class Records:
    """Writes to the rows of models and SAEs. What the database does not take is logged, and written with the next write
    of the same row, or by itself once the database takes writes again."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._owed: dict[int | str, Owed] = {}
        self._writing = asyncio.Lock()
        self._retrying: asyncio.Task[None] | None = None

    async def model(self, occupant: Occupant, event: Event, **values: object) -> None:
        """Write the status that follows the event, and the other columns in `values`."""
        change = partial(self._change_model, occupant)
        await self._write(occupant.row.id, Owed(change, values | {"status": AFTER[event]}))

    async def sae(self, sae_id: str, status: str) -> None:
        change = partial(self._catalog.change_sae, sae_id)
        values: dict[str, object] = {"status": status}
        if status == "attached":
            # what a restart ended is there again
            values |= {"error_message": None}
        await self._write(sae_id, Owed(change, values))

    async def close(self) -> None:
        """Try no more. The next start repairs the statuses that are not written."""
        if self._retrying is not None:
            self._retrying.cancel()
            await asyncio.wait([self._retrying])

    async def _change_model(self, occupant: Occupant, **values: object) -> None:
        occupant.note(await self._catalog.change_model(occupant.row.id, **values))

    async def _write(self, row_id: int | str, new: Owed | None) -> None:
        """Write `new`, and what is owed for the row; `new` is None in a new attempt."""
        async with self._writing:
            late = self._owed.pop(row_id, None)
            owed = new or late
            if owed is None:
                return
            if late is not None:
                owed = replace(owed, values=late.values | owed.values)
            try:
                await owed.change(**owed.values)
            except Exception as error:  # the driver may raise anything; the change in memory stands
                if late is None:
                    log.error("status_not_recorded", record=row_id, reason=reason_of(error))
                if may_pass(error):
                    self._owed[row_id] = owed
            else:
                if late is not None:
                    log.info("status_recorded", record=row_id)
        if self._owed and (self._retrying is None or self._retrying.done()):
            self._retrying = background.start(self._retry())

    async def _retry(self) -> None:
        while self._owed:
            await asyncio.sleep(RETRY_SECONDS)
            for row_id in list(self._owed):
                await self._write(row_id, None)


async def noted(change: Awaitable[Row], **subject: object) -> Row | None:
    """The row after a change of a record; None if the database refuses the change. The failure is logged and not
    raised."""
    try:
        return await change
    except Exception as error:
        # the driver may raise anything; only the status in the database is lost
        log.error("status_not_recorded", reason=reason_of(error), **subject)
        return None


def may_pass(error: Exception) -> bool:
    """Whether the database may take the same write later."""
    if not isinstance(error, Refusal) or error.code != "DATABASE_UNAVAILABLE":
        return False
    return not error.details.get("needs_restart")


def reason_of(error: Exception) -> str:
    return error.code if isinstance(error, Refusal) else type(error).__name__
