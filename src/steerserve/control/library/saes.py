"""The registered SAEs: listing, registering from this machine, deleting."""

from __future__ import annotations

import asyncio

from sqlalchemy.exc import IntegrityError

from steerserve.control.library.sae_downloads import SaeDownloads
from steerserve.control.library.sae_reading import SaeReader
from steerserve.control.library.sae_records import claimed, sae_id_of
from steerserve.control.residency.conductor import Conductor
from steerserve.engine.wire import messages as m
from steerserve.errors import Refusal
from steerserve.files import local
from steerserve.store.catalog import Catalog, SaeRow
from steerserve.store.labels import Labels

__all__ = ["SaeRow", "Saes"]


class Saes:
    """Brings SAEs of this machine into the catalog, and takes SAEs out."""

    def __init__(
        self,
        catalog: Catalog,
        conductor: Conductor,
        reader: SaeReader,
        labels: Labels,
        downloads: SaeDownloads,
    ) -> None:
        self._catalog = catalog
        self._conductor = conductor
        self._reader = reader
        self._labels = labels
        self._downloads = downloads
        self._registering = asyncio.Lock()

    async def list(self) -> list[SaeRow]:
        return await self._catalog.saes()

    async def get(self, sae_id: str) -> SaeRow:
        """Raises:
        Refusal: SAE_NOT_FOUND.
        """
        return await self._catalog.sae(sae_id)

    async def add(self, local_path: str) -> tuple[SaeRow, bool]:
        """Register a folder or file as an SAE, in place; the record, and whether it was there before.

        An SAE whose files do not say all that is needed is registered too: the missing facts are given when it is
        attached.

        Raises:
            Refusal: INVALID_LOCAL_PATH, SAE_LOAD_FAILED, SAE_INCOMPATIBLE (an SAE that can never be attached).
        """
        place = await asyncio.to_thread(local.resolve_either, local_path)
        async with self._registering:
            for row in await self._catalog.saes():
                if row.local_path == str(place):
                    return row, True
            claims = await self._reader.read(m.SaeSource(str(place), str(place)))
            try:
                row = await self._catalog.add_sae(
                    id=sae_id_of(str(place)),
                    local_path=str(place),
                    name=place.name[:255],
                    status="cached",
                    **claimed(claims),
                )
            except IntegrityError as error:
                raise Refusal("SAE_LOAD_FAILED", "another SAE has this path") from error
            return row, False

    async def remove(self, sae_id: str) -> tuple[SaeRow, int]:
        """Forget an SAE; its record, and the bytes that its files gave back. Its download is cancelled, and its files are
        removed if they came from the hub and no other SAE uses them; the files of a local source never are. The record
        of a repository goes with the records of all its SAEs: all of them or none.

        Raises:
            Refusal: SAE_NOT_FOUND, SAE_ALREADY_ATTACHED.
        """
        # while the lock is held, nothing is attached or detached; an attach under way has ended before
        async with self._conductor.editing:
            for row in await self._downloads.with_units(sae_id):
                self._check_detached(row.id)
            async with self._downloads.stopped(sae_id) as rows:
                await self._catalog.remove_saes(*(row.id for row in rows))
                for row in rows:
                    await self._labels.forget(row.id)
                return rows[0], await self._downloads.remove_files(rows)

    def _check_detached(self, sae_id: str) -> None:
        """Raises:
        Refusal: SAE_ALREADY_ATTACHED.
        """
        if any(attached.sae_id == sae_id for attached in self._conductor.attachments()):
            raise Refusal(
                "SAE_ALREADY_ATTACHED", "the SAE is attached; detach it first", sae_id=sae_id
            )
