"""Models from the hub: what a repository offers, fetching it in the background, giving up, and removing it again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from steerserve.control.bus import Bus, DownloadComplete, DownloadError, DownloadProgress
from steerserve.control.residency import fitting
from steerserve.control.residency.records import noted
from steerserve.errors import Refusal
from steerserve.files import gguf as gguf_files
from steerserve.files import local, weights
from steerserve.files.folder import CommitFolder, folder_of
from steerserve.hub.client import Hub, Repository
from steerserve.hub.downloads import Downloads, FetchProgress, Job
from steerserve.rules import gguf, model_status, naming, repository
from steerserve.rules.fields import CHECKPOINT, GGUF
from steerserve.rules.model_status import AFTER, Event
from steerserve.rules.repository import RepoFile
from steerserve.rules.units import MIB
from steerserve.settings import Settings
from steerserve.store.catalog import Catalog, ModelRow

__all__ = ["FetchProgress", "ModelDownloads", "ModelRequest"]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A model asked of the hub. `precision` None is what the repository suggests; the token is used and dropped."""

    repo_id: str
    revision: str | None = None
    precision: str | None = None
    gguf_label: str | None = None
    custom_name: str | None = None
    trust_remote_code: bool = False
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of a repository that one model needs; `label` is that of a GGUF model."""

    files: tuple[RepoFile, ...]
    label: str | None

    @property
    def size_bytes(self) -> int:
        return sum(file.size or 0 for file in self.files)


class ModelDownloads:
    """Downloads of models and their records. The bytes are fetched by `downloads`, which fetches SAEs too."""

    def __init__(
        self, settings: Settings, catalog: Catalog, hub: Hub, bus: Bus, downloads: Downloads
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._hub = hub
        self._bus = bus
        self._downloads = downloads
        self._adding = asyncio.Lock()

    def progress(self, model_id: int) -> FetchProgress | None:
        """How far a running download is."""
        return self._downloads.progress(model_id)

    async def describe(self, repo_id: str, revision: str | None, token: str | None) -> Repository:
        """What the hub says of a repository; every file name in it has been checked.

        Raises:
            Refusal: VALIDATION_ERROR for the name, REPO_NOT_FOUND, GATED_MODEL_NO_TOKEN, INVALID_HUB_TOKEN,
                HUB_UNAVAILABLE, DOWNLOAD_FAILED for a repository that is not what it should be.
        """
        return await self._hub.describe(repo_id, revision, token)

    async def add(self, wanted: ModelRequest) -> ModelRow:
        """Register a model and begin its download, or go on with one that had failed.

        Raises:
            Refusal: what `describe` raises, MODEL_ALREADY_EXISTS, INSUFFICIENT_DISK, VALIDATION_ERROR for the label or
                the name.
        """
        if wanted.custom_name is not None:
            naming.check_name(wanted.custom_name)
        found = await self.describe(wanted.repo_id, wanted.revision, wanted.token)
        chosen = choose(found, wanted)
        folder = folder_of(self._settings.model_cache_dir, found.repo_id, found.sha)
        job = Job(found.repo_id, found.sha, chosen.files, folder, wanted.token)
        async with self._adding:
            before = await self._before(found, chosen, wanted, job)
            await self._downloads.check_disk(job)
            values = self._values(found, chosen, wanted)
            if before is not None:
                if before.revision != found.sha:
                    await self.remove(before)
                row = await self._catalog.change_model(
                    before.id, name=wanted.custom_name or before.name, **values
                )
            else:
                name = await self._name(found, chosen, wanted)
                row = await self._catalog.add_model(name=name, source="huggingface", **values)
            try:
                ended = partial(self._end, job)
                await self._downloads.start(row.id, job, self._on_progress, ended)
            except Refusal as refusal:
                await self._record(row.id, Event.DOWNLOAD_FAILED, error_message=refusal.message)
                raise
        return row

    async def cancel(self, row: ModelRow) -> ModelRow:
        """Give a running download up; nothing of it stays. A model in any other status is left as it is."""
        await self._downloads.cancel(row.id)
        return await self._catalog.model(row.id)

    @asynccontextmanager
    async def settled(self, model_id: int) -> AsyncIterator[ModelRow]:
        """The record, its download given up if it ran; no download begins while this is open."""
        async with self._adding:
            yield await self.cancel(await self._catalog.model(model_id))

    async def remove(self, row: ModelRow) -> None:
        """Remove the files of a model that is no longer registered; what other models use stays."""
        if row.source != "huggingface" or row.repo_id is None or row.revision is None:
            return
        folder = folder_of(self._settings.model_cache_dir, row.repo_id, row.revision)
        others = [
            other
            for other in await self._catalog.models()
            if (other.repo_id, other.revision) == (row.repo_id, row.revision) and other.id != row.id
        ]
        await asyncio.to_thread(_remove, folder, row, others)

    # ------------------------------------------------------------- inside

    async def _before(
        self, found: Repository, chosen: ModelFiles, wanted: ModelRequest, job: Job
    ) -> ModelRow | None:
        """The record of the same download that had failed, or whose files are gone, if there is one. A branch may have
        moved on since: then the failed record moves with it.

        Raises:
            Refusal: MODEL_ALREADY_EXISTS.
        """
        precision = _precision(chosen, wanted)
        same = [
            row
            for row in await self._catalog.models()
            if (row.repo_id, row.quantization, row.gguf_label)
            == (found.repo_id, precision, chosen.label)
        ]
        failed = [row for row in same if row.local_path is None and row.status == "error"]
        for row in [row for row in same if row.revision == found.sha]:
            # code that was not trusted before is no loss
            needed = replace(job, files=tuple(f for f in job.files if not f.path.endswith(".py")))
            is_whole = row.local_path is not None and not await self._downloads.missing_bytes(
                needed
            )
            if model_status.may_go_on(row.status, is_whole):
                return row
            raise Refusal(
                "MODEL_ALREADY_EXISTS",
                f"{found.repo_id} is registered at this precision as {row.name!r}",
                model_id=row.id,
                quantization=row.quantization,
            )
        return failed[0] if failed and wanted.revision is None else None

    async def _name(self, found: Repository, chosen: ModelFiles, wanted: ModelRequest) -> str:
        """What `/v1` calls the model: the repository's last part, or all of it when another model has that name."""
        if wanted.custom_name is not None:
            return wanted.custom_name
        rows = await self._catalog.models()
        short = found.repo_id.rpartition("/")[2]
        strangers = {row.name for row in rows if row.repo_id != found.repo_id}
        bare = {name.rpartition(":")[0] for name in strangers} | strangers
        name = found.repo_id if short in bare else short
        if chosen.label is not None:
            return f"{name}:{chosen.label}"
        # a second precision of the same repository is named by it
        is_taken = any(row.name == name for row in rows)
        return f"{name}:{_precision(chosen, wanted)}" if is_taken else name

    def _values(
        self, found: Repository, chosen: ModelFiles, wanted: ModelRequest
    ) -> dict[str, Any]:
        return {
            "repo_id": found.repo_id,
            "revision": found.sha,
            "quantization": _precision(chosen, wanted),
            "engine": GGUF if chosen.label else CHECKPOINT,
            "gguf_label": chosen.label,
            "trust_remote_code": wanted.trust_remote_code,
            "local_path": None,
            "architecture": next(iter(found.architectures), None) or found.gguf_architecture,
            "num_parameters": found.parameters,
            "disk_size_mb": -(-chosen.size_bytes // MIB),
            "estimated_memory_mb": -(-chosen.size_bytes // MIB),
            "supports_embeddings": True,
            "status": AFTER[Event.REQUESTED],
            "error_message": None,
        }

    def _on_progress(self, model_id: int, progress: FetchProgress) -> None:
        self._bus.publish(
            DownloadProgress(
                model_id,
                progress.percent,
                progress.downloaded_bytes,
                progress.total_bytes,
                None if progress.speed_bps is None else int(progress.speed_bps),
            )
        )

    async def _end(self, job: Job, model_id: int, refusal: Refusal | None) -> None:
        """Write how a download ended into its record, and tell."""
        if refusal is not None and refusal.code == "SHUTTING_DOWN":
            return  # the next start says that it was interrupted
        if refusal is None:
            try:
                row = await self._catalog.model(model_id)
                values = await asyncio.to_thread(_facts, row, job)
            except Refusal as unusable:
                refusal = Refusal("DOWNLOAD_FAILED", unusable.message, cause=unusable.code)
            except Exception:
                # files from strangers: whatever reading them raises, the download must have an end
                log.exception("downloaded_files_unreadable", model_id=model_id)
                refusal = Refusal("DOWNLOAD_FAILED", "the downloaded files cannot be read")
            else:
                if await self._record(model_id, Event.DOWNLOADED, error_message=None, **values):
                    self._bus.publish(DownloadComplete(model_id, values["local_path"]))
                    return
                refusal = Refusal("DOWNLOAD_FAILED", "the database could not take the note of it")
        cancelled = refusal.code == "DOWNLOAD_CANCELLED"
        event = Event.CANCELLED if cancelled else Event.DOWNLOAD_FAILED
        await self._record(model_id, event, error_message=refusal.message)
        self._bus.publish(DownloadError(model_id, refusal.code, refusal.message, refusal.details))

    async def _record(self, model_id: int, event: Event, **values: Any) -> bool:
        """Note what happened to the model; whether the database took it. If not, the next start repairs the status."""
        changed = self._catalog.change_model(model_id, status=AFTER[event], **values)
        return await noted(changed, model_id=model_id) is not None


def choose(found: Repository, wanted: ModelRequest) -> ModelFiles:
    """The files to fetch: those of the GGUF label asked for, else a checkpoint's, else the only GGUF there is.

    Raises:
        Refusal: VALIDATION_ERROR naming the labels, DOWNLOAD_FAILED when there is nothing to load.
    """
    listing = offered(found.files)
    if wanted.gguf_label is not None:
        variant = gguf.choose(listing, wanted.gguf_label)
    elif repository.has_weights(found.files) or not listing.variants:
        trusted = wanted.trust_remote_code
        return ModelFiles(repository.checkpoint_files(found.files, trust_remote_code=trusted), None)
    else:
        variant = gguf.only(listing)
    listed = {file.path: file for file in found.files}
    # in the order of the shards: the first one is what is loaded
    return ModelFiles(tuple(listed[file.path] for file in variant.files), variant.name)


def offered(files: Sequence[RepoFile]) -> gguf.GgufListing:
    """The GGUF models of a repository."""
    return gguf.variants((file.path, file.size or 0) for file in files)


def _precision(chosen: ModelFiles, wanted: ModelRequest) -> str:
    if chosen.label is not None:
        return gguf.precision_of(chosen.label)
    return wanted.precision or "FP16"


def _facts(row: ModelRow, job: Job) -> dict[str, Any]:
    """What a fetched model is, read from its files; what the record says already stays.

    Raises:
        Refusal: INVALID_LOCAL_PATH when it is not what it should be.
    """
    if row.engine == GGUF:
        return gguf_values([job.folder / file.path for file in job.files], row.gguf_label)
    found = checkpoint_values(job.folder, row.quantization)
    return found | {"num_parameters": found["num_parameters"] or row.num_parameters}


def checkpoint_values(path: Path, quantization: str) -> dict[str, Any]:
    """A checkpoint folder as the values of a record.

    Raises:
        Refusal: INVALID_LOCAL_PATH.
    """
    folder = local.read_model(path)
    return {
        "local_path": str(path),
        "architecture": folder.architecture,
        "num_parameters": folder.parameters,
        "dtype": folder.dtype,
        "disk_size_mb": -(-folder.size_bytes // MIB),
        "estimated_memory_mb": fitting.estimated_memory_mb(weights.read(path), quantization),
    }


def gguf_values(files: Sequence[Path], label: str | None) -> dict[str, Any]:
    """A GGUF model as the values of a record; without a label its header's counts.

    Raises:
        Refusal: INVALID_LOCAL_PATH.
    """
    try:
        header = gguf_files.read(files)
    except gguf_files.GGUFError as error:
        raise Refusal("INVALID_LOCAL_PATH", str(error)) from error
    label, size_mb = label or header.label, -(-header.size_bytes // MIB)
    return {
        "local_path": str(files[0]),
        "engine": GGUF,
        "gguf_label": label,
        "quantization": gguf.precision_of(label),
        "architecture": header.architecture,
        "num_parameters": header.parameters,
        "disk_size_mb": size_mb,
        "estimated_memory_mb": size_mb,
    }


def _remove(folder: Path, row: ModelRow, others: Sequence[ModelRow]) -> None:
    """Remove what only this model has in its repository's folder; whole files and what an interrupted download left."""
    place = CommitFolder(folder)
    try:
        if not others:
            place.remove_all()
        elif all((o.engine, o.gguf_label) != (row.engine, row.gguf_label) for o in others):
            place.remove(_own(folder, row))
    except OSError as error:
        # the model is forgotten already; what is left is only disk space
        log.error("files_not_removed", model=row.name, reason=type(error).__name__)


def _own(folder: Path, row: ModelRow) -> list[RepoFile]:
    """The files of a model that shares its folder with models of another engine or label."""
    found = []
    for path in [f.relative_to(folder).as_posix() for f in folder.rglob("*") if f.is_file()]:
        named = gguf.classify(path)
        is_gguf = path.lower().endswith(".gguf")
        is_label = (named.label or named.base) == row.gguf_label
        if is_label if row.engine == GGUF else not is_gguf:
            found.append(RepoFile(path, None))
    return found
