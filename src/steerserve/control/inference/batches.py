"""Owner of the batches that run: it begins them, goes on with them after a restart, cancels them, and deletes them by
age."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import structlog

from steerserve.control.inference.batch_models import PAUSE_SECONDS, BatchModels
from steerserve.control.inference.batch_run import BatchParts, BatchRun, LineRunner
from steerserve.control.inference.queue import Queue
from steerserve.database.batches import BatchRow, BatchStore
from steerserve.database.catalog import Clock
from steerserve.database.files import UPLOADED, FileRow, FileStore
from steerserve.errors import Refusal
from steerserve.logs import background
from steerserve.rules.inference import batches as rules
from steerserve.rules.inference.batches import UNFINISHED, BatchStatus, LineFault
from steerserve.settings import Settings

__all__ = ("UPLOADED", "BatchRow", "Batches", "FileRow")
log = structlog.get_logger(__name__)
HOUSEKEEPING_SECONDS = 600.0
"""Seconds between two looks for what has expired."""


class Batches:
    """Runs batches, each in a task of its own. Their lines yield to all other requests. `store` and `files` have what
    is stored of batches and of files."""

    def __init__(
        self,
        settings: Settings,
        store: BatchStore,
        files: FileStore,
        models: BatchModels,
        queue: Queue,
        now: Clock,
    ) -> None:
        self._settings = settings
        self.store = store
        self.files = files
        self._models = models
        self._queue = queue
        self._now = now
        self._runner: LineRunner | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._housekeeping: asyncio.Task[None] | None = None
        self._is_closing = False

    @property
    def _keeps(self) -> timedelta:
        return timedelta(days=self._settings.batch_keep_days)

    def run_lines_by(self, runner: LineRunner) -> None:
        """Name who runs lines."""
        self._runner = runner

    def resume_batches(self) -> None:
        """Go on with the batches that are not over, and keep house from now on."""
        self._housekeeping = background.start(self._keep_house())

    # ------------------------------------------------------------- files

    async def add_file(self, filename: str, content: bytes, seconds: int | None) -> FileRow:
        """Store an uploaded file, for so many seconds.

        Raises:
            Refusal: DOCUMENT_STORE_FULL, INSUFFICIENT_DISK.
        """
        lasts = self._keeps if seconds is None else timedelta(seconds=seconds)
        return await self.files.add(filename, content, self._now() + lasts)

    async def content(self, file_id: str) -> tuple[FileRow, AsyncIterator[bytes]]:
        """A file with its content, part by part.

        Raises:
            Refusal: FILE_NOT_FOUND.
        """
        file = await self.files.get(file_id)
        if file.batch_id is None:
            return file, self.files.parts(file.id)
        return file, self.store.lines(file.batch_id, are_failed=file.is_of_failed)

    async def remove_file(self, file_id: str) -> None:
        """Raises:
        Refusal: FILE_NOT_FOUND, FILE_IN_USE.
        """
        await self.files.remove(await self.files.get(file_id))

    # ------------------------------------------------------------- batches

    async def create(
        self,
        endpoint: str,
        input_file_id: str,
        client: str,
        metadata: dict[str, str] | None,
        output_seconds: int | None,
        *,
        is_strict: bool | None,
    ) -> BatchRow:
        """A new batch, whose check begins. `is_strict` says whether its lines may have unused fields; where it is None,
        they may have those that are not nearly steering fields.

        Raises:
            Refusal: FILE_NOT_FOUND, TOO_MANY_BATCHES, DOCUMENT_STORE_FULL, INSUFFICIENT_DISK, SHUTTING_DOWN;
                INVALID_PARAMETER for a file that a batch wrote.
        """
        if self._is_closing:
            raise Refusal("SHUTTING_DOWN", "the service is shutting down")
        file = await self.files.get(input_file_id)
        if file.purpose != UPLOADED:
            why = f"input_file_id: the purpose of the file is {file.purpose}, not {UPLOADED}"
            raise Refusal("INVALID_PARAMETER", why, param="input_file_id")
        row = await self.store.add(
            endpoint,
            file.id,
            client,
            metadata,
            output_seconds,
            rules.WINDOW,
            self._settings.max_unfinished_batches,
            is_strict,
        )
        self._spawn(row.id)
        return row

    async def cancel(self, batch_id: str) -> BatchRow:
        """Cancel a batch. What is answered is kept.

        Raises:
            Refusal: BATCH_NOT_FOUND, BATCH_OVER.
        """
        row = await self.store.get(batch_id)
        rules.may_cancel(row.id, row.status)
        row = await self.store.cancelling(row)
        rules.may_cancel(row.id, row.status)
        self._spawn(row.id)
        return row

    async def close(self) -> None:
        """Stop. What is not answered yet is answered after the next start."""
        self._is_closing = True
        running = list(self._tasks.values())
        if self._housekeeping is not None:
            running.append(self._housekeeping)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    # ------------------------------------------------------------- inside

    def _spawn(self, batch_id: str) -> None:
        """Carry out a batch from the state that the database has. A task that carries it out already is ended."""
        if self._is_closing:
            return
        former = self._tasks.get(batch_id)
        if former is not None:
            former.cancel()
        task = background.start(self._run(batch_id, former), name=batch_id)
        self._tasks[batch_id] = task
        task.add_done_callback(lambda done: self._ended(batch_id, done))

    def _ended(self, batch_id: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(batch_id) is task:
            del self._tasks[batch_id]

    async def _run(self, batch_id: str, former: asyncio.Task[None] | None) -> None:
        if former is not None:
            await asyncio.wait([former])
        has_failed = False
        while True:
            try:
                if has_failed:
                    await self._fail(batch_id)
                else:
                    await self._carry_out(await self.store.get(batch_id))
                return
            except Refusal as refusal:
                if refusal.code == "BATCH_NOT_FOUND":
                    return
                why = refusal.message
                log.warning("batch_waits", batch_id=batch_id, code=refusal.code, reason=why)
            except Exception:
                # border of a task in the background: the batch fails, and the service goes on
                log.exception("batch_failed", batch_id=batch_id)
                if not has_failed:
                    has_failed = True
                    continue
            await asyncio.sleep(PAUSE_SECONDS)

    async def _carry_out(self, row: BatchRow) -> None:
        if row.status == BatchStatus.CANCELLING:
            await self.store.end(row, BatchStatus.CANCELLED, self._keeps)
        if row.status not in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS):
            return
        assert self._runner is not None
        run = BatchRun(
            row,
            BatchParts(
                self._settings, self.store, self.files, self._models, self._queue, self._runner
            ),
        )
        ending = BatchStatus.COMPLETED
        try:
            async with asyncio.timeout((row.expires_at - self._now()).total_seconds()) as window:
                if row.status == BatchStatus.VALIDATING:
                    await run.check_input()
                if run.row.status == BatchStatus.FAILED:
                    return
                await run.answer()
        except TimeoutError:
            if not window.expired():
                raise
            run.row = await self.store.get(row.id)
            if self._now() < row.expires_at:  # the clock was set back meanwhile
                await self._carry_out(run.row)
                return
            await run.expire()
            ending = BatchStatus.EXPIRED
        await self.store.end(run.row, ending, self._keeps)

    async def _fail(self, batch_id: str) -> None:
        row = await self.store.get(batch_id)
        if row.status in UNFINISHED:
            fault = LineFault("internal_error", "an error inside the service; its log says more")
            await self.store.end(row, BatchStatus.FAILED, self._keeps, errors=(fault,))

    async def _keep_house(self) -> None:
        has_begun = False
        while True:
            seconds = HOUSEKEEPING_SECONDS
            try:
                if not has_begun:
                    for batch_id in await self.store.unfinished():
                        if batch_id not in self._tasks:
                            self._spawn(batch_id)
                has_begun = True
                await self.files.forget()
                await self.store.forget(self._now() - self._keeps - rules.WINDOW)
            except Refusal:
                seconds = PAUSE_SECONDS  # the log has the fault of the database
            await asyncio.sleep(seconds)
