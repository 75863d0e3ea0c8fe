"""Trained lenses: registering those of this machine and of the model hub, their records, and finding them for
requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import structlog
from msgspec import structs

from steerserve import messages as m
from steerserve.control.jobs import Job, Jobs, Report
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.engines import Engines
from steerserve.control.saes.reading import READ_SECONDS, reading_engine
from steerserve.errors import Refusal
from steerserve.files import local
from steerserve.files.client_paths import ClientPaths
from steerserve.files.folder import CommitFolder, folder_of
from steerserve.hub.client import Hub
from steerserve.hub.downloads import Downloads
from steerserve.hub.job import Job as Download
from steerserve.nouns.lens import rules
from steerserve.nouns.lens.rules import LensRecord, LensSource
from steerserve.nouns.trained_lenses.store import LensRow, LensStore
from steerserve.rules.models.downloads import FetchProgress
from steerserve.rules.models.repository import RepoFile, check_repo_id
from steerserve.rules.steering.vector import check_written
from steerserve.rules.text import plain
from steerserve.rules.units import MIB
from steerserve.settings import Settings

KIND = "lens"
HUB = "huggingface"
FETCH_SHARE = 0.9
"""The share of the progress of a job that is the download."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LensRequest:
    """A lens to register. `model_hint` replaces what its files say. The token is sent to the hub and kept nowhere."""

    name: str
    source: LensSource
    model_hint: str | None = None
    hub_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a lens is on this machine, where it came from, and what of it has to be fetched."""

    path: str
    source: LensSource
    download: Download | None = None


class TrainedLenses:
    """Owner of the trained lenses, and of the jobs that register them.

    Files of this machine stay where they are. Files of the hub are in LENS_CACHE_DIR; they are removed with their lens,
    once no request reads them. Only one lens has the files of one place, so the files are its own."""

    def __init__(
        self,
        settings: Settings,
        store: LensStore,
        hub: Hub,
        downloads: Downloads,
        conductor: Conductor,
        launcher: Engines,
        jobs: Jobs,
        paths: ClientPaths,
    ) -> None:
        self._settings = settings
        self._store = store
        self._hub = hub
        self._downloads = downloads
        self._conductor = conductor
        self._launcher = launcher
        self._jobs = jobs
        self._paths = paths
        self._warned: set[str] = set()
        """The paths of lenses of before, outside of LOCAL_PATHS, that the log has named."""
        self._changing = asyncio.Lock()
        """Held while it is decided whose the files of a place are, and while they are removed."""
        self._registering: set[str] = set()
        """The paths whose files a job registers now."""
        self._uses: Counter[str] = Counter()
        """The requests that read the files of a path."""
        self._unused: dict[str, LensRow] = {}
        """Lenses that were deleted while requests read their files, by their paths."""

    # ------------------------------------------------------------- records

    async def page(self, limit: int, offset: int = 0) -> tuple[list[LensRow], int]:
        """Some of the lenses, oldest first, and how many there are."""
        return await self._store.page(limit, offset)

    async def get(self, id_or_name: str) -> LensRow:
        """Raises:
        Refusal: LENS_NOT_FOUND.
        """
        return await self._store.row(id_or_name)

    async def remove(self, id_or_name: str) -> str:
        """Delete a lens, and return its id. Requests that read it keep its files to their end.

        Raises:
            Refusal: LENS_NOT_FOUND.
        """
        async with self._changing:
            row = await self._store.row(id_or_name)
            await self._store.remove(row.id)
            self._unused[row.path] = row
            await self._tidy(row.path)
        return row.id

    @asynccontextmanager
    async def used(self, id_or_name: str) -> AsyncIterator[LensRow]:
        """The lens that a request reads, whose files stay until the end of the block. Refusals of the lens in the block
        are raised with its name.

        Raises:
            Refusal: LENS_NOT_FOUND; INVALID_LOCAL_PATH for files that are gone.
        """
        async with self._changing:
            row = await self._store.row(id_or_name)
            self._uses[row.path] += 1
        try:
            with _named(row):
                if row.source.kind != HUB:
                    await asyncio.to_thread(local.resolve_either, row.path)
                    if row.path not in self._warned:
                        self._warned.add(row.path)
                        self._paths.warning(row.path)
                yield row
        finally:
            self._uses[row.path] -= 1
            if row.path in self._unused:
                async with self._changing:
                    await self._tidy(row.path)

    # ------------------------------------------------------------- registering

    async def start(self, asked: LensRequest) -> Job:
        """Begin to register a lens. The job is refused what `Hub.describe` and `Downloads.start` refuse; INVALID_LENS
        for what is no lens; LENS_ALREADY_EXISTS where another lens has its files; DOCUMENT_STORE_FULL.

        Raises:
            Refusal: VALIDATION_ERROR for the name or the repository, LENS_ALREADY_EXISTS for the name,
                INVALID_LOCAL_PATH, INVALID_HUB_TOKEN, HUB_UNAVAILABLE, TOO_MANY_JOBS.
        """
        rules.check_lens_name(asked.name)
        check_written(asked.model_hint, "model_hint")
        await self._store.check_name(asked.name)
        source = asked.source
        if source.local_path is not None:
            await asyncio.to_thread(self._paths.check_allowed, source.local_path)
            path = await asyncio.to_thread(local.resolve_either, source.local_path)
            source = structs.replace(source, local_path=str(path))
        else:
            assert source.repository_id is not None
            check_repo_id(source.repository_id, "repository_id")
            self._hub.check_question(source.revision, asked.hub_token)
        return self._jobs.start(KIND, partial(self._register, asked, source))

    async def _register(self, asked: LensRequest, source: LensSource, report: Report) -> LensRecord:
        place = await self._found(source, asked.hub_token)
        async with self._claimed(place.path):
            if place.download is not None:
                await self._fetch(place.path, place.download, report)
            try:
                report(FETCH_SHARE, "the files are read")
                facts = await self._inspect(place.path)
                hint = asked.model_hint or facts.model_name
                row = await self._store.add(
                    name=asked.name,
                    kind=facts.kind,
                    width=facts.width,
                    layers=tuple(facts.layers),
                    model_layers=facts.model_layers,
                    model_hint=None if hint is None else plain(hint),
                    unembed_hash=facts.unembed_hash,
                    source=place.source,
                    path=place.path,
                    file_bytes=facts.size_bytes,
                )
            except BaseException:
                if place.download is not None and not self._conductor.is_closing:
                    await asyncio.to_thread(_remove_files, place.download)
                raise
        return row.record

    async def _found(self, source: LensSource, token: str | None) -> _Place:
        """Raises:
        Refusal: what `Hub.describe` raises; INVALID_LENS where the repository has no lens at the path.
        """
        if source.local_path is not None:
            return _Place(source.local_path, source)
        assert source.repository_id is not None
        kind = source.repository_type or "model"
        listed = await self._hub.describe(source.repository_id, source.revision, token, kind)
        files = {file.path: file for file in listed.files}
        wanted = rules.lens_files(source.file_path, tuple(files))
        found = structs.replace(
            source, repository_id=listed.repo_id, repository_type=kind, revision=listed.sha
        )
        download = Download(
            listed.repo_id,
            listed.sha,
            tuple(files[name] for name in wanted),
            folder_of(self._settings.lens_cache_dir / kind, listed.repo_id, listed.sha),
            token,
            repo_type=kind,
        )
        return _Place(str(download.folder / (source.file_path or "")), found, download)

    @asynccontextmanager
    async def _claimed(self, path: str) -> AsyncIterator[None]:
        """Let no other job register the files of a place.

        Raises:
            Refusal: LENS_ALREADY_EXISTS.
        """
        async with self._changing:
            if path in self._registering:
                raise Refusal("LENS_ALREADY_EXISTS", "another job registers these files now")
            row = await self._store.at(path)
            if row is not None:
                why = f"these files are registered as {row.name!r}"
                raise Refusal("LENS_ALREADY_EXISTS", why, lens_id=row.id)
            self._registering.add(path)
            # the files of a deleted lens, which requests may still read, are those of the new lens
            self._unused.pop(path, None)
        try:
            yield
        finally:
            self._registering.discard(path)

    async def _fetch(self, path: str, download: Download, report: Report) -> None:
        """Download the files. A job that is cancelled keeps nothing of them, unless the service stops.

        Raises:
            Refusal: why the download failed.
        """
        ended: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()

        async def note_end(_: object, refusal: Refusal | None) -> None:
            ended.set_result(refusal)

        def note_progress(_: object, progress: FetchProgress) -> None:
            done, total = progress.downloaded_bytes // MIB, progress.total_bytes // MIB
            share = FETCH_SHARE * progress.percent / 100
            report(share, f"{done} of {total} MiB are fetched")

        key = f"lens {path}"
        await self._downloads.start(key, download, note_progress, note_end)
        try:
            refusal = await asyncio.shield(ended)
        except asyncio.CancelledError:
            if not self._conductor.is_closing:
                await self._downloads.cancel(key)
            raise
        if refusal is not None:
            raise refusal

    async def _inspect(self, path: str) -> m.LensInspected:
        """Read the headers of the files in a process of their own.

        Raises:
            Refusal: INVALID_LENS, SHUTTING_DOWN.
        """
        try:
            async with (
                asyncio.timeout(READ_SECONDS),
                reading_engine(self._conductor, self._launcher) as engine,
            ):
                return await engine.ask(m.InspectLens(path=path))
        except TimeoutError:
            why = f"the lens cannot be read within {READ_SECONDS:.0f} seconds"
            raise Refusal("INVALID_LENS", why) from None
        except Refusal as refusal:
            if refusal.code != "ENGINE_UNAVAILABLE":
                raise
            raise Refusal("INVALID_LENS", "the process that read the lens ended") from None

    # ------------------------------------------------------------- files

    async def _tidy(self, path: str) -> None:
        """Remove the files of a deleted lens that no request reads. The lock is held."""
        row = self._unused.get(path)
        if row is None or self._uses[path]:
            return
        del self._unused[path], self._uses[path]
        source = row.source
        if source.repository_id is None or source.revision is None:
            return
        place = Path(path)
        cache = self._settings.lens_cache_dir / str(source.repository_type)
        folder = folder_of(cache, source.repository_id, source.revision)
        inside = str(place.relative_to(folder))
        names = (
            [inside] if row.kind == "jacobian" else [f"{inside}/{one}" for one in rules.TUNED_FILES]
        )
        files = tuple(RepoFile(name.removeprefix("./"), None) for name in names)
        removed = Download(source.repository_id, source.revision, files, folder)
        await asyncio.to_thread(_remove_files, removed)


def _remove_files(download: Download) -> None:
    try:
        CommitFolder(download.folder).remove(download.files)
    except OSError as error:
        # the record is gone already, so the files that stay only take disk space
        log.error("files_not_removed", repository=download.repo_id, reason=type(error).__name__)


@contextmanager
def _named(row: LensRow) -> Iterator[None]:
    """Name the lens in its refusals."""
    try:
        yield
    except Refusal as refusal:
        if refusal.code not in ("INVALID_LENS", "LENS_MISMATCH", "INVALID_LOCAL_PATH"):
            raise
        details = {**refusal.details, "lens_id": row.id}
        why = f"the lens {row.name!r}: {refusal.message}"
        raise Refusal(refusal.code, why, param="kind", **details) from None
