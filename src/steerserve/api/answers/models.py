"""What the routes of models and leases answer."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from steerserve.api.answers import Instant
from steerserve.control.models.previews import EstimatedSize
from steerserve.control.models.recorded_downloads import FetchProgress
from steerserve.control.residency.replicas import ReplicaSet
from steerserve.rules.models.gguf import GgufFile
from steerserve.rules.residency.lease_status import EndedLeaseStatus, LeaseStatus
from steerserve.rules.residency.lock import LockedBy

ModelStatus = Literal["downloading", "ready", "loading", "loaded", "unloading", "error"]


class ModelPlacement(TypedDict):
    """Where the resident model is. `required_mb` and `capacity_mb` are the MiB that it needs and that were free at its
    load. `devices` are `cuda:<index>` or `cpu`. `memory_by_device_mb` was measured; the planned MiB and the budget of
    each device are there for a model that is split over several cards."""

    mode: str
    reason: str
    requested: str | None
    required_mb: int
    capacity_mb: int
    devices: list[str]
    gpu_indices: list[int]
    memory_by_device_mb: dict[str, int]
    planned_mb_by_device: NotRequired[dict[str, int]]
    budget_mb_by_device: NotRequired[dict[str, int]]


class ModelLock(TypedDict):
    """Who holds the lock of a model: an operator, or the attached SAEs `sae_ids`. `message` says it in words."""

    by: LockedBy
    sae_ids: list[str]
    message: str


class ModelRecord(TypedDict):
    """A registered model. `params` is the number of parameters as a short text, such as `7B`. Sizes named `_mb` are in
    MiB. `download_progress` is in percent; it and `download` are null while no download runs. `layers` is the number of
    decoder layers of a loaded model. The facts from `loaded_at` to `kv_cache_mb` that only a loaded model has are null,
    or empty, for other models; `memory_footprint` is in bytes, `context_length` and `kv_cache_tokens` are in tokens. An
    `embedding_only` model writes no text and is never steered. `content_digest` is the SHA-256 of the files of a model
    of this machine, and null until it has been computed. `error_message` says why the status is `error`. `replicas` is
    null where one engine process serves."""

    id: int
    name: str
    source: Literal["huggingface", "local"]
    repo_id: str | None
    revision: str | None
    local_path: str | None
    content_digest: str | None
    quantization: str
    gguf_label: str | None
    engine: Literal["checkpoint", "gguf"]
    params: str | None
    architecture: str | None
    disk_size_mb: int
    estimated_memory_mb: int
    status: ModelStatus
    device: str | None
    dtype: str | None
    lease: LeaseStatus | None
    loaded_at: Instant | None
    supports_embeddings: bool
    embedding_only: bool
    trust_remote_code: bool
    error_message: str | None
    num_parameters: int | None
    download_progress: int | None
    download: FetchProgress | None
    memory_footprint: int | None
    gpu_indices: list[int]
    memory_by_device_mb: dict[str, int]
    placement: ModelPlacement | None
    layers: int | None
    context_length: int | None
    kv_cache_tokens: int | None
    kv_cache_mb: int | None
    created_at: Instant
    updated_at: Instant
    locked: bool
    lock: ModelLock | None
    replicas: ReplicaSet | None


class UnlockedModel(ModelRecord):
    """The model, with a sentence about the lock that there was."""

    message: str


class ModelList(TypedDict):
    """All registered models, and the id of the loaded one."""

    models: list[ModelRecord]
    total: int
    loaded_model_id: int | None


class DeletedModel(TypedDict):
    """The model that was deleted."""

    id: int
    name: str
    deleted: Literal[True]


class OfferedGguf(TypedDict):
    """A GGUF model of a repository. `label` is the `gguf_label` that registers it. `quant_parsed` says whether the
    label is a quantization that was found in the name of the file."""

    label: str
    files: list[GgufFile]
    total_size_bytes: int
    is_split: bool
    quant_parsed: bool


class OfferedModels(TypedDict):
    """The models that a repository of the hub offers. `estimated_sizes` has the sizes of the checkpoint by precision,
    null for a repository without a checkpoint. Facts that the hub does not give are null."""

    name: str
    repo_id: str
    revision: str
    params: str | None
    num_parameters: int | None
    architecture: str | None
    architectures: list[str] | None
    model_type: str | None
    requires_trust_remote_code: bool
    is_gated: bool
    estimated_sizes: dict[str, EstimatedSize] | None
    downloads: int | None
    likes: int | None
    tags: list[str]
    pipeline_tag: str | None
    license: str | None
    language: str | None
    gguf_quants: list[OfferedGguf] | None
    gguf_companions: list[GgufFile] | None
    gguf_architecture: str | None
    gguf_context_length: int | None
    gguf_total_params: int | None


class GrantedLease(TypedDict):
    """A new lease. `lease_id` is a secret that only this answer has; the client sends it back in `X-Service-Lease`."""

    lease_id: str
    model_id: int
    model_name: str
    holder: str
    reason: str
    acquired_at: Instant
    renewed_at: Instant | None
    expires_at: Instant
    ttl_seconds: int
    seconds_remaining: int


class LeaseState(TypedDict):
    """The live lease of a model, and the last lease of the model that ended; each is null where there is none."""

    lease: LeaseStatus | None
    last_ended: EndedLeaseStatus | None
