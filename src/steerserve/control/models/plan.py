"""Decides what a request for a model of the hub means: which files of the repository, which record, and which name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from steerserve.database.catalog import ModelRow
from steerserve.errors import Refusal
from steerserve.files.folder import folder_of
from steerserve.hub.described import Repository
from steerserve.hub.job import Job
from steerserve.rules.inference.names import CHECKPOINT, GGUF
from steerserve.rules.models import gguf, naming, repository
from steerserve.rules.models.repository import RepoFile
from steerserve.rules.models.status import AFTER, Event
from steerserve.rules.units import MIB


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A client's request for a model of the hub. `precision` None means FP16, or the precision that the GGUF label
    names. The token is used for this request and not kept."""

    repo_id: str
    revision: str | None = None
    precision: str | None = None
    gguf_label: str | None = None
    custom_name: str | None = None
    trust_remote_code: bool = False
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """The files that belong to one record. `label` is the quantization label of a GGUF model, and None for a
    checkpoint."""

    repository: Repository
    precision: str
    label: str | None
    job: Job

    @property
    def size_bytes(self) -> int:
        return sum(file.size or 0 for file in self.job.files)


def make_plan(listed: Repository, request: ModelRequest, cache: Path) -> ModelPlan:
    """The plan of a request, once the hub has described the repository.

    Raises:
        Refusal: VALIDATION_ERROR naming the labels, DOWNLOAD_FAILED when there is nothing to load.
    """
    files, label = choose(listed, request)
    precision = gguf.precision_of(label) if label is not None else request.precision or "FP16"
    folder = folder_of(cache, listed.repo_id, listed.sha)
    return ModelPlan(
        listed, precision, label, Job(listed.repo_id, listed.sha, files, folder, request.token)
    )


def choose(listed: Repository, request: ModelRequest) -> tuple[tuple[RepoFile, ...], str | None]:
    """The files to fetch, and their GGUF label. If the request names a label, these are the files of that label;
    otherwise the checkpoint (label None), or, without a checkpoint, the only GGUF model.

    Raises:
        Refusal: VALIDATION_ERROR naming the labels, DOWNLOAD_FAILED when there is nothing to load.
    """
    offers = gguf_offers(listed.files)
    if request.gguf_label is not None:
        variant = gguf.choose(offers, request.gguf_label)
    elif repository.has_weights(listed.files) or not offers.variants:
        trusted = request.trust_remote_code
        return repository.checkpoint_files(listed.files, trust_remote_code=trusted), None
    else:
        variant = gguf.only(offers)
    by_path = {file.path: file for file in listed.files}
    # the order of the shards is kept, because a model is loaded by the path of its first shard
    return tuple(by_path[file.path] for file in variant.files), variant.name


def gguf_offers(files: Sequence[RepoFile]) -> gguf.GgufListing:
    """The GGUF models of a repository."""
    return gguf.variants((file.path, file.size or 0) for file in files)


def same_model(plan: ModelPlan, rows: Sequence[ModelRow]) -> list[ModelRow]:
    """The records of the plan's repository and quantization at any commit. Records whose name ends in a commit come
    last."""
    wanted = (plan.repository.repo_id, plan.precision, plan.label)
    same = [row for row in rows if (row.repo_id, row.quantization, row.gguf_label) == wanted]
    return sorted(same, key=lambda row: (is_pinned(row), row.id))


def is_pinned(row: ModelRow) -> bool:
    """Whether a record is a second one of its repository and quantization, and its name ends in its commit."""
    return naming.pin_of(row.name, row.revision) != ""


def is_empty(row: ModelRow) -> bool:
    """Whether a record has only a failed download."""
    return row.local_path is None and row.status == "error"


def is_cancelled(row: ModelRow) -> bool:
    """Whether a record has only a download that was cancelled, so no file is kept for it."""
    return is_empty(row) and row.download_error == "DOWNLOAD_CANCELLED"


def standing_at_other_commit(same: Sequence[ModelRow]) -> ModelRow | None:
    """The record that answers a request without a revision when no record has the hub's present commit. A record whose
    download of a named revision failed answers only requests for that revision."""
    return next((row for row in same if not (is_empty(row) and is_pinned(row))), None)


def already_exists(row: ModelRow) -> Refusal:
    """The refusal of a request that would make a second record of one repository and quantization."""
    return Refusal(
        "MODEL_ALREADY_EXISTS",
        f"{row.repo_id} is registered at this quantization as {row.name!r}, commit {row.revision}; "
        "a request that names another revision registers that commit beside it",
        model_id=row.id,
        quantization=row.quantization,
        revision=row.revision,
    )


def pinned_name(request: ModelRequest, first: ModelRow, commit: str) -> str:
    """The name in `/v1` of a second record of one repository and quantization, at another commit."""
    bare = first.name.removesuffix(naming.pin_of(first.name, first.revision))
    return naming.pin(request.custom_name or bare, commit)


def name_of(plan: ModelPlan, request: ModelRequest, rows: Sequence[ModelRow]) -> str:
    """The name in `/v1` of the first record of one repository and quantization: the last part of the repository's name,
    or the whole name if another model already has the last part as its name."""
    if request.custom_name is not None:
        return request.custom_name
    repo_id = plan.repository.repo_id
    short = repo_id.rpartition("/")[2]
    others = {row.name for row in rows if row.repo_id != repo_id}
    bare = {name.rpartition(":")[0] for name in others} | others
    name = repo_id if short in bare else short
    if plan.label is not None:
        return f"{name}:{plan.label}"
    # a record of a second precision of the same repository has the precision in its name
    is_taken = any(row.name == name for row in rows)
    return f"{name}:{plan.precision}" if is_taken else name


def values_of(plan: ModelPlan, request: ModelRequest) -> dict[str, object]:
    """The values of a model's record while the model is downloaded."""
    listed = plan.repository
    size_mb = -(-plan.size_bytes // MIB)
    return {
        "repo_id": listed.repo_id,
        "revision": listed.sha,
        "quantization": plan.precision,
        "engine": GGUF if plan.label else CHECKPOINT,
        "gguf_label": plan.label,
        "trust_remote_code": request.trust_remote_code,
        "local_path": None,
        "architecture": next(iter(listed.architectures), None) or listed.gguf_architecture,
        "num_parameters": listed.parameters,
        "disk_size_mb": size_mb,
        "estimated_memory_mb": size_mb,
        "supports_embeddings": True,
        "status": AFTER[Event.REQUESTED],
        "error_message": None,
        "download_error": None,
    }
