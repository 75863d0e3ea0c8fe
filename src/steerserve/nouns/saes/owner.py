"""The registered SAEs: listing, registering from this machine, deleting."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import structlog
from sqlalchemy.exc import IntegrityError

from steerserve import messages as m
from steerserve.control.residency.conductor import Conductor
from steerserve.control.saes.downloads import SaeDownloads
from steerserve.control.saes.reading import SaeReader
from steerserve.control.saes.records import claimed, content_id_of
from steerserve.database.catalog import Catalog, SaeRow
from steerserve.errors import Refusal
from steerserve.files import local, sae_files
from steerserve.files.client_paths import ClientPaths
from steerserve.nouns.labels.store import Labels

__all__ = ["SaeRow", "Saes"]

log = structlog.get_logger(__name__)


class Saes:
    """Brings SAEs of this machine into the catalog, and takes SAEs out."""

    def __init__(
        self,
        catalog: Catalog,
        conductor: Conductor,
        reader: SaeReader,
        labels: Labels,
        downloads: SaeDownloads,
        paths: ClientPaths,
    ) -> None:
        self._catalog = catalog
        self._conductor = conductor
        self._reader = reader
        self._labels = labels
        self._downloads = downloads
        self._paths = paths
        self._registering = asyncio.Lock()

    async def list(self) -> Sequence[SaeRow]:
        return await self._catalog.saes()

    async def get(self, sae_id: str) -> SaeRow:
        """Raises:
        Refusal: SAE_NOT_FOUND.
        """
        return await self._catalog.sae(sae_id)

    async def add(self, local_path: str, *, is_own: bool = False) -> tuple[SaeRow, bool]:
        """Register a folder or file as an SAE, without copying it. Returns the record, and whether it existed before.

        An SAE whose files lack some facts is registered too: the client gives the missing facts when it attaches the
        SAE. Content that is registered already, at this path or at another one, is not registered twice. `is_own` says
        that the service itself asks, for an SAE in its own folders.

        Raises:
            Refusal: INVALID_LOCAL_PATH, SAE_LOAD_FAILED, SAE_INCOMPATIBLE (an SAE that can never be attached),
                SAE_ALREADY_ATTACHED when an attached SAE has this path and the content of its files has changed.
        """
        if not is_own:
            await asyncio.to_thread(self._paths.check_allowed, local_path)
        place = await asyncio.to_thread(local.resolve_either, local_path)
        async with self._registering:
            rows = await self._catalog.saes()
            here = next((row for row in rows if row.local_path == str(place)), None)
            if here is not None and here.repository_id is not None:
                return here, True
            claims = await self._read(place) if here is None else None
            # the digest is made after reading, so that a large file that is not an SAE is never digested
            digest = await asyncio.to_thread(sae_files.content_digest, place)
            if here is not None and here.content_digest is None:
                return await self._renew_id(here, digest), True
            if here is not None and here.content_digest == digest:
                return here, True
            claims = claims or await self._read(place)
            if here is not None:  # the content at the path has changed
                await self.remove(here.id)
            same = next((row for row in rows if row.content_digest == digest), None)
            if same is not None:
                return await self._moved(same, place), True
            return await self._add(place, digest, claims), False

    async def renew_ids(self) -> None:
        """Give SAEs that an earlier version of the service registered an id made from their content. This happens once
        for each SAE. An SAE whose files cannot be read now keeps its id until it is registered again."""
        for row in await self._catalog.saes():
            if row.content_digest is None and row.repository_id is None and row.local_path:
                try:
                    place = await asyncio.to_thread(local.resolve_either, row.local_path)
                    digest = await asyncio.to_thread(sae_files.content_digest, place)
                except Refusal as refusal:
                    log.warning("sae_id_not_renewed", sae_id=row.id, reason=refusal.message)
                    continue
                async with self._registering:
                    await self._renew_id(row, digest)

    async def _read(self, place: Path) -> m.Claims:
        """Raises:
        Refusal: as `SaeReader.read`; SAE_INCOMPATIBLE for a model.
        """
        try:
            return await self._reader.read(m.SaeSource(str(place), str(place)))
        except Refusal as refusal:
            model = await asyncio.to_thread(local.model_at, place)
            if refusal.code != "SAE_LOAD_FAILED" or model is None:
                raise
            why = f"the path is of a model ({model}), not of an SAE; POST /api/models registers it"
            raise Refusal("SAE_INCOMPATIBLE", why, architecture=model) from None

    async def _renew_id(self, row: SaeRow, digest: str) -> SaeRow:
        """Give an SAE of an earlier version an id made from its content, unless the SAE is attached or another SAE has
        the id. The digest is stored, so that the next start need not read the files again."""
        new_id = content_id_of(digest)
        async with self._conductor.editing:
            rows = await self._catalog.saes()
            if any(a.sae_id == row.id for a in self._conductor.attachments()):
                return row
            if any(other.id == new_id for other in rows):
                return await self._catalog.change_sae(row.id, content_digest=digest)
            renamed = await self._catalog.rename_sae(row.id, new_id, content_digest=digest)
            log.info("sae_id_renewed", sae_id=new_id, former_id=row.id)
            return renamed

    async def _moved(self, row: SaeRow, place: Path) -> SaeRow:
        """The record of content that was registered at another path. If that path no longer exists, the record gets the
        new path."""
        former = Path(row.local_path or "")
        if await asyncio.to_thread(former.exists):
            return row
        return await self._catalog.change_sae(row.id, local_path=str(place), name=place.name[:255])

    async def _add(self, place: Path, digest: str, claims: m.Claims) -> SaeRow:
        """Raises:
        Refusal: SAE_LOAD_FAILED when another record got the id or the path in the meantime.
        """
        try:
            return await self._catalog.add_sae(
                id=content_id_of(digest),
                local_path=str(place),
                content_digest=digest,
                name=place.name[:255],
                status="cached",
                **claimed(claims),
            )
        except IntegrityError as error:
            raise Refusal("SAE_LOAD_FAILED", "another SAE has this path") from error

    async def remove(self, sae_id: str) -> tuple[SaeRow, int]:
        """Remove an SAE's record and cancel its download. Returns the record, and how many bytes of disk became free.
        Files that came from the hub are removed, unless another SAE uses them; files of a local source never are. If
        the record is of a repository, the records of all its SAEs are removed with it: all of them or none.

        Raises:
            Refusal: SAE_NOT_FOUND, SAE_ALREADY_ATTACHED.
        """
        # while this lock is held, nothing is attached or detached; an attach that was running has ended by now
        async with self._conductor.editing:
            for row in await self._downloads.with_units(sae_id):
                self._check_detached(row.id)
            async with self._downloads.stopped(sae_id) as rows:
                await self._catalog.remove_saes(*(row.id for row in rows))
                self._labels.drop(row.id for row in rows)
                return rows[0], await self._downloads.remove_files(rows)

    def _check_detached(self, sae_id: str) -> None:
        """Raises:
        Refusal: SAE_ALREADY_ATTACHED.
        """
        if any(attached.sae_id == sae_id for attached in self._conductor.attachments()):
            raise Refusal(
                "SAE_ALREADY_ATTACHED", "the SAE is attached; detach it first", sae_id=sae_id
            )
