"""What the database is told about the resident model and its SAEs.

What happened in memory stands even if the database cannot take the note of it: statuses are repaired at the next start.
"""

from __future__ import annotations

from typing import Any

import structlog

from steerserve.control.resident import Resident
from steerserve.rules.model_status import AFTER, Event
from steerserve.store.catalog import Catalog

log = structlog.get_logger(__name__)


class Records:
    """Writes to the rows of models and SAEs; a failure is logged and not raised."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def model(self, resident: Resident, event: Event, **values: Any) -> None:
        """What happened to the model, and what is known of it since."""
        try:
            resident.row = await self._catalog.change_model(
                resident.row.id, status=AFTER[event], **values
            )
        except Exception as error:
            # whatever the driver raises: the note is lost, and nothing else may be
            log.error("status_not_recorded", model=resident.row.name, reason=str(error))

    async def sae(self, sae_id: str, status: str) -> None:
        try:
            await self._catalog.change_sae(sae_id, status=status)
        except Exception as error:
            # whatever the driver raises: the note is lost, and nothing else may be
            log.error("status_not_recorded", sae=sae_id, reason=str(error))
