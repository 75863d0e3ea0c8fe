"""The running downloads: how many run at once, their attempts, their progress, and their end. Each attempt is a process
of its own, and continues with the bytes that earlier attempts fetched.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import structlog
import tenacity

from steerserve.errors import Refusal
from steerserve.files.folder import CommitFolder, missing_bytes
from steerserve.hub.child import refusal, running, usable
from steerserve.hub.client import Hub, is_transport
from steerserve.hub.job import Job, disk_room, percent_of
from steerserve.hub.wire import (
    Download,
    DownloadDone,
    DownloaderTask,
    Kind,
    Progressed,
    Trouble,
)
from steerserve.logs import background
from steerserve.rules.models.downloads import FetchProgress
from steerserve.rules.models.repository import check_paths, check_repo_id, is_commit
from steerserve.rules.units import MIB

FIRST_WAIT = 2.0
LONGEST_WAIT = 30.0
SPEED_SECONDS = 5.0
"""Seconds over which the speed is measured."""

log = structlog.get_logger("steerserve.hub")


Key = int | str
"""The caller's name for a download: the id of a model or of an SAE."""

OnProgress = Callable[[Any, FetchProgress], None]
OnEnd = Callable[[Any, Refusal | None], Awaitable[None]]
Read = Callable[[], Awaitable[None]]
Sleep = Callable[[float], Awaitable[None]]


@dataclass(slots=True, eq=False)
class _Run:
    """A running download. The task `work` fetches the files, then has them read. It may be cancelled, except while
    files are moved to their places. The task `end` waits for `work` and is never cancelled."""

    job: Job
    on_progress: OnProgress
    on_end: OnEnd
    read: Read | None
    progress: FetchProgress
    marks: deque[tuple[float, int]] = field(default_factory=deque)
    interruption: Refusal | None = None
    outcome: Refusal | None = None
    is_moving: bool = False
    work: asyncio.Future[None] | None = None
    end: asyncio.Task[None] | None = None

    def interrupt(self, why: Refusal) -> None:
        """Cancel the work, unless files are being moved to their places, and let no further part of it begin."""
        self.interruption = self.interruption or why
        if self.work is not None and not self.is_moving:
            self.work.cancel()


class Downloads:
    """Owner of the running downloads, by the caller's keys. `sleep` waits between attempts."""

    def __init__(self, hub: Hub, sleep: Sleep = asyncio.sleep) -> None:
        self._hub = hub
        self._settings = hub.settings
        self._sleep = sleep
        self._runs: dict[Key, _Run] = {}
        self._ends: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(self._settings.max_download_workers)
        self._starting = asyncio.Lock()
        self._locks: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()
        self._is_closed = False

    async def start(
        self,
        key: Key,
        job: Job,
        on_progress: OnProgress,
        on_end: OnEnd,
        read: Read | None = None,
    ) -> None:
        """Begin a download. Nothing is fetched before this call returns. `read` is called when all files are there; if
        the download is cancelled, `read` is cancelled too. `on_end` is called once, with None for a success.

        Raises:
            Refusal: VALIDATION_ERROR, DOWNLOAD_FAILED (a hostile job), INVALID_HUB_TOKEN, INSUFFICIENT_DISK,
                HUB_UNAVAILABLE, SHUTTING_DOWN.
        """
        check_repo_id(job.repo_id)
        check_paths(job.files)
        if not is_commit(job.sha):
            raise Refusal("DOWNLOAD_FAILED", "files can be fetched of a commit only")
        usable(job.token, self._settings.hub_token)
        self._hub.check_breaker()
        # only one start at a time: the bytes reserved for this download count against the next download's check
        async with self._starting:
            missing = await self.check_disk(job)
            if self._is_closed:
                raise _stopping()
            assert key not in self._runs, f"download {key} is running"
            total = sum(file.size or 0 for file in job.files)
            begun = FetchProgress(total - missing, total, percent_of(total - missing, total))
            run = _Run(job, on_progress, on_end, read, begun)
            self._runs[key] = run
        run.end = background.start(self._finish(key, run))
        self._ends.add(run.end)
        run.end.add_done_callback(self._ends.discard)

    async def cancel(self, key: Key) -> bool:
        """End a download and remove the files it fetched. The call returns when the process has ended and `on_end` has
        returned. The answer is False if there was nothing to cancel."""
        run = self._runs.get(key)
        if run is None or run.end is None:
            return False
        run.interrupt(Refusal("DOWNLOAD_CANCELLED", "cancelled by user"))
        await asyncio.wait([run.end])
        return run.outcome is not None and run.outcome.code == "DOWNLOAD_CANCELLED"

    def progress(self, key: Key) -> FetchProgress | None:
        """The progress of a download that waits for its turn, fetches, or has its files read. None if no such download
        has this key."""
        run = self._runs.get(key)
        return run.progress if run else None

    def is_fetching(self, folder: Path) -> bool:
        """Whether a running download fetches files into this folder."""
        return any(run.job.folder == folder for run in self._runs.values())

    async def close(self) -> None:
        """End all downloads, because the service stops. The fetched bytes stay, so a later download continues with
        them."""
        self._is_closed = True
        for run in self._runs.values():
            run.interrupt(_stopping())
        if self._ends:
            await asyncio.wait(set(self._ends))

    async def missing_bytes(self, job: Job) -> int:
        """How many bytes of a job still have to be fetched."""
        return await asyncio.to_thread(missing_bytes, job.folder, job.files)

    async def check_disk(self, job: Job) -> int:
        """Check that the job, the running downloads and the reserve fit on the disk, and return the bytes that the job
        still has to fetch.

        Raises:
            Refusal: INSUFFICIENT_DISK with the figures in MiB.
        """
        others = [run.job for run in self._runs.values()]
        needed, free, promised = await asyncio.to_thread(disk_room, job, others)
        reserve = self._settings.disk_reserve_mb
        if needed and free - promised - needed < reserve * MIB:
            needed_mb, free_mb = math.ceil(needed / MIB), free // MIB
            raise Refusal(
                "INSUFFICIENT_DISK",
                f"the download needs {needed_mb} MiB, and {reserve} MiB must stay free: {free_mb} MiB are free",
                needed_mb=needed_mb,
                free_mb=free_mb,
                reserve_mb=reserve,
                promised_mb=math.ceil(promised / MIB),
            )
        return needed

    # ------------------------------------------------------------- one download

    async def _fetch(self, key: Key, run: _Run) -> None:
        """Fetch the files in one or more attempts, and move them to their places. Downloads into the same folder wait
        for each other."""
        job = run.job
        lock = self._locks.setdefault(job.folder, asyncio.Lock())
        async with lock, self._room:
            await self.check_disk(job)
            await asyncio.to_thread(_keep_begun, job)
            retrying = tenacity.AsyncRetrying(
                stop=tenacity.stop_after_attempt(self._settings.download_attempts),
                wait=_wait,
                retry=tenacity.retry_if_exception(is_transport),
                sleep=self._sleep,
                reraise=True,
            )
            async for attempt in retrying:
                with attempt:
                    await self._attempt(key, run, attempt.retry_state.attempt_number)
            run.is_moving = True
            try:
                await asyncio.to_thread(CommitFolder(job.folder).commit, job.files)
            except OSError as error:
                why = f"the files cannot be moved to their places: {error.strerror}"
                raise Refusal("DOWNLOAD_FAILED", why) from None
            finally:
                run.is_moving = False

    async def _attempt(self, key: Key, run: _Run, number: int) -> None:
        """Run one downloader process. Only the first attempt may use the hub's chunk store, because a second attempt
        cannot go on with a file that the chunk store fetched in part.

        Raises:
            Trouble
        """
        run.marks.clear()
        present = run.progress.total_bytes - await self.missing_bytes(run.job)
        with self._hub.call(is_repeated=number > 1) as call:
            try:
                async with running(
                    self._hub.downloaders,
                    self._ask(run.job, use_xet=number == 1),
                    self._settings.download_stall_timeout,
                ) as events:
                    async for event in events:
                        if isinstance(event, DownloadDone):
                            break
                        assert isinstance(event, Progressed)
                        if event.present_bytes > present:
                            call.answered()
                        self._advance(key, run, event.present_bytes)
            except Trouble as trouble:
                if trouble.kind is Kind.UNREACHABLE:
                    call.failed()
                else:
                    call.answered()
                log.warning(
                    "download_attempt_failed",
                    download=key,
                    attempt=number,
                    reason=trouble.reason,
                    cause=trouble.cause,
                )
                raise
            call.answered()

    def _ask(self, job: Job, *, use_xet: bool) -> DownloaderTask:
        pace, reserve = self._settings.download_stall_timeout, self._settings.disk_reserve_mb * MIB
        return DownloaderTask(
            self._settings.hf_endpoint,
            usable(job.token, self._settings.hub_token),
            Download(
                job.repo_id,
                job.sha,
                list(job.files),
                str(job.folder),
                use_xet,
                pace,
                reserve,
                job.repo_type,
            ),
        )

    def _advance(self, key: Key, run: _Run, present: int, *, is_over: bool = False) -> None:
        """Publish the progress of the job. The number never falls, even if a damaged file is fetched again."""
        now, total = time.monotonic(), run.progress.total_bytes
        run.marks.append((now, present))
        while run.marks[0][0] < now - SPEED_SECONDS and len(run.marks) > 2:
            run.marks.popleft()
        (since, before), shown = run.marks[0], max(present, run.progress.downloaded_bytes)
        speed = (present - before) / (now - since) if now > since and present > before else None
        percent = 100 if is_over else percent_of(shown, total)
        run.progress = FetchProgress(shown, total, percent, speed)
        run.on_progress(key, run.progress)

    # ------------------------------------------------------------- its end

    async def _finish(self, key: Key, run: _Run) -> None:
        run.outcome = await self._outcome(key, run)
        del self._runs[key]
        if run.outcome is not None and run.outcome.code == "DOWNLOAD_CANCELLED":
            try:
                self._discard(run)
            except OSError as error:
                # `on_end` must be called even if files could not be removed
                log.error("download_not_removed", download=key, reason=error.strerror)
        try:
            await run.on_end(key, run.outcome)
        except Exception:
            # border: an error of the caller's `on_end` is logged, because nothing awaits this task
            log.exception("download_end_failed", download=key)

    async def _outcome(self, key: Key, run: _Run) -> Refusal | None:
        """Wait for the work, and return why the job did not succeed; None for a success."""
        try:
            await _interruptible(run, self._fetch(key, run))
            if run.read is not None:
                self._advance(key, run, run.progress.total_bytes)
                await _interruptible(run, run.read())
            self._advance(key, run, run.progress.total_bytes, is_over=True)
        except asyncio.CancelledError:
            return run.interruption or _stopping()
        except Refusal as refused:
            return refused
        except Trouble as trouble:
            return refusal(trouble, run.job.repo_id)
        except Exception:  # border of a background task
            log.exception("download_failed", download=key)
            return Refusal("DOWNLOAD_FAILED", "the download failed: an error inside the service")
        return None

    def _discard(self, run: _Run) -> None:
        """Remove the files that an ended download fetched, except files that other downloads into the same folder need.

        Raises:
            OSError
        """
        others = [other.job for other in self._runs.values()]
        shared = {file.path for job in others if job.folder == run.job.folder for file in job.files}
        is_alone = all(job.folder.parent != run.job.folder.parent for job in others)
        files = [file for file in run.job.files if file.path not in shared]
        CommitFolder(run.job.folder).discard(files, tidy=is_alone)


def _keep_begun(job: Job) -> None:
    """Put the beginnings of files that were read before where the downloader finds them."""
    place = CommitFolder(job.folder)
    for file in job.files:
        try:
            place.keep_beginning(file, job.begun.get(file.path, b""))
        except OSError as error:
            # the downloader fetches the beginning again, or says itself why nothing can be written
            log.warning("beginning_not_kept", reason=error.strerror)


async def _interruptible(run: _Run, work: Awaitable[None]) -> None:
    """Do one part of a job's work. If the job was interrupted before, the part is not begun.

    Raises:
        asyncio.CancelledError: the job was interrupted. Errors of the work are raised too.
    """
    run.work = asyncio.ensure_future(work)
    if run.interruption is not None:
        run.work.cancel()
    await run.work


def _wait(state: tenacity.RetryCallState) -> float:
    """Seconds before the next attempt. They double with each attempt. If the hub asks for a longer wait, that wait is
    used; both are at most `LONGEST_WAIT`."""
    error = state.outcome.exception() if state.outcome else None
    asked = error.wait_seconds if isinstance(error, Trouble) else None
    doubled = FIRST_WAIT * 2.0 ** min(state.attempt_number - 1, 10)
    return min(max(doubled, asked or 0.0), LONGEST_WAIT)


def _stopping() -> Refusal:
    return Refusal(
        "SHUTTING_DOWN",
        "the service is shutting down; the download goes on when it is started again",
    )
