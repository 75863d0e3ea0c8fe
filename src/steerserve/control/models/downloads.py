"""Fetches models from the hub in the background, cancels such downloads, and removes the files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog
from msgspec import UNSET

from steerserve.control.bus import Bus
from steerserve.control.models.events import (
    DownloadComplete,
    DownloadError,
    DownloadFailure,
    DownloadProgress,
)
from steerserve.control.models.plan import (
    ModelPlan,
    ModelRequest,
    already_exists,
    is_cancelled,
    is_empty,
    make_plan,
    name_of,
    pinned_name,
    same_model,
    standing_at_other_commit,
    values_of,
)
from steerserve.control.models.recorded_downloads import NOT_STORED, RecordedDownloads
from steerserve.control.models.records import checkpoint_values, gguf_values
from steerserve.control.residency.records import noted
from steerserve.database.catalog import Catalog, ModelRow
from steerserve.errors import Refusal
from steerserve.files.folder import CommitFolder, folder_of
from steerserve.hub.client import Hub
from steerserve.hub.described import Repository
from steerserve.hub.downloads import Downloads
from steerserve.rules.inference.names import GGUF
from steerserve.rules.models import gguf, naming, remote_code
from steerserve.rules.models import status as model_status
from steerserve.rules.models.downloads import FetchProgress
from steerserve.rules.models.precision import StoredTensor
from steerserve.rules.models.repository import RepoFile
from steerserve.rules.models.status import AFTER, Event
from steerserve.settings import Settings

log = structlog.get_logger(__name__)


class ModelDownloads(RecordedDownloads[int, ModelPlan, dict[str, object]]):
    """Downloads of models and their records."""

    def __init__(
        self, settings: Settings, catalog: Catalog, hub: Hub, bus: Bus, downloads: Downloads
    ) -> None:
        super().__init__(downloads)
        self._settings = settings
        self._catalog = catalog
        self._hub = hub
        self._bus = bus

    async def describe(self, repo_id: str, revision: str | None, token: str | None) -> Repository:
        """The hub's description of a repository. Every file name in the description has been checked.

        Raises:
            Refusal: VALIDATION_ERROR for the name, REPO_NOT_FOUND, GATED_MODEL_NO_TOKEN, INVALID_HUB_TOKEN,
                HUB_UNAVAILABLE, DOWNLOAD_FAILED for a malformed repository.
        """
        return await self._hub.describe(repo_id, revision, token)

    async def header(
        self, listed: Repository, file: RepoFile, token: str | None
    ) -> Sequence[StoredTensor]:
        """The tensors of a safetensors file, read from the hub without the rest of the file.

        Raises:
            Refusal: what `describe` raises.
        """
        return (await self._hub.header(listed.repo_id, listed.sha, file, token)).tensors

    async def begin_download(self, request: ModelRequest) -> ModelRow:
        """Register a model and begin its download, or go on with a download that had failed.

        Raises:
            Refusal: what `describe` raises, MODEL_ALREADY_EXISTS, INSUFFICIENT_DISK, VALIDATION_ERROR for the label or
                the name.
        """
        if request.custom_name is not None:
            naming.check_name(request.custom_name)
        may_run_code = self._settings.may_run_remote_code
        remote_code.check_wanted(request.trust_remote_code, is_allowed=may_run_code)
        listed = await self.describe(request.repo_id, request.revision, request.token)
        plan = await asyncio.to_thread(make_plan, listed, request, self._settings.model_cache_dir)
        async with self._deciding:
            rows = await self._catalog.models()
            same = same_model(plan, rows)
            standing = await self._standing(plan, request, same)
            await self._downloads.check_disk(plan.job)
            values = values_of(plan, request)
            if standing is not None:
                row = await self._renew(standing, request, values)
            else:
                # for a request without a revision, `_standing` has returned or refused every other record of the model
                is_second = bool(same) and request.revision is not None
                name = (
                    pinned_name(request, same[0], listed.sha)
                    if is_second
                    else name_of(plan, request, rows)
                )
                row = await self._catalog.add_model(name=name, source="huggingface", **values)
            await self._start(row.id, plan, plan.job)
        return row

    async def cancel(self, model_id: int) -> tuple[ModelRow, bool]:
        """Cancel a running download and remove its files. Returns the record, and whether a download was cancelled.

        Raises:
            Refusal: MODEL_NOT_FOUND.
        """
        await self._catalog.model(model_id)
        is_cancelled = await self.stop(model_id)
        return await self._catalog.model(model_id), is_cancelled

    @asynccontextmanager
    async def stopped(self, model_id: int) -> AsyncIterator[ModelRow]:
        """Cancel the download of a record, and give the record. No download begins inside the block."""
        async with self._deciding:
            await self.stop(model_id)
            yield await self._catalog.model(model_id)

    async def remove_files(self, row: ModelRow) -> None:
        """Remove the files of a model, except files that other registered models use."""
        if row.source != "huggingface" or row.repo_id is None or row.revision is None:
            return
        folder = folder_of(self._settings.model_cache_dir, row.repo_id, row.revision)
        others = [
            other
            for other in await self._catalog.models()
            if (other.repo_id, other.revision) == (row.repo_id, row.revision)
            and other.id != row.id
            and not is_cancelled(other)
        ]
        await asyncio.to_thread(_remove, folder, row, others)

    # ------------------------------------------------------------- before a download

    async def _standing(
        self, plan: ModelPlan, request: ModelRequest, same: Sequence[ModelRow]
    ) -> ModelRow | None:
        """The record whose download this request continues, because that download failed or its files are gone. None if
        the request needs a new record.

        (1) A record of the same commit comes first. (2) A request that names a revision concerns that commit only. (3)
        If a download failed and the branch has moved on since, the record gets the new commit of the branch. (4) If any
        other record has the same repository and quantization, the model is registered already.

        Raises:
            Refusal: MODEL_ALREADY_EXISTS.
        """
        commit = plan.repository.sha
        exact = next((row for row in same if row.revision == commit), None)  # (1)
        if exact is not None:
            if model_status.may_go_on(exact.status, await self._is_whole(exact, plan)):
                return exact
            raise already_exists(exact)
        if request.revision is not None:  # (2)
            return None
        other = standing_at_other_commit(same)
        if other is None or is_empty(other):  # (3)
            return other
        raise already_exists(other)  # (4)

    async def _renew(
        self, row: ModelRow, request: ModelRequest, values: dict[str, object]
    ) -> ModelRow:
        """Prepare a record whose download failed for another download."""
        if row.revision != values["revision"]:
            await self.remove_files(row)
        name = row.name
        if request.custom_name is not None:
            name = request.custom_name + naming.pin_of(row.name, row.revision)
        return await self._catalog.change_model(row.id, name=name, **values)

    async def _is_whole(self, row: ModelRow, plan: ModelPlan) -> bool:
        """Whether the files that a registered model is loaded from are all there."""
        if row.local_path is None:
            return False
        # Python files may be absent: they are fetched only if the operator trusts the repository's code
        needed = tuple(file for file in plan.job.files if not file.path.endswith(".py"))
        return not await self._downloads.missing_bytes(replace(plan.job, files=needed))

    # ------------------------------------------------------------- the course of a download

    async def _read(self, plan: ModelPlan) -> dict[str, Any]:
        try:
            return await asyncio.to_thread(_facts, plan)
        except Refusal as unusable:
            raise Refusal("DOWNLOAD_FAILED", unusable.message, cause=unusable.code) from unusable

    async def _keep(self, record_id: int, plan: ModelPlan, contents: dict[str, Any]) -> None:
        if not await self._write(record_id, Event.DOWNLOADED, error_message=None, **contents):
            raise Refusal("DOWNLOAD_FAILED", NOT_STORED)
        self._bus.publish(DownloadComplete(record_id, contents["local_path"]))

    async def _discard(self, record_id: int, plan: ModelPlan) -> None:
        await self.remove_files(await self._catalog.model(record_id))

    async def _fail(self, record_id: int, refusal: Refusal, *, is_published: bool = True) -> None:
        is_cancelled = refusal.code == "DOWNLOAD_CANCELLED"
        event = Event.CANCELLED if is_cancelled else Event.DOWNLOAD_FAILED
        ended = {"error_message": refusal.message, "download_error": refusal.code}
        await self._write(record_id, event, **ended)
        if is_published:
            self._bus.publish(
                DownloadError(
                    record_id, DownloadFailure(refusal.code, refusal.message, refusal.details)
                )
            )

    def _publish_progress(self, record_id: int, progress: FetchProgress) -> None:
        speed = UNSET if progress.speed_bps is None else int(progress.speed_bps)
        self._bus.publish(
            DownloadProgress(
                record_id,
                progress.percent,
                progress.downloaded_bytes,
                progress.total_bytes,
                speed,
            )
        )

    async def _write(self, model_id: int, event: Event, **values: object) -> bool:
        """Write into the record what happened to the model. Returns whether the database stored it; if not, the next
        start of the service repairs the status."""
        change = self._catalog.change_model(model_id, status=AFTER[event], **values)
        return await noted(change, model_id=model_id) is not None


def _facts(plan: ModelPlan) -> dict[str, object]:
    """The record's values from the fetched files. If the files give no parameter count, the hub's count is kept.

    Raises:
        Refusal: INVALID_LOCAL_PATH when the files are malformed.
    """
    job = plan.job
    if plan.label is not None:
        return gguf_values([job.folder / file.path for file in job.files], plan.label)
    values = checkpoint_values(job.folder, plan.precision)
    return values | {"num_parameters": values["num_parameters"] or plan.repository.parameters}


def _remove(folder: Path, row: ModelRow, others: Sequence[ModelRow]) -> None:
    """Remove the files of this model that no other model uses: whole files, and parts that an interrupted download
    left."""
    place = CommitFolder(folder)
    try:
        if not others:
            place.remove_all()
        elif all((o.engine, o.gguf_label) != (row.engine, row.gguf_label) for o in others):
            place.remove(_own_files(folder, row))
    except OSError as error:
        # the record is gone already, so the files that stay only take disk space
        log.error("files_not_removed", model=row.name, reason=type(error).__name__)


def _own_files(folder: Path, row: ModelRow) -> list[RepoFile]:
    """The files of a model that shares its folder with models of another engine or label."""
    own = []
    for path in [f.relative_to(folder).as_posix() for f in folder.rglob("*") if f.is_file()]:
        named = gguf.classify(path)
        is_gguf = path.lower().endswith(".gguf")
        is_label = (named.label or named.base) == row.gguf_label
        if is_label if row.engine == GGUF else not is_gguf:
            own.append(RepoFile(path, None))
    return own
