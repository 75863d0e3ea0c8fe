"""SAEs from the hub: which a repository holds, fetching one or all of them, giving up, and removing them again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog

from steerserve.control.bus import Bus, SaeDownloadComplete, SaeDownloadError, SaeDownloadProgress
from steerserve.control.library.sae_plan import (
    SaePlan,
    choose,
    id_of,
    place_of,
    source_of,
    values_of,
)
from steerserve.control.library.saes import REPOSITORY, Found, Saes, claimed
from steerserve.control.residency.records import noted
from steerserve.errors import Refusal
from steerserve.files import sae_files
from steerserve.files.folder import CommitFolder, folder_of
from steerserve.hub.client import Hub, Repository
from steerserve.hub.downloads import Downloads, FetchProgress, Job
from steerserve.rules import sae_shapes, sae_units
from steerserve.rules.precision import StoredTensor
from steerserve.rules.repository import check_repo_id, is_commit
from steerserve.rules.sae_shapes import Width
from steerserve.rules.sae_units import Unit, UnitListing
from steerserve.settings import Settings
from steerserve.store.catalog import Catalog, SaeRow

__all__ = ["FetchProgress", "SaeDownloads", "SaeRequest"]

log = structlog.get_logger(__name__)

HEADERS = ".safetensors"
"""Files whose header can be read without the rest."""

UNREAD = "the downloaded files could not be read; asking again reads them again"
UNTOLD = "the database could not take the note of it"


@dataclass(frozen=True, slots=True)
class SaeRequest:
    """An SAE asked of the hub, or with `file_path` None all that a repository has. The token is used and dropped."""

    repo_id: str
    revision: str | None = None
    file_path: str | None = None
    token: str | None = field(default=None, repr=False)


@dataclass(slots=True, eq=False)
class _Fetch:
    """A download under way, until its last note is written: then `over` is done. `found` is what its units say of
    themselves, once they are read."""

    plan: SaePlan
    over: asyncio.Future[None]
    progress: FetchProgress | None = None
    found: Sequence[Found] = ()


class SaeDownloads:
    """Downloads of SAEs and their records. `downloads` fetches the bytes, the engine process of `saes` reads them."""

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        hub: Hub,
        bus: Bus,
        downloads: Downloads,
        saes: Saes,
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._hub = hub
        self._bus = bus
        self._downloads = downloads
        self._saes = saes
        self._adding = asyncio.Lock()
        self._busy: dict[str, _Fetch] = {}

    def progress(self, sae_id: str) -> FetchProgress | None:
        """How far a running download is; reading what was fetched is part of it."""
        fetch = self._busy.get(sae_id)
        return (self._downloads.progress(sae_id) or fetch.progress) if fetch else None

    async def listing(
        self, repo_id: str, revision: str | None, token: str | None
    ) -> tuple[Repository, UnitListing]:
        """What the hub says of a repository, and the SAEs in it; every file name has been checked.

        Raises:
            Refusal: VALIDATION_ERROR for the name, REPO_NOT_FOUND, GATED_MODEL_NO_TOKEN, INVALID_HUB_TOKEN,
                HUB_UNAVAILABLE, DOWNLOAD_FAILED for a repository that is not what it should be.
        """
        check_repo_id(repo_id, "repository_id")
        found = await self._hub.describe(repo_id, revision, token)
        return found, await asyncio.to_thread(sae_units.units, found.repo_id, found.files)

    async def add(self, wanted: SaeRequest) -> tuple[SaeRow, str]:
        """Register an SAE and begin its download, or go on with one that had failed; its record and the status to answer:
        `downloading`, or of what is there already `already_downloading`, `cached`, `attached`.

        Raises:
            Refusal: what `listing` raises, VALIDATION_ERROR for a path that is no SAE, SAE_INCOMPATIBLE for what can never
                be attached, INSUFFICIENT_DISK, SHUTTING_DOWN.
        """
        pinned = await self._pinned(wanted)
        if pinned is not None:
            return pinned
        found, listing = await self.listing(wanted.repo_id, wanted.revision, wanted.token)
        plan = self._plan(found, *choose(listing, wanted.file_path), wanted.token)
        standing = await self._standing(plan)
        if standing is not None:
            return standing
        width = await self._width(plan)
        async with self._adding:
            standing = await self._standing(plan)
            if standing is not None:
                return standing
            await self._downloads.check_disk(plan.job)
            before = await self._find(plan.sae_id)
            # an attach under way goes by what the record says: what was read of this commit stays true
            is_known = before is not None and before.claims is not None
            values = {} if is_known else values_of(plan, width)
            begun = {"status": "downloading", "error_message": None}
            row = await self._catalog.put_sae(plan.sae_id, **values | begun)
            if row.status == "attached":
                return row, row.status
            await self._begin(plan)
        return row, "downloading"

    async def header(
        self, repo_id: str, sha: str, unit: Unit, token: str | None
    ) -> list[StoredTensor] | None:
        """The tensors of a unit, read from the hub without the rest of the file; None where its format tells nothing of
        them before it is whole.

        Raises:
            Refusal: what `listing` raises.
        """
        if not unit.weights.endswith(HEADERS):
            return None
        file = next(file for file in unit.files if file.path == unit.weights)
        return await self._hub.header(repo_id, sha, file, token)

    async def cancel(self, sae_id: str) -> tuple[SaeRow, bool]:
        """Give a running download up; nothing of it stays. The record, and whether there was one to give up.

        Raises:
            Refusal: SAE_NOT_FOUND.
        """
        await self._catalog.sae(sae_id)
        is_cancelled = await self._downloads.cancel(sae_id)
        if sae_id in self._busy:
            # it is over, but for the notes of it
            await asyncio.shield(self._busy[sae_id].over)
        return await self._catalog.sae(sae_id), is_cancelled

    async def units_of(self, row: SaeRow) -> list[SaeRow]:
        """The SAEs that the record of a repository stands for."""
        return [other for other in await self._same_commit(row) if other.file_path is not None]

    async def remove(self, sae_id: str) -> tuple[SaeRow, int]:
        """Forget an SAE, its download given up if it ran; its record, and the bytes that this gave back. Its files from the
        hub are removed, but not those that others share; a local source keeps its own. The record of a repository goes
        with all its SAEs.

        Raises:
            Refusal: SAE_NOT_FOUND, SAE_ALREADY_ATTACHED.
        """
        async with self._saes.editing:
            while True:
                gone = await self._with_units(sae_id)
                for each in gone:
                    self._saes.check_detached(each.id)
                for each in gone:
                    await self.cancel(each.id)
                async with self._adding:
                    # a download that has ended meanwhile may have brought more, and another one may have begun
                    row, *units = await self._with_units(sae_id)
                    if self._busy.keys().isdisjoint({row.id, *(unit.id for unit in units)}):
                        await self._saes.forget(row.id, *(unit.id for unit in units))
                        paths = {row.file_path, *(unit.file_path for unit in units)}
                        return row, await self._clean(row, paths)

    async def _with_units(self, sae_id: str) -> list[SaeRow]:
        """The record, and if it is that of a repository those that it stands for.

        Raises:
            Refusal: SAE_NOT_FOUND.
        """
        row = await self._catalog.sae(sae_id)
        return [row, *(await self.units_of(row) if row.format == REPOSITORY else [])]

    # ------------------------------------------------------------- before a download

    def _plan(
        self, found: Repository, units: tuple[Unit, ...], path: str | None, token: str | None
    ) -> SaePlan:
        files = {file.path: file for unit in units for file in unit.files}
        folder = folder_of(self._settings.sae_cache_dir, found.repo_id, found.sha)
        job = Job(found.repo_id, found.sha, tuple(files.values()), folder, token)
        return SaePlan(id_of(found.repo_id, found.sha, path), path, units, job)

    async def _pinned(self, wanted: SaeRequest) -> tuple[SaeRow, str] | None:
        """The answer for a commit that is here already: it cannot change, so the hub need not be asked."""
        if wanted.revision is None or not is_commit(wanted.revision):
            return None
        row = await self._find(id_of(wanted.repo_id, wanted.revision, wanted.file_path))
        if row is None or row.file_path is None or row.status not in ("cached", "attached"):
            return None
        folder = folder_of(self._settings.sae_cache_dir, wanted.repo_id, wanted.revision)
        there = await asyncio.to_thread(sae_files.units, folder, wanted.repo_id)
        return (row, row.status) if row.file_path in {unit.path for unit in there} else None

    async def _standing(self, plan: SaePlan) -> tuple[SaeRow, str] | None:
        """The answer for what is there already, or under way."""
        row = await self._find(plan.sae_id)
        if row is None:
            return None
        if row.id in self._busy:
            return row, "already_downloading"
        is_whole = row.status == "attached"
        if row.status == "cached":
            known = {other.file_path: other.status for other in await self._same_commit(row)}
            # what could not be read is the same in the next attempt
            needed = [u for u in plan.units if plan.path or known.get(u.path) != "error"]
            files = [file for unit in needed for file in unit.files]
            is_whole = await asyncio.to_thread(sae_files.are_there, plan.job.folder, files)
        return (row, row.status) if is_whole else None

    async def _width(self, plan: SaePlan) -> Width | None:
        """How wide the only unit is, where its header tells it before it is fetched.

        Raises:
            Refusal: SAE_INCOMPATIBLE when it is no SAE, and what `header` raises.
        """
        if plan.path is None or not await self._downloads.missing_bytes(plan.job):
            return None
        job = plan.job
        tensors = await self.header(job.repo_id, job.sha, plan.units[0], job.token)
        return None if tensors is None else sae_shapes.width_of(tensors)

    # ------------------------------------------------------------- a download

    async def _begin(self, plan: SaePlan) -> None:
        """Raises:
        Refusal: what `Downloads.start` refuses; it is in the record then.
        """
        fetch = _Fetch(plan, asyncio.get_running_loop().create_future())
        self._busy[plan.sae_id] = fetch
        try:
            await self._downloads.start(
                plan.sae_id,
                plan.job,
                partial(self._on_progress, fetch),
                partial(self._end, fetch),
                partial(self._inspect, fetch),
            )
        except BaseException as error:
            self._busy.pop(plan.sae_id).over.set_result(None)
            if isinstance(error, Refusal):
                await self._record(plan.sae_id, status="error", error_message=error.message)
            raise

    def _on_progress(self, fetch: _Fetch, sae_id: str, progress: FetchProgress) -> None:
        fetch.progress = progress
        self._bus.publish(SaeDownloadProgress(sae_id, progress.percent))

    async def _inspect(self, fetch: _Fetch) -> None:
        """Have every unit read.

        Raises:
            Refusal: SHUTTING_DOWN, or SAE_LOAD_FAILED when nothing could read them.
        """
        plan = fetch.plan
        try:
            sources = [source_of(plan, unit) for unit in plan.units]
            fetch.found = await self._saes.inspect_all(sources)
        except Refusal:
            raise
        except Exception as error:
            # whatever happens to files from strangers: the download must have an end
            log.exception("downloaded_files_unreadable", sae_id=plan.sae_id)
            raise Refusal("SAE_LOAD_FAILED", UNREAD) from error

    async def _end(self, fetch: _Fetch, sae_id: str, refusal: Refusal | None) -> None:
        """Write how a download ended into the records, and tell."""
        try:
            if refusal is not None and refusal.code == "SHUTTING_DOWN":
                return  # the next start says that it was interrupted
            why = await self._settle(fetch, refusal)
            if why is None:
                self._bus.publish(SaeDownloadComplete(sae_id))
                return
            await self._record(sae_id, status="error", error_message=why)
            self._bus.publish(SaeDownloadError(sae_id, why))
        finally:
            self._busy.pop(sae_id).over.set_result(None)

    async def _settle(self, fetch: _Fetch, refusal: Refusal | None) -> str | None:
        """Make each good unit an SAE, and leave nothing of the others. Why there is none."""
        plan = fetch.plan
        try:
            if refusal is not None:
                if refusal.code == "DOWNLOAD_CANCELLED":
                    await self._discard(plan, plan.units)
                return refusal.message
            outcomes: dict[Unit, Found] = dict(zip(plan.units, fetch.found, strict=True))
            bad = {u: claims for u, claims in outcomes.items() if isinstance(claims, Refusal)}
            for unit, refused in bad.items():
                log.warning("sae_unreadable", sae_id=plan.sae_id, path=unit.path, code=refused.code)
            reason = await (self._register if plan.path is None else self._keep)(plan, outcomes)
            await self._discard(plan, bad)
        except Exception:
            # whatever the disk or the database does: the download must have an end
            log.exception("download_not_settled", sae_id=plan.sae_id)
            return refusal.message if refusal else UNREAD
        return reason

    async def _keep(self, plan: SaePlan, outcomes: dict[Unit, Found]) -> str | None:
        """Note what the only unit is. Why it is of no use, if so."""
        ((unit, found),) = outcomes.items()
        if isinstance(found, Refusal):
            return found.message
        values = {"status": "cached", "error_message": None, **claimed(found)}
        if await self._record(plan.sae_id, local_path=str(place_of(plan, unit)), **values):
            return None
        return UNTOLD

    async def _register(self, plan: SaePlan, outcomes: dict[Unit, Found]) -> str | None:
        """Give each unit of a repository a record of its own. Why there is nothing to be had, if so."""
        bad = [found for found in outcomes.values() if isinstance(found, Refusal)]
        if len(bad) == len(outcomes):
            return f"none of the {len(bad)} SAEs can be read; the first: {bad[0].message}"
        for unit, found in outcomes.items():
            sae_id = id_of(plan.job.repo_id, plan.job.sha, unit.path)
            if sae_id in self._busy:
                continue
            values = values_of(SaePlan(sae_id, unit.path, (unit,), plan.job), None)
            if isinstance(found, Refusal):
                values |= {"status": "error", "error_message": found.message}
            else:
                values |= {"status": "cached", "local_path": str(place_of(plan, unit))}
                values |= claimed(found)
            await self._catalog.put_sae(sae_id, **values)
        told = f"{len(bad)} of {len(outcomes)} SAEs cannot be read" if bad else None
        if await self._record(plan.sae_id, status="cached", error_message=told):
            return None
        return UNTOLD

    async def _discard(self, plan: SaePlan, bad: Iterable[Unit]) -> None:
        """Remove the files of units that are of no use."""
        rows = await self._commit_rows(plan.job.repo_id, plan.job.sha)
        there = ("cached", "attached", "downloading")
        kept = {r.file_path for r in rows if r.status in there and r.id != plan.sae_id}
        gone = {unit.path for unit in bad} - kept
        if gone:
            await asyncio.to_thread(sae_files.remove, plan.job.folder, plan.job.repo_id, gone, kept)

    async def _clean(self, row: SaeRow, gone: set[str | None]) -> int:
        """Remove what there is of forgotten SAEs of one commit; the bytes that came back."""
        if row.repository_id is None or row.revision is None:
            return 0
        folder = folder_of(self._settings.sae_cache_dir, row.repository_id, row.revision)
        kept = {other.file_path for other in await self._same_commit(row)}
        is_staging_free = not self._downloads.is_fetching(folder)

        def work() -> int:
            before = sae_files.bytes_of(folder)
            try:
                if not kept:
                    CommitFolder(folder).remove_all()
                else:
                    sae_files.remove(folder, str(row.repository_id), gone, kept)
                    if is_staging_free:
                        CommitFolder(folder).remove_staged()
            except OSError as error:
                # the SAE is forgotten already; what is left is only disk space
                log.error("files_not_removed", sae_id=row.id, reason=type(error).__name__)
            return before - sae_files.bytes_of(folder)

        return await asyncio.to_thread(work)

    # ------------------------------------------------------------- records

    async def _find(self, sae_id: str) -> SaeRow | None:
        with suppress(Refusal):
            return await self._catalog.sae(sae_id)
        return None

    async def _same_commit(self, row: SaeRow) -> list[SaeRow]:
        """The other records of the same commit."""
        rows = await self._commit_rows(row.repository_id, row.revision)
        return [other for other in rows if other.id != row.id]

    async def _commit_rows(self, repo_id: str | None, sha: str | None) -> list[SaeRow]:
        rows = await self._catalog.saes()
        return [r for r in rows if repo_id and (r.repository_id, r.revision) == (repo_id, sha)]

    async def _record(self, sae_id: str, **values: Any) -> bool:
        """Whether the database took the note. If not, the next start repairs the status."""
        changed = self._catalog.put_sae(sae_id, may_add=False, **values)
        return await noted(changed, sae_id=sae_id) is not None
