"""What the routes of models answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from steerserve.rules.form import Form
from steerserve.rules.models.downloads import FetchProgress
from steerserve.rules.models.generation_config import GenerationConfig
from steerserve.rules.models.gguf import GgufFile
from steerserve.rules.models.status import ModelEngine, ModelSource, ModelStatus
from steerserve.rules.residency.lease_status import LeaseStatus
from steerserve.rules.residency.lock import LockedBy
from steerserve.rules.residency.memory_fit import ModelPlacement
from steerserve.rules.residency.replicas import ReplicaSet
from steerserve.rules.saes.sites import ModelSite


@dataclass(frozen=True, slots=True)
class EstimatedSize:
    """How much disk the download needs, and how much memory the loaded model needs."""

    disk_mb: int
    memory_mb: int


class ModelLock(Form, frozen=True):
    """Who holds the lock of a model: an operator, or the attached SAEs `sae_ids`. `message` says it in words."""

    by: LockedBy
    sae_ids: tuple[str, ...]
    message: str


class ModelRecord(Form, frozen=True, kw_only=True):
    """A registered model. `params` is the number of parameters as a short text, such as `7B`. Sizes named `_mb` are in
    MiB. `download_progress` is in percent; it and `download` are null while no download runs. `layers` is the number of
    decoder layers of a loaded model. The facts from `loaded_at` to `generation_config` that only a loaded model has are
    null, or empty, for other models; `memory_footprint` is in bytes, `context_length` and `kv_cache_tokens` are in
    tokens. `generation_config` is the sampling that the checkpoint recommends, and null for a GGUF model. An
    `embedding_only` model writes no text and is never steered. `content_digest` is the digest of the files of a model
    of this machine, and null until it has been computed. `error_message` says why the status is `error`. `warnings` say
    what is remarkable about the files of a loaded model. `replicas` is null where one engine process serves."""

    id: int
    name: str
    source: ModelSource
    repo_id: str | None
    revision: str | None
    local_path: str | None
    content_digest: str | None
    quantization: str
    gguf_label: str | None
    engine: ModelEngine
    params: str | None
    architecture: str | None
    disk_size_mb: int
    estimated_memory_mb: int
    status: ModelStatus
    device: str | None
    dtype: str | None
    lease: LeaseStatus | None
    loaded_at: datetime | None
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
    warnings: Sequence[str] = ()
    context_length: int | None
    kv_cache_tokens: int | None
    kv_cache_mb: int | None
    has_chat_template: bool | None
    generation_config: GenerationConfig | None
    created_at: datetime
    updated_at: datetime
    locked: bool
    lock: ModelLock | None
    replicas: ReplicaSet | None


class UnlockedModel(ModelRecord, frozen=True, kw_only=True):
    """The model, with a sentence about the lock that there was."""

    message: str


class ModelList(Form, frozen=True):
    """All registered models, and the id of the loaded one."""

    models: list[ModelRecord]
    total: int
    loaded_model_id: int | None


class ModelSites(Form, frozen=True):
    """The sites of a loaded model: where its values are read, and which of them edits may change."""

    model_id: int
    sites: Sequence[ModelSite]


class DeletedModel(Form, frozen=True):
    """The model that was deleted."""

    id: int
    name: str
    deleted: Literal[True]


class OfferedGguf(Form, frozen=True, kw_only=True):
    """A GGUF model of a repository. `label` is the `gguf_label` that registers it. `quant_parsed` says whether the
    label is a quantization that was found in the name of the file."""

    label: str
    files: Sequence[GgufFile]
    total_size_bytes: int
    is_split: bool
    quant_parsed: bool


class OfferedModels(Form, frozen=True, kw_only=True):
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
    estimated_sizes: Mapping[str, EstimatedSize] | None
    downloads: int | None
    likes: int | None
    tags: Sequence[str]
    pipeline_tag: str | None
    license: str | None
    language: str | None
    gguf_quants: list[OfferedGguf] | None
    gguf_companions: Sequence[GgufFile] | None
    gguf_architecture: str | None
    gguf_context_length: int | None
    gguf_total_params: int | None
