"""The labels of SAE features: one row for each (SAE, feature) with the text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from steerserve.database.catalog import unknown_sae
from steerserve.database.db import Database
from steerserve.database.room import UNBOUNDED, DocumentRoom
from steerserve.database.tables import feature_labels, saes
from steerserve.rules.bounds import LABELLED_SAES_KEPT, LABELS_KEPT

_AT_ONCE = 2000
"""Rows in one statement. Between two statements the event loop can do other work."""


class Labels:
    """Reads and writes labels. The labels of the SAEs that were read last are kept in memory, because every answer with
    features needs them."""

    def __init__(self, database: Database, room: DocumentRoom = UNBOUNDED) -> None:
        self._database = database
        self._room = room
        self._known: dict[str, Mapping[int, str]] = {}
        self._writes = 0
        # held while labels are read, so that requests that come together read them once
        self._reading = asyncio.Lock()

    async def labels_of(self, sae_id: str) -> Mapping[int, str]:
        """Feature index -> label, sorted by index. The caller must not change the mapping."""
        if sae_id in self._known:
            return self._used(sae_id)
        async with self._reading:
            if sae_id in self._known:
                return self._used(sae_id)
            before = None
            # if labels were written while the pages were read, the pages do not fit together and are read again
            while before != self._writes:
                before = self._writes
                labels = await self._read(sae_id)
            self._known[sae_id] = labels
            self._forget_oldest()
            return labels

    async def put(self, sae_id: str, labels: Mapping[int, str], *, replace: bool = False) -> None:
        """Write these labels: all of them or none. They replace the labels of the same features, or with `replace` all
        labels of the SAE.

        Raises:
            Refusal: INSUFFICIENT_DISK; SAE_NOT_FOUND, also if the SAE is removed while the labels are written.
        """
        await self._room.check_disk(sum(map(len, filter(None, labels.values()))))
        is_of_sae = feature_labels.c.sae_id == sae_id
        async with self._writing(sae_id) as connection:
            if replace:
                await connection.execute(delete(feature_labels).where(is_of_sae))
            await _write(connection, sae_id, labels, are_new=replace)

    async def put_over(
        self, sae_id: str, labels: Mapping[int, str], replaceable: Mapping[int, str | None]
    ) -> list[int]:
        """Write those of these labels whose features have none, or that of `replaceable`, and return their features.

        Raises:
            Refusal: as `put`.
        """
        await self._room.check_disk(sum(map(len, labels.values())))
        at = feature_labels.c
        theirs = (at.sae_id == sae_id, at.feature_idx.in_(list(labels)))
        async with self._writing(sae_id) as connection:
            known = select(at.feature_idx, at.label).where(*theirs)
            rows = (await connection.execute(known)).all()
            found = {row.feature_idx: row.label for row in rows}
            free = [i for i in sorted(labels) if i not in found or found[i] == replaceable.get(i)]
            await _write(connection, sae_id, {i: labels[i] for i in free}, are_new=False)
        return free

    async def forget(self, sae_id: str, index: int | None = None) -> int:
        """Delete the label of a feature, or all labels of an SAE, and return how many there were."""
        at = feature_labels.c
        theirs = delete(feature_labels).where(at.sae_id == sae_id)
        async with self._writing(sae_id) as connection:
            deleted = await connection.execute(
                theirs if index is None else theirs.where(at.feature_idx == index)
            )
        return int(deleted.rowcount)

    def drop(self, sae_ids: Iterable[str]) -> None:
        """Forget the kept labels of SAEs whose rows `Catalog.remove_saes` has deleted."""
        self._writes += 1
        for sae_id in sae_ids:
            self._known.pop(sae_id, None)

    def _used(self, sae_id: str) -> Mapping[int, str]:
        """The kept labels of an SAE, which become the newest."""
        self._known[sae_id] = self._known.pop(sae_id)
        return self._known[sae_id]

    def _forget_oldest(self) -> None:
        kept = sum(map(len, self._known.values()))
        for oldest in list(self._known)[:-1]:
            if kept > LABELS_KEPT or len(self._known) > LABELLED_SAES_KEPT:
                kept -= len(self._known.pop(oldest))

    async def _read(self, sae_id: str) -> dict[int, str]:
        at = feature_labels.c
        page = (
            select(at.feature_idx, at.label)
            .where(at.sae_id == sae_id)
            .order_by(at.feature_idx)
            .limit(_AT_ONCE)
        )
        labels: dict[int, str] = {}
        last = -1
        async with self._database.read() as connection:
            while rows := (await connection.execute(page.where(at.feature_idx > last))).all():
                labels.update((index, label) for index, label in rows)
                last = rows[-1][0]
                await asyncio.sleep(0)
        return labels

    @asynccontextmanager
    async def _writing(self, sae_id: str) -> AsyncIterator[AsyncConnection]:
        try:
            async with self._database.write() as connection:
                yield connection
        finally:
            self._writes += 1
            self._known.pop(sae_id, None)


async def _write(
    connection: AsyncConnection, sae_id: str, labels: Mapping[int, str], *, are_new: bool
) -> None:
    """Write labels, and delete earlier labels of the same features first. With `are_new` there are no earlier labels.

    Raises:
        Refusal: SAE_NOT_FOUND.
    """
    at, indices = feature_labels.c, sorted(labels)
    for first in range(0, len(indices), _AT_ONCE):
        chunk = indices[first : first + _AT_ONCE]
        if not are_new:
            await connection.execute(
                delete(feature_labels).where(at.sae_id == sae_id, at.feature_idx.in_(chunk))
            )
        rows = [{"sae_id": sae_id, "feature_idx": i, "label": labels[i]} for i in chunk]
        await connection.execute(insert(feature_labels), rows)
        await asyncio.sleep(0)
    await check_record(connection, sae_id)


async def check_record(connection: AsyncConnection, sae_id: str) -> None:
    """Look up the record of an SAE at the end of a transaction that writes something about the SAE. SQLite begins a
    transaction at its first write, and only from then on does a removal of the SAE wait for this transaction.

    Raises:
        Refusal: SAE_NOT_FOUND.
    """
    its_record = select(saes.c.id).where(saes.c.id == sae_id).with_for_update(read=True)
    if (await connection.execute(its_record)).first() is None:
        raise unknown_sae(sae_id)
