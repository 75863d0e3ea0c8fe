"""Labels of SAE features: rows of (SAE, feature) -> text."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import islice

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from steerserve.store.db import Database
from steerserve.store.tables import feature_labels

_AT_ONCE = 5000
"""Rows in one statement."""
_KEPT = 8
"""SAEs whose labels are kept in memory between writes."""


class Labels:
    """Reads and writes of the labels. Those of the SAEs read last are kept in memory: every answer with features asks."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[str, Mapping[int, str]] = {}
        self._writes = 0

    async def of(self, sae_id: str) -> Mapping[int, str]:
        """Feature -> label, by index. It must not be changed."""
        if sae_id in self._known:
            self._known[sae_id] = self._known.pop(sae_id)
            return self._known[sae_id]
        before = self._writes
        at = feature_labels.c
        async with self._database.read() as connection:
            rows = await connection.execute(
                select(at.feature_idx, at.label).where(at.sae_id == sae_id).order_by(at.feature_idx)
            )
            found = {row.feature_idx: row.label for row in rows}
        if self._writes == before:
            self._known[sae_id] = found
            for oldest in list(islice(self._known, max(0, len(self._known) - _KEPT))):
                del self._known[oldest]
        return found

    async def put(self, sae_id: str, labels: Mapping[int, str], *, replace: bool = False) -> None:
        """Set these labels in the place of those that the features had, or of all that the SAE had. All or nothing."""
        at = feature_labels.c
        indices = list(labels)
        rows = [{"sae_id": sae_id, "feature_idx": i, "label": labels[i]} for i in indices]
        async with self._writing(sae_id) as connection:
            if replace:
                await connection.execute(delete(feature_labels).where(at.sae_id == sae_id))
            for first in range(0, len(rows), _AT_ONCE):
                if not replace:
                    named = at.feature_idx.in_(indices[first : first + _AT_ONCE])
                    await connection.execute(
                        delete(feature_labels).where(at.sae_id == sae_id, named)
                    )
                await connection.execute(insert(feature_labels), rows[first : first + _AT_ONCE])

    async def forget(self, sae_id: str) -> int:
        """Delete all labels of an SAE; how many there were."""
        async with self._writing(sae_id) as connection:
            gone = await connection.execute(
                delete(feature_labels).where(feature_labels.c.sae_id == sae_id)
            )
        return int(gone.rowcount)

    @asynccontextmanager
    async def _writing(self, sae_id: str) -> AsyncIterator[AsyncConnection]:
        try:
            async with self._database.write() as connection:
                yield connection
        finally:
            self._writes += 1
            self._known.pop(sae_id, None)
