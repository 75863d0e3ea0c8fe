"""Downloads that have a record: the code that downloads of models and downloads of SAEs share.

`hub.downloads` fetches the bytes. This module keeps the running downloads by the id of their record, has the fetched
files read, and writes into the record how a download ended.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import structlog

from steerserve.errors import Refusal
from steerserve.hub.downloads import Downloads
from steerserve.hub.job import Job
from steerserve.rules.models.downloads import FetchProgress

__all__ = ["NOT_STORED", "UNREADABLE", "RecordedDownloads", "RunningDownload"]

log = structlog.get_logger(__name__)

UNREADABLE = "the downloaded files could not be read; the same request reads them again"
NOT_STORED = "the database could not store how the download ended"

Id = TypeVar("Id", int, str)
Plan = TypeVar("Plan")
Contents = TypeVar("Contents")


@dataclass(slots=True, eq=False)
class RunningDownload(Generic[Plan, Contents]):
    """A running download. `contents` has the facts from its files, once they are read. The future `recorded` is done
    when the record says how the download ended."""

    plan: Plan
    recorded: asyncio.Future[None]
    progress: FetchProgress | None = None
    contents: Contents | None = None


class RecordedDownloads(ABC, Generic[Id, Plan, Contents]):
    """The downloads of one noun (models or SAEs). A subclass knows the records, the events, and how to read the files.

    `_deciding` is held while a request is compared with the records and its download begins, so that two equal requests
    begin one download.
    """

    def __init__(self, downloads: Downloads) -> None:
        self._downloads = downloads
        self._deciding = asyncio.Lock()
        self._running: dict[Id, RunningDownload[Plan, Contents]] = {}

    def progress(self, record_id: Id) -> FetchProgress | None:
        """The progress of a running download. The download runs until its fetched files have been read."""
        running = self._running.get(record_id)
        if running is None:
            return None
        return self._downloads.progress(record_id) or running.progress

    async def stop(self, record_id: Id) -> bool:
        """Cancel the download of a record and remove the files it fetched. The answer says whether a download was
        cancelled.

        The call returns only when the record says how the download ended.
        """
        is_cancelled = await self._downloads.cancel(record_id)
        await self.until_ended(record_id)
        return is_cancelled

    async def until_ended(self, record_id: Id) -> None:
        """Return when the record says how its download ended. Without a running download, return at once."""
        running = self._running.get(record_id)
        if running is not None:
            await asyncio.shield(running.recorded)

    # ------------------------------------------------------------- what a subclass defines

    @abstractmethod
    async def _read(self, plan: Plan) -> Contents:
        """Read the fetched files. If the download is cancelled, this call is cancelled too.

        Raises:
            Refusal: the files cannot be used, or SHUTTING_DOWN.
        """

    @abstractmethod
    async def _keep(self, record_id: Id, plan: Plan, contents: Contents) -> None:
        """Write the facts from the files into the record, and publish that the download is complete.

        Raises:
            Refusal: nothing of the download can be used.
        """

    @abstractmethod
    async def _discard(self, record_id: Id, plan: Plan) -> None:
        """Remove the files of a cancelled download."""

    @abstractmethod
    async def _fail(self, record_id: Id, refusal: Refusal, *, is_published: bool = True) -> None:
        """Write into the record why its download failed, and publish the failure."""

    @abstractmethod
    def _publish_progress(self, record_id: Id, progress: FetchProgress) -> None:
        """Publish the progress of a download."""

    # ------------------------------------------------------------- the course of a download

    async def _start(self, record_id: Id, plan: Plan, job: Job) -> None:
        """Begin the download of a record.

        Raises:
            Refusal: a refusal of `Downloads.start`, which is also written into the record.
        """
        recorded = asyncio.get_running_loop().create_future()
        running: RunningDownload[Plan, Contents] = RunningDownload(plan, recorded)
        self._running[record_id] = running
        try:
            await self._downloads.start(
                record_id,
                job,
                partial(self._on_progress, running),
                partial(self._on_end, running),
                partial(self._on_fetched, record_id, running),
            )
        except BaseException as error:
            self._running.pop(record_id).recorded.set_result(None)
            if isinstance(error, Refusal):
                await self._fail(record_id, error, is_published=False)
            raise

    def _on_progress(
        self, running: RunningDownload[Plan, Contents], record_id: Id, progress: FetchProgress
    ) -> None:
        running.progress = progress
        self._publish_progress(record_id, progress)

    async def _on_fetched(self, record_id: Id, running: RunningDownload[Plan, Contents]) -> None:
        """Raises:
        Refusal: a refusal of `_read`, or DOWNLOAD_FAILED for any other error of reading.
        """
        try:
            running.contents = await self._read(running.plan)
        except Refusal:
            raise
        except Exception as error:
            # the files are untrusted, so reading them may raise anything; the download must end all the same
            log.exception("downloaded_files_unreadable", record=record_id)
            raise Refusal("DOWNLOAD_FAILED", UNREADABLE) from error

    async def _on_end(
        self,
        running: RunningDownload[Plan, Contents],
        record_id: Id,
        refusal: Refusal | None,
    ) -> None:
        """Write into the record how its download ended."""
        try:
            if refusal is not None and refusal.code == "SHUTTING_DOWN":
                return  # the next start writes that the download was interrupted
            refusal = await self._settle(running, record_id, refusal)
            if refusal is not None:
                await self._fail(record_id, refusal)
        finally:
            self._running.pop(record_id).recorded.set_result(None)

    async def _settle(
        self,
        running: RunningDownload[Plan, Contents],
        record_id: Id,
        refusal: Refusal | None,
    ) -> Refusal | None:
        """Keep the files of a successful download, or remove those of a cancelled one. Returns why the download failed,
        or None for a success."""
        try:
            if refusal is None:
                assert running.contents is not None
                await self._keep(record_id, running.plan, running.contents)
            elif refusal.code == "DOWNLOAD_CANCELLED":
                await self._discard(record_id, running.plan)
        except Refusal as unusable:
            return unusable
        except Exception:
            # the download must end, whatever error the disk or the database raised
            log.exception("download_not_recorded", record=record_id)
            return refusal or Refusal("DOWNLOAD_FAILED", UNREADABLE)
        return refusal
