"""Suggested labels of features: the newest of each feature."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime

from sqlalchemy import insert, select, update

from steerserve.database.catalog import Clock, utc_now
from steerserve.database.db import Database
from steerserve.database.room import UNBOUNDED, DocumentRoom
from steerserve.database.tables import label_suggestions
from steerserve.nouns.labels.store import check_record


@dataclass(frozen=True, slots=True)
class SuggestionRow:
    """A suggestion. `accepted` is the label that was made of this or of an earlier suggestion of the feature."""

    feature_idx: int
    label: str
    model: str
    score: float | None
    prompt_version: int
    created_at: datetime
    accepted: str | None


class SuggestionStore:
    """Reads and writes suggestions. They are deleted with their SAE."""

    def __init__(
        self, database: Database, room: DocumentRoom = UNBOUNDED, now: Clock = utc_now
    ) -> None:
        self._database = database
        self._room = room
        self._now = now

    async def all(self, sae_id: str, features: Sequence[int] | None = None) -> list[SuggestionRow]:
        """The suggestions for an SAE, or for some of its features, by feature."""
        at = label_suggestions.c
        wanted = select(label_suggestions).where(at.sae_id == sae_id).order_by(at.feature_idx)
        if features is not None:
            wanted = wanted.where(at.feature_idx.in_(features))
        async with self._database.read() as connection:
            rows = (await connection.execute(wanted)).mappings().all()
        return [
            SuggestionRow(**{f.name: row[f.name] for f in fields(SuggestionRow)}) for row in rows
        ]

    async def put(
        self, sae_id: str, index: int, label: str, model: str, score: float | None, version: int
    ) -> datetime:
        """Write the suggestion for a feature, in place of an earlier one, and return its time.

        Raises:
            Refusal: INSUFFICIENT_DISK, SAE_NOT_FOUND, DATABASE_UNAVAILABLE.
        """
        await self._room.check_disk(len(label))
        at, now = label_suggestions.c, self._now()
        values = {
            "label": label,
            "model": model,
            "score": score,
            "prompt_version": version,
            "created_at": now,
        }
        async with self._database.write() as connection:
            is_its = (at.sae_id == sae_id, at.feature_idx == index)
            changed = await connection.execute(
                update(label_suggestions).where(*is_its).values(**values)
            )
            if not changed.rowcount:
                new = {"sae_id": sae_id, "feature_idx": index, **values}
                await connection.execute(insert(label_suggestions).values(**new))
            await check_record(connection, sae_id)
        return now

    async def accept(self, sae_id: str, labels: Iterable[tuple[int, str]]) -> None:
        """Note which labels were made of suggestions."""
        at = label_suggestions.c
        async with self._database.write() as connection:
            for index, label in labels:
                await connection.execute(
                    update(label_suggestions)
                    .where(at.sae_id == sae_id, at.feature_idx == index)
                    .values(accepted=label)
                )
