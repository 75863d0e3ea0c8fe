"""Fetches one or all SAEs of a repository of the hub in the background, cancels such downloads, and removes the
files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import structlog

from steerserve.control.bus import Bus
from steerserve.control.models.recorded_downloads import NOT_STORED, RecordedDownloads
from steerserve.control.residency.records import noted
from steerserve.control.saes.events import (
    SaeDownloadComplete,
    SaeDownloadError,
    SaeDownloadProgress,
)
from steerserve.control.saes.plan import (
    BEGUN,
    Looked,
    SaePlan,
    SaeRequest,
    id_of,
    is_look,
    look_values,
    make_plan,
    new_look_id,
    place_of,
    source_of,
    values_of,
)
from steerserve.control.saes.reading import ReadSae, SaeReader
from steerserve.control.saes.records import REPOSITORY, claimed
from steerserve.database.catalog import Catalog, SaeRow
from steerserve.errors import Refusal
from steerserve.files import sae_files
from steerserve.files.folder import CommitFolder, folder_of
from steerserve.hub.client import FileHeader, Hub
from steerserve.hub.described import Repository
from steerserve.hub.downloads import Downloads
from steerserve.hub.job import Job
from steerserve.logs import background
from steerserve.nouns.saes.form import RegisteredStatus
from steerserve.rules.models import downloads as retry_rules
from steerserve.rules.models.downloads import LOOKING, FetchProgress, SameRequest
from steerserve.rules.models.repository import check_repo_id, is_commit
from steerserve.rules.saes import shapes as sae_shapes
from steerserve.rules.saes import units as sae_units
from steerserve.rules.saes.units import Unit, UnitListing
from steerserve.settings import Settings

log = structlog.get_logger(__name__)

HEADERS = ".safetensors"
"""Ending of the files whose header can be read without the rest of the file."""


@dataclass(frozen=True, slots=True)
class _Look:
    """A look at the hub that has a record. `work` may be cancelled; `end` then writes into the record how the look
    ended, and is never cancelled."""

    request: SaeRequest
    work: asyncio.Task[Looked]
    end: asyncio.Task[None]


class SaeDownloads(RecordedDownloads[str, SaePlan, Sequence[ReadSae]]):
    """Downloads of SAEs and their records. An engine process of `reader` reads the fetched files."""

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        hub: Hub,
        bus: Bus,
        downloads: Downloads,
        reader: SaeReader,
    ) -> None:
        super().__init__(downloads)
        self._looks: dict[str, _Look] = {}
        self._failed: dict[str, Job] = {}
        """What the downloads that failed since the start were to fetch."""
        self._is_closed = False
        self._settings = settings
        self._catalog = catalog
        self._hub = hub
        self._bus = bus
        self._reader = reader

    async def describe(
        self, repo_id: str, revision: str | None, token: str | None
    ) -> tuple[Repository, UnitListing]:
        """The hub's description of a repository, and the SAEs in the repository. Every file name has been checked.

        Raises:
            Refusal: VALIDATION_ERROR for the name, REPO_NOT_FOUND, GATED_MODEL_NO_TOKEN, INVALID_HUB_TOKEN,
                HUB_UNAVAILABLE, DOWNLOAD_FAILED for a malformed repository.
        """
        check_repo_id(repo_id, "repository_id")
        listed = await self._hub.describe(repo_id, revision, token)
        return listed, await asyncio.to_thread(sae_units.units, listed.repo_id, listed.files)

    async def header(
        self, repo_id: str, sha: str, unit: Unit, token: str | None
    ) -> FileHeader | None:
        """The header of a unit's file, read at the hub. None for a format whose header cannot be read before the whole
        file is there.

        Raises:
            Refusal: what `describe` raises.
        """
        if not unit.weights.lower().endswith(HEADERS):
            return None
        file = next(file for file in unit.files if file.path == unit.weights)
        return await self._hub.header(repo_id, sha, file, token)

    async def begin_download(self, request: SaeRequest) -> tuple[SaeRow, RegisteredStatus]:
        """Register an SAE and begin its download, or go on with a download that had failed.

        Returns the record and the status to answer: `downloading` for a new download; `already_downloading`, `cached`
        or `attached` if nothing has to be fetched again.

        The hub is looked at first. If it does not answer within HUB_ANSWER_WAIT_S, the look goes on in the background
        under a record of its own: (1) its refusal is written into that record; (2) otherwise it becomes the record of
        the SAE; (3) where the SAE has a record already, the id of the look names that SAE too, for ever.

        Raises:
            Refusal: what `describe` raises, VALIDATION_ERROR for a path that names no SAE, SAE_INCOMPATIBLE for an
                SAE that can never be attached, INSUFFICIENT_DISK, SHUTTING_DOWN.
        """
        pinned = await self._pinned(request)
        if pinned is not None:
            return pinned
        check_repo_id(request.repo_id, "repository_id")
        self._hub.check_question(request.revision, request.token)
        look_id = self._looking(request)
        if look_id is not None:
            return await self._catalog.sae(look_id), "already_downloading"
        look = background.start(self._look(request), name=f"look-{request.repo_id}")
        look.add_done_callback(_noted)
        try:
            await asyncio.wait({look}, timeout=self._settings.hub_answer_wait_s)
        except asyncio.CancelledError:
            look.cancel()
            raise
        if look.done():
            return await self._begin_looked(look.result(), request)
        return await self._go_on_looking(request, look)

    async def cancel(self, sae_id: str) -> tuple[SaeRow, bool]:
        """Cancel a running download and remove its files. Returns the record, and whether a download was cancelled.

        Raises:
            Refusal: SAE_NOT_FOUND.
        """
        is_cancelled = await self.stop((await self._catalog.sae(sae_id)).id)
        return await self._catalog.sae(sae_id), is_cancelled

    async def stop(self, record_id: str) -> bool:
        look = self._looks.get(record_id)
        if look is None:
            return await super().stop(record_id)
        is_cancelled = look.work.cancel()
        await asyncio.wait([look.end])
        return is_cancelled or await super().stop((await self._catalog.sae(record_id)).id)

    def progress(self, record_id: str) -> FetchProgress | None:
        return LOOKING if self.is_looking(record_id) else super().progress(record_id)

    def is_looking(self, record_id: str) -> bool:
        """Whether the hub is being asked what the request of this record means."""
        return record_id in self._looks

    def same_request(self, row: SaeRow) -> SameRequest | None:
        """What the request that began a failed download would do again; None where it would do nothing better."""
        if row.status != "error" or row.repository_id is None:
            return None
        return retry_rules.same_request(row.error_code, self._kept_bytes(row))

    async def close(self) -> None:
        """End all looks, because the service stops. The next start writes that they were interrupted."""
        self._is_closed = True
        for look in self._looks.values():
            look.work.cancel()
        if self._looks:
            await asyncio.wait([look.end for look in self._looks.values()])

    @asynccontextmanager
    async def stopped(self, sae_id: str) -> AsyncIterator[list[SaeRow]]:
        """Cancel the downloads of a record and of its units, and give these records. No download begins inside the
        block.

        Raises:
            Refusal: SAE_NOT_FOUND.
        """
        while True:
            for row in await self.with_units(sae_id):
                await self.stop(row.id)
            async with self._deciding:
                # the last download may have added further units, and another download may have begun
                rows = await self.with_units(sae_id)
                if (self._running.keys() | self._looks.keys()).isdisjoint(row.id for row in rows):
                    yield rows
                    return

    async def with_units(self, sae_id: str) -> list[SaeRow]:
        """The record with this id. If it is the record of a repository, the records of the repository's SAEs follow.

        Raises:
            Refusal: SAE_NOT_FOUND.
        """
        row = await self._catalog.sae(sae_id)
        if row.format != REPOSITORY:
            return [row]
        return [row, *(unit for unit in await self._same_commit(row) if unit.file_path is not None)]

    async def remove_files(self, rows: Sequence[SaeRow]) -> int:
        """Remove the files of SAEs of one commit whose records are gone, except files that other registered SAEs use.
        Returns how many bytes of disk became free."""
        row = rows[0]
        for removed_row in rows:
            self._failed.pop(removed_row.id, None)
        if row.repository_id is None or row.revision is None or not is_commit(row.revision):
            return 0
        folder = folder_of(self._settings.sae_cache_dir, row.repository_id, row.revision)
        removed = {row.file_path for row in rows}
        kept = {other.file_path for other in await self._same_commit(row)}
        is_fetching = self._downloads.is_fetching(folder)
        try:
            return await asyncio.to_thread(
                sae_files.clean, folder, row.repository_id, removed, kept, is_fetching=is_fetching
            )
        except OSError as error:
            # the record is gone already, so the files that stay only take disk space
            log.error("files_not_removed", sae_id=row.id, reason=type(error).__name__)
            return 0

    # ------------------------------------------------------------- before a download

    async def _pinned(self, request: SaeRequest) -> tuple[SaeRow, RegisteredStatus] | None:
        """The answer to a request whose `revision` is a commit that was fetched already. A commit cannot change, so the
        hub need not be asked."""
        if request.revision is None or not is_commit(request.revision):
            return None
        row = await self._find(request.repo_id, request.revision, request.file_path)
        if row is None or row.file_path is None or row.status not in ("cached", "attached"):
            return None
        folder = folder_of(self._settings.sae_cache_dir, request.repo_id, request.revision)
        present = await asyncio.to_thread(sae_files.units, folder, request.repo_id)
        return (row, row.status) if row.file_path in {unit.path for unit in present} else None

    async def _standing(self, plan: SaePlan) -> tuple[SaeRow, RegisteredStatus] | None:
        """The answer for an SAE that is on the disk already, or is being downloaded."""
        row = await self._find(plan.job.repo_id, plan.job.sha, plan.path)
        if row is None:
            return None
        if row.id in self._running:
            return row, "already_downloading"
        is_whole = row.status == "attached"
        if row.status == "cached":
            statuses = {other.file_path: other.status for other in await self._same_commit(row)}
            # a unit that could not be read would fail again, so its files are not needed
            needed = [u for u in plan.units if plan.path or statuses.get(u.path) != "error"]
            files = [file for unit in needed for file in unit.files]
            is_whole = await asyncio.to_thread(CommitFolder(plan.job.folder).has_all, files)
        return (row, row.status) if is_whole else None

    async def _look(self, request: SaeRequest) -> Looked:
        """Ask the hub what a request means, and read the header of the only unit, if it can be read before the
        download.

        Raises:
            Refusal: as `begin_download`.
        """
        listed, listing = await self.describe(request.repo_id, request.revision, request.token)
        plan = make_plan(listed, listing, request, self._settings.sae_cache_dir)
        job = plan.job
        if plan.path is None or await self._standing(plan) is not None:
            return Looked(plan, None)
        if not await self._downloads.missing_bytes(job):
            return Looked(plan, None)
        (unit,) = plan.units
        header = await self.header(job.repo_id, job.sha, unit, job.token)
        if header is None:
            return Looked(plan, None)
        begun = replace(job, begun={unit.weights: header.begun})
        return Looked(replace(plan, job=begun), sae_shapes.width_of(header.tensors))

    async def _begin_looked(
        self, looked: Looked, request: SaeRequest
    ) -> tuple[SaeRow, RegisteredStatus]:
        """Begin the download that a look has found, unless its files are here. Returns and raises what
        `begin_download` does."""
        plan = looked.plan
        async with self._deciding:
            look = await self._find_look(request)
            known = await self._find(plan.job.repo_id, plan.job.sha, plan.path)
            begun = await self._standing(plan) or await self._begin_plan(looked, known or look)
            if look is not None and look.id != begun[0].id:
                return await self._catalog.merge_sae(look.id, begun[0].id), begun[1]
            return begun

    async def _begin_plan(
        self, looked: Looked, before: SaeRow | None
    ) -> tuple[SaeRow, RegisteredStatus]:
        """Begin a download in the record `before`, or in a new one."""
        plan = looked.plan
        await self._downloads.check_disk(plan.job)
        own_id = id_of(plan.job.repo_id, plan.job.sha, plan.path)
        if before is None:
            before = await self._catalog.put_sae(own_id, **values_of(plan, looked.width))
        elif is_look(before):
            values = values_of(plan, looked.width) | {"other_ids": [*before.other_ids, own_id]}
            before = await self._catalog.put_sae(before.id, **values)
        elif before.claims is None:
            before = await self._catalog.put_sae(before.id, **values_of(plan, looked.width))
        else:
            # a running attach may use this record, and facts that were read from this commit stay true
            before = await self._catalog.put_sae(before.id, **BEGUN)
        if before.status == "attached":
            return before, before.status
        self._failed.pop(before.id, None)
        await self._start(before.id, plan, plan.job)
        return before, "downloading"

    async def _go_on_looking(
        self, request: SaeRequest, work: asyncio.Task[Looked]
    ) -> tuple[SaeRow, RegisteredStatus]:
        """Let a look go on under a record of its own, unless an equal request is being looked at already."""
        try:
            async with self._deciding:
                look_id = self._looking(request)
                if look_id is not None:
                    work.cancel()
                    return await self._catalog.sae(look_id), "already_downloading"
                known = await self._find(request.repo_id, request.revision, request.file_path)
                former = known or await self._find_look(request)
                look_id = former.id if former else new_look_id()
                values = look_values(request) if known is None else BEGUN
                row = await self._catalog.put_sae(look_id, **values)
                end = background.start(
                    self._end_look(look_id, request, work), name=f"end-{work.get_name()}"
                )
                self._looks[look_id] = _Look(request, work, end)
        except BaseException:
            work.cancel()
            raise
        self._bus.publish(SaeDownloadProgress(look_id, 0))
        return row, "downloading"

    def _looking(self, request: SaeRequest) -> str | None:
        """The id of the record of an equal request that is being looked at."""
        return next((id for id, look in self._looks.items() if look.request == request), None)

    async def _end_look(
        self, look_id: str, request: SaeRequest, work: asyncio.Task[Looked]
    ) -> None:
        """Begin the download when the look has ended, or write why it failed."""
        await asyncio.wait({work})
        refusal: Refusal | None = None
        try:
            if work.cancelled():
                raise Refusal("DOWNLOAD_CANCELLED", "cancelled by user")
            await self._begin_looked(work.result(), request)
        except Refusal as refused:
            refusal = refused
        except Exception:
            # border of a background task: the record must say that the look has ended
            log.exception("look_failed", sae_id=look_id)
            refusal = Refusal(
                "DOWNLOAD_FAILED", "the look at the hub failed: an error inside the service"
            )
        try:
            if refusal is not None and not self._is_closed:
                await self._fail(look_id, refusal)
        finally:
            del self._looks[look_id]

    def _kept_bytes(self, row: SaeRow) -> int:
        """How many bytes of a failed download are kept. Where the service was restarted since, the bytes that all
        downloads of the commit left."""
        job = self._failed.get(row.id)
        if job is not None:
            place = CommitFolder(job.folder)
            return sum(place.staged_bytes(file) for file in job.files)
        if row.repository_id is None or row.revision is None or not is_commit(row.revision):
            return 0
        folder = folder_of(self._settings.sae_cache_dir, row.repository_id, row.revision)
        return CommitFolder(folder).all_staged_bytes()

    # ------------------------------------------------------------- the course of a download

    async def _read(self, plan: SaePlan) -> Sequence[ReadSae]:
        return await self._reader.read_all([source_of(plan, unit) for unit in plan.units])

    async def _keep(self, record_id: str, plan: SaePlan, contents: Sequence[ReadSae]) -> None:
        outcomes: dict[Unit, ReadSae] = dict(zip(plan.units, contents, strict=True))
        bad = {unit: claims for unit, claims in outcomes.items() if isinstance(claims, Refusal)}
        for unit, refused in bad.items():
            log.warning("sae_unreadable", sae_id=record_id, path=unit.path, code=refused.code)
        try:
            keep = self._keep_all if plan.path is None else self._keep_one
            await keep(record_id, plan, outcomes)
        finally:
            await self._remove_units(record_id, plan, bad)
        for one in self._catalog.ids_of_sae(record_id):
            self._bus.publish(SaeDownloadComplete(one))

    async def _keep_one(
        self, record_id: str, plan: SaePlan, outcomes: Mapping[Unit, ReadSae]
    ) -> None:
        """Write the claims of the only unit into the record.

        Raises:
            Refusal: the unit cannot be used.
        """
        ((unit, outcome),) = outcomes.items()
        if isinstance(outcome, Refusal):
            raise outcome
        values = {"status": "cached", "error_message": None, "error_code": None}
        values |= claimed(outcome)
        if not await self._write(record_id, local_path=str(place_of(plan, unit)), **values):
            raise Refusal("DOWNLOAD_FAILED", NOT_STORED)

    async def _keep_all(
        self, record_id: str, plan: SaePlan, outcomes: Mapping[Unit, ReadSae]
    ) -> None:
        """Give each unit of a repository a record of its own.

        Raises:
            Refusal: none of them can be read.
        """
        bad = [outcome for outcome in outcomes.values() if isinstance(outcome, Refusal)]
        if len(bad) == len(outcomes):
            why = f"none of the {len(bad)} SAEs can be read; the first: {bad[0].message}"
            raise Refusal("SAE_LOAD_FAILED", why)
        records: dict[str, dict[str, object]] = {}
        for unit, outcome in outcomes.items():
            known = await self._find(plan.job.repo_id, plan.job.sha, unit.path)
            sae_id = known.id if known else id_of(plan.job.repo_id, plan.job.sha, unit.path)
            if sae_id in self._running:
                continue
            values = values_of(SaePlan(unit.path, (unit,), plan.job), None)
            if isinstance(outcome, Refusal):
                values |= {"status": "error", "error_message": outcome.message}
                values |= {"error_code": outcome.code}
            else:
                values |= {"status": "cached", "local_path": str(place_of(plan, unit))}
                values |= claimed(outcome)
            records[sae_id] = values
        await self._catalog.put_saes(records)
        note = f"{len(bad)} of {len(outcomes)} SAEs cannot be read" if bad else None
        if not await self._write(record_id, status="cached", error_message=note):
            raise Refusal("DOWNLOAD_FAILED", NOT_STORED)

    async def _discard(self, record_id: str, plan: SaePlan) -> None:
        await self._remove_units(record_id, plan, plan.units)

    async def _remove_units(self, record_id: str, plan: SaePlan, units: Iterable[Unit]) -> None:
        """Remove the files of units that cannot be used, except files that other registered SAEs or running downloads
        use."""
        rows = await self._commit_rows(plan.job.repo_id, plan.job.sha)
        kept = {
            row.file_path
            for row in rows
            if row.status in ("cached", "attached") and row.id != record_id
        }
        # a request that is still looked at has fetched nothing, so its record keeps no file
        for other_id, other in self._running.items():
            if other_id != record_id and other.plan.job.folder == plan.job.folder:
                kept |= {unit.path for unit in other.plan.units}
        removed = {unit.path for unit in units} - kept
        if removed:
            folder, repo_id = plan.job.folder, plan.job.repo_id
            await asyncio.to_thread(sae_files.remove, folder, repo_id, removed, kept)

    async def _fail(self, record_id: str, refusal: Refusal, *, is_published: bool = True) -> None:
        running = self._running.get(record_id)
        if running is not None:
            self._failed[record_id] = running.plan.job
        why = {"error_message": refusal.message, "error_code": refusal.code}
        await self._write(record_id, status="error", **why)
        if is_published:
            for one in self._catalog.ids_of_sae(record_id):
                self._bus.publish(SaeDownloadError(one, refusal.message))

    def _publish_progress(self, record_id: str, progress: FetchProgress) -> None:
        for one in self._catalog.ids_of_sae(record_id):
            self._bus.publish(SaeDownloadProgress(one, progress.percent))

    # ------------------------------------------------------------- records

    async def _find(self, repo_id: str, sha: str | None, path: str | None) -> SaeRow | None:
        """The record of what is at a path of a commit."""
        rows = await self._commit_rows(repo_id, sha)
        return next((row for row in rows if row.file_path == path), None)

    async def _find_look(self, request: SaeRequest) -> SaeRow | None:
        """The record of an equal request of which the hub has not said yet what it means."""
        wanted = (request.repo_id, request.revision, request.file_path)
        for row in await self._catalog.saes():
            if is_look(row) and (row.repository_id, row.revision, row.file_path) == wanted:
                return row
        return None

    async def _same_commit(self, row: SaeRow) -> list[SaeRow]:
        """The other records of the same commit."""
        rows = await self._commit_rows(row.repository_id, row.revision)
        return [other for other in rows if other.id != row.id]

    async def _commit_rows(self, repo_id: str | None, sha: str | None) -> list[SaeRow]:
        rows = await self._catalog.saes()
        return [
            row
            for row in rows
            if repo_id and (row.repository_id, row.revision) == (repo_id, sha) and not is_look(row)
        ]

    async def _write(self, sae_id: str, **values: object) -> bool:
        """Write values into the record. Returns whether the database stored them; if not, the next start of the service
        repairs the status."""
        change = self._catalog.put_sae(sae_id, may_add=False, **values)
        return await noted(change, sae_id=sae_id) is not None


def _noted(look: asyncio.Task[Looked]) -> None:
    """Read the exception of a finished look. Otherwise asyncio logs it when no task waits for the look any more."""
    if not look.cancelled():
        look.exception()
