"""Writes the statuses of the resident model and its SAEs to the database.

A change in memory stands even if the database cannot be written: statuses are repaired at the next start.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, TypeVar

import structlog

from steerserve.control.residency.occupant import Occupant
from steerserve.errors import Refusal
from steerserve.rules.model_status import AFTER, Event
from steerserve.store.catalog import Catalog

log = structlog.get_logger(__name__)
Row = TypeVar("Row")


class Records:
    """Writes to the rows of models and SAEs; a failure is logged and not raised."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def model(self, occupant: Occupant, event: Event, **values: Any) -> None:
        """Write the status that follows the event, and the other columns in `values`."""
        changed = self._catalog.change_model(occupant.row.id, status=AFTER[event], **values)
        row = await noted(changed, model=occupant.row.name)
        if row is not None:
            occupant.note(row)

    async def sae(self, sae_id: str, status: str) -> None:
        await noted(self._catalog.change_sae(sae_id, status=status), sae=sae_id)


async def noted(change: Awaitable[Row], **subject: object) -> Row | None:
    """The row after a change of a record; None if the database refuses the change. The failure is logged and not
    raised."""
    try:
        return await change
    except Exception as error:
        # the driver may raise anything; only the status in the database is lost
        reason = error.code if isinstance(error, Refusal) else type(error).__name__
        log.error("status_not_recorded", reason=reason, **subject)
        return None
