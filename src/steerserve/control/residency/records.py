"""What the database is told about the resident model and its SAEs.

What happened in memory stands even if the database cannot take the note of it: statuses are repaired at the next start.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, TypeVar

import structlog

from steerserve.control.residency.occupant import Occupant
from steerserve.rules.model_status import AFTER, Event
from steerserve.store.catalog import Catalog

log = structlog.get_logger(__name__)
Row = TypeVar("Row")


class Records:
    """Writes to the rows of models and SAEs; a failure is logged and not raised."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def model(self, occupant: Occupant, event: Event, **values: Any) -> None:
        """What happened to the model, and what is known of it since."""
        changed = self._catalog.change_model(occupant.row.id, status=AFTER[event], **values)
        row = await noted(changed, model=occupant.row.name)
        if row is not None:
            occupant.note(row)

    async def sae(self, sae_id: str, status: str) -> None:
        await noted(self._catalog.change_sae(sae_id, status=status), sae=sae_id)


async def noted(change: Awaitable[Row], **subject: object) -> Row | None:
    """The row that a change of a record makes; None where the database does not take it, which is logged and not raised."""
    try:
        return await change
    except Exception as error:
        # whatever the driver raises: the note is lost, and nothing else may be
        log.error("status_not_recorded", reason=type(error).__name__, **subject)
        return None
