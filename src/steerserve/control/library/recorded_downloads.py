"""Downloads that have a record: what the downloads of models and those of SAEs have in common.

The bytes are fetched by `hub.downloads`. This module keeps the downloads under way by the id of their record, has the
fetched files read, and writes into the record how a download ended.
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
from steerserve.hub.job import FetchProgress, Job

__all__ = ["NOT_STORED", "UNREADABLE", "FetchProgress", "RecordedDownloads", "RunningDownload"]

log = structlog.get_logger(__name__)

UNREADABLE = "the downloaded files could not be read; the same request reads them again"
NOT_STORED = "the database could not store how the download ended"

Id = TypeVar("Id", int, str)
Plan = TypeVar("Plan")
Contents = TypeVar("Contents")


@dataclass(slots=True, eq=False)
class RunningDownload(Generic[Plan, Contents]):
    """A download under way. `contents` is what its files say, once they are read; `recorded` is done when the record
    says how the download ended."""

    plan: Plan
    recorded: asyncio.Future[None]
    progress: FetchProgress | None = None
    contents: Contents | None = None


class RecordedDownloads(ABC, Generic[Id, Plan, Contents]):
    """The downloads of one noun. A subclass knows its records, its events and how its files are read.

    `_deciding` is held while a request is compared with the records and its download begins, so that two equal requests
    begin one download.
    """

    def __init__(self, downloads: Downloads) -> None:
        self._downloads = downloads
        self._deciding = asyncio.Lock()
        self._running: dict[Id, RunningDownload[Plan, Contents]] = {}

    def progress(self, record_id: Id) -> FetchProgress | None:
        """How far a running download is. Reading the fetched files is a part of the download."""
        running = self._running.get(record_id)
        if running is None:
            return None
        return self._downloads.progress(record_id) or running.progress

    async def stop(self, record_id: Id) -> bool:
        """Cancel the download of a record and remove what it fetched. Whether there was one to cancel.

        Returns when the record says how the download ended.
        """
        is_cancelled = await self._downloads.cancel(record_id)
        running = self._running.get(record_id)
        if running is not None:
            await asyncio.shield(running.recorded)
        return is_cancelled

    # ------------------------------------------------------------- what a noun says

    @abstractmethod
    async def _read(self, plan: Plan) -> Contents:
        """Read the fetched files; a cancelled download cancels this too.

        Raises:
            Refusal: the files are of no use, or SHUTTING_DOWN.
        """

    @abstractmethod
    async def _keep(self, record_id: Id, plan: Plan, contents: Contents) -> None:
        """Write what the files say into the record, and publish that the download is complete.

        Raises:
            Refusal: nothing of the download can be used.
        """

    @abstractmethod
    async def _discard(self, record_id: Id, plan: Plan) -> None:
        """Remove the files of a cancelled download."""

    @abstractmethod
    async def _fail(self, record_id: Id, refusal: Refusal, *, is_published: bool = True) -> None:
        """Write into the record why its download failed, and publish it."""

    @abstractmethod
    def _publish_progress(self, record_id: Id, progress: FetchProgress) -> None:
        """Tell how far a download is."""

    # ------------------------------------------------------------- the course of a download

    async def _start(self, record_id: Id, plan: Plan, job: Job) -> None:
        """Begin the download of a record.

        Raises:
            Refusal: what `Downloads.start` refuses; the record says so then.
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
        Refusal: what `_read` refuses, DOWNLOAD_FAILED for any other error of reading.
        """
        try:
            running.contents = await self._read(running.plan)
        except Refusal:
            raise
        except Exception as error:
            # the files come from strangers: whatever reading them raises, the download must have an end
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
        """Keep what a download brought, or remove what is of no use. Why the download failed, if so."""
        try:
            if refusal is None:
                assert running.contents is not None
                await self._keep(record_id, running.plan, running.contents)
            elif refusal.code == "DOWNLOAD_CANCELLED":
                await self._discard(record_id, running.plan)
        except Refusal as unusable:
            return unusable
        except Exception:
            # whatever the disk or the database does: the download must have an end
            log.exception("download_not_recorded", record=record_id)
            return refusal or Refusal("DOWNLOAD_FAILED", UNREADABLE)
        return refusal
