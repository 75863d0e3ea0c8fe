"""The room for stored documents: their number, their size, and what must stay free on the disk of the database."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Table, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from steerserve.errors import Refusal
from steerserve.rules.units import MIB


@dataclass(frozen=True, slots=True)
class DocumentRoom:
    """Refuses documents for which there is no room.

    Attributes:
        folder: the folder of a SQLite file; None for a database on a server, whose disk this service cannot see.
        most: the most rows of the tables in all.
        most_mb: the most MiB of their stored texts and numbers.
        reserve_mb: the MiB that must stay free on the disk.
        tables: the tables, each with a column `stored_bytes`.
        kinds: what their rows are, for refusals.
        setting: the setting that says `most`, for refusals.
    """

    folder: Path | None
    most: int
    most_mb: int
    reserve_mb: int
    tables: Sequence[Table] = ()
    kinds: str = "documents"
    setting: str = "MAX_STORED_DOCUMENTS"

    async def check_disk(self, size: int) -> None:
        """Check that `size` bytes more leave the reserve of the disk free.

        Raises:
            Refusal: INSUFFICIENT_DISK.
        """
        if self.folder is None:
            return
        free = (await asyncio.to_thread(shutil.disk_usage, self.folder)).free
        if free - size < self.reserve_mb * MIB:
            free_mb = free // MIB
            raise Refusal(
                "INSUFFICIENT_DISK",
                f"{free_mb} MiB of the disk are free, and {self.reserve_mb} MiB must stay free",
                needed_mb=-(-size // MIB),
                free_mb=free_mb,
                reserve_mb=self.reserve_mb,
            )

    async def check_room(self, connection: AsyncConnection, more: int = 0, size: int = 0) -> None:
        """Check that the documents that are stored by now, with `more` documents of `size` bytes, are within the
        limits.

        Raises:
            Refusal: DOCUMENT_STORE_FULL.
        """
        for table in self.tables:
            counted = select(func.count(), func.sum(table.c.stored_bytes))
            count, stored = (await connection.execute(counted)).one()
            more, size = more + count, size + int(stored or 0)
        if self.most == 0:
            why = f"this service stores no {self.kinds} ({self.setting} is 0)"
        elif more > self.most:
            why = f"{self.most} {self.kinds} are stored at most; delete some first"
        elif size > self.most_mb * MIB:
            why = (
                f"what is stored of {self.kinds} has at most {self.most_mb} MiB; delete some first"
            )
        else:
            return
        raise Refusal("DOCUMENT_STORE_FULL", why, limit_documents=self.most, limit_mb=self.most_mb)


UNBOUNDED = DocumentRoom(None, 1 << 62, 1 << 42, 0)
"""Room for any number of documents."""
