"""/api/models: previewing, registering, loading, unloading and deleting models."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from fastapi import APIRouter, HTTPException, Query
from msgspec import structs
from pydantic import AliasChoices, Field, SecretStr
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.envelope import ModelId, RequestBody, success
from steerserve.control.metrics import note_object
from steerserve.control.models.downloads import ModelDownloads
from steerserve.control.models.plan import ModelRequest
from steerserve.control.models.previews import ModelPreview, ModelQuery, preview_model
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.replicas import Replicas
from steerserve.control.residency.resident import Resident
from steerserve.nouns.leases.routes import LeaseHeader
from steerserve.nouns.models.form import (
    DeletedModel,
    ModelList,
    ModelLock,
    ModelRecord,
    ModelSites,
    OfferedGguf,
    OfferedModels,
    UnlockedModel,
)
from steerserve.nouns.models.owner import ModelRow, Models
from steerserve.rules.field_faults import refuse_field
from steerserve.rules.models import architecture
from steerserve.rules.models.downloads import FetchProgress
from steerserve.rules.models.gguf import GgufVariant
from steerserve.rules.models.naming import parameters_label
from steerserve.rules.residency import placement
from steerserve.rules.residency.lease_status import LeaseStatus
from steerserve.rules.residency.lock import Lock, LockedBy
from steerserve.rules.residency.replicas import ReplicaSet
from steerserve.rules.residency.swap import Phase


class ModelHubBody(RequestBody):
    """A repository of the model hub. The token is sent to the hub and dropped."""

    revision: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    hub_token: SecretStr | None = Field(
        default=None, validation_alias=AliasChoices("hub_token", "hf_token")
    )

    @property
    def token(self) -> str | None:
        return self.hub_token.get_secret_value() or None if self.hub_token else None


class ModelPreviewBody(ModelHubBody):
    """A repository to preview."""

    repo_id: Annotated[str, Field(min_length=1, max_length=255)]


class NewModel(ModelHubBody):
    """A model to register. `source` huggingface downloads `repo_id`, local registers `local_path` in place."""

    source: Literal["huggingface", "local"]
    repo_id: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    local_path: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    quantization: Literal["FP16", "Q8", "Q4", "Q2"] = "FP16"
    trust_remote_code: bool = False
    gguf_label: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    custom_name: Annotated[str, Field(min_length=1, max_length=100)] | None = None


class LoadBody(RequestBody):
    """Where to load: a card's index or UUID, `auto` (the default), or `all` to spread over every card."""

    gpu: int | str | None = None


@dataclass(frozen=True, slots=True)
class SlotState:
    """The state of the one model slot at one moment, for the records of all models."""

    resident: Resident | None
    loaded_id: int | None
    lock: Lock | None
    lease: LeaseStatus | None
    replicas: ReplicaSet | None

    @classmethod
    def from_owners(cls, conductor: Conductor, replicas: Replicas) -> SlotState:
        view = conductor.view()
        lease = conductor.leases.status()
        # a model that is still loading is not the loaded one
        loaded_id = None if view.phase is Phase.LOADING else view.model_id
        return cls(conductor.resident, loaded_id, view.lock, lease, replicas.now())

    def record(self, row: ModelRow, progress: FetchProgress | None) -> ModelRecord:
        """A model record: the stored facts, and for the resident model its live facts too."""
        live = self.resident if self.resident and self.resident.row.id == row.id else None
        facts, placed = (live.facts, live.placement) if live else (None, None)
        lock = self.lock if self.lock and self.lock.model_id == row.id else None
        return ModelRecord(
            id=row.id,
            name=row.name,
            source=row.source,
            repo_id=row.repo_id,
            revision=row.revision,
            local_path=row.local_path,
            content_digest=row.content_digest,
            quantization=row.quantization,
            gguf_label=row.gguf_label,
            engine=row.engine,
            params=parameters_label(row.num_parameters),
            architecture=row.architecture,
            disk_size_mb=row.disk_size_mb,
            estimated_memory_mb=row.estimated_memory_mb,
            status=row.status,
            device=facts.device if facts else None,
            dtype=facts.dtype if facts else row.dtype,
            lease=self.lease if self.lease and self.lease.model_id == row.id else None,
            loaded_at=live.loaded_at if live else None,
            supports_embeddings=row.supports_embeddings,
            embedding_only=architecture.is_embedding_only(row.architecture, row.engine),
            trust_remote_code=row.trust_remote_code,
            error_message=row.error_message,
            num_parameters=row.num_parameters,
            download_progress=int(progress.percent) if progress else None,
            download=progress,
            memory_footprint=facts.memory_mb << 20 if facts else None,
            gpu_indices=placed.gpu_indices if placed else [],
            memory_by_device_mb=facts.memory_by_device_mb if facts else {},
            placement=placed,
            layers=facts.layers if facts else None,
            warnings=facts.warnings if facts else [],
            context_length=facts.context_length if facts else None,
            kv_cache_tokens=facts.kv_tokens if facts else None,
            kv_cache_mb=facts.kv_tokens * facts.kv_bytes_per_token >> 20 if facts else None,
            has_chat_template=facts.chat_template is not None if facts else None,
            generation_config=facts.generation_config if facts else None,
            created_at=row.created_at,
            updated_at=row.updated_at,
            locked=lock is not None,
            lock=ModelLock(lock.by, lock.sae_ids, f"locked {lock.reason}") if lock else None,
            replicas=self.replicas if self.replicas and self.replicas.model_id == row.id else None,
        )


def router(
    models: Models, downloads: ModelDownloads, conductor: Conductor, replicas: Replicas
) -> APIRouter:
    routes = APIRouter(prefix="/api/models", tags=["models"])

    def record(row: ModelRow) -> ModelRecord:
        return SlotState.from_owners(conductor, replicas).record(row, downloads.progress(row.id))

    @routes.get("", response_model=Answer[ModelList])
    async def list_models() -> Response:
        rows = await models.list()
        state = SlotState.from_owners(conductor, replicas)

        def answer() -> Response:
            records = [state.record(row, downloads.progress(row.id)) for row in rows]
            return success(ModelList(records, len(records), state.loaded_id))

        return await asyncio.to_thread(answer)

    @routes.post("", response_model=Answer[ModelRecord], status_code=202)
    async def add_model(body: NewModel) -> Response:
        if body.source == "huggingface":
            row = await downloads.begin_download(
                ModelRequest(
                    repo_id=_given("repo_id", body.repo_id, body.source),
                    revision=body.revision,
                    precision=body.quantization,
                    gguf_label=body.gguf_label,
                    custom_name=body.custom_name,
                    trust_remote_code=body.trust_remote_code,
                    token=body.token,
                )
            )
        else:
            row = await models.add(
                _given("local_path", body.local_path, body.source),
                quantization=body.quantization,
                custom_name=body.custom_name,
                trust_remote_code=body.trust_remote_code,
                gguf_label=body.gguf_label,
            )
        note_object(model_id=row.id)
        return success(record(row), 202)

    @routes.post("/preview", response_model=Answer[OfferedModels])
    async def preview_repository(body: ModelPreviewBody) -> Response:
        query = ModelQuery(body.repo_id, body.revision, body.token)
        return success(preview(await preview_model(downloads, query)))

    @routes.api_route("/preview", methods=["GET", "DELETE"], include_in_schema=False)
    async def preview_is_posted() -> Response:
        # without this route, `preview` would be read as the id of a model
        raise HTTPException(405)

    @routes.get("/{model_id}", response_model=Answer[ModelRecord])
    async def get_model(model_id: ModelId) -> Response:
        return success(record(await models.get(model_id)))

    @routes.get("/{model_id}/sites", response_model=Answer[ModelSites])
    async def list_sites(model_id: ModelId) -> Response:
        row = await models.get(model_id)
        return success(ModelSites(row.id, conductor.facts_of(row.id).sites))

    @routes.delete("/{model_id}", response_model=Answer[DeletedModel])
    async def delete_model(model_id: ModelId) -> Response:
        row = await models.remove(model_id)
        return success(DeletedModel(row.id, row.name, True))

    @routes.post("/{model_id}/cancel", response_model=Answer[ModelRecord])
    async def cancel_download_or_load(model_id: ModelId) -> Response:
        await models.get(model_id)
        await conductor.end_load(model_id)
        row, _ = await downloads.cancel(model_id)
        return success(record(row))

    @routes.post(
        "/{model_id}/load",
        response_model=Answer[ModelRecord],
        status_code=202,
        responses={200: {"model": Answer[ModelRecord], "description": "loaded, with `wait`"}},
    )
    async def load_model(
        model_id: ModelId,
        body: LoadBody | None = None,
        wait: Annotated[bool, Query()] = False,
        lease: LeaseHeader = None,
    ) -> Response:
        gpu = placement.parse(body.gpu if body else None)
        row = await models.get(model_id)
        if wait and row.status == "downloading":
            conductor.check_load(model_id, lease)
            await downloads.until_ended(model_id)
            row = await models.get(model_id)
        resident = await conductor.load(row, lease, gpu)
        if wait:
            await asyncio.shield(resident.ready)
            return success(record(await models.get(model_id)))
        row = replace(await models.get(model_id), status="loading", error_message=None)
        return success(record(row), 202)

    @routes.post("/{model_id}/unload", response_model=Answer[ModelRecord])
    async def unload_model(model_id: ModelId, lease: LeaseHeader = None) -> Response:
        await models.get(model_id)
        await conductor.unload(model_id, lease)
        return success(record(await models.get(model_id)))

    @routes.post("/{model_id}/lock", response_model=Answer[ModelRecord])
    async def lock_model(model_id: ModelId) -> Response:
        row = await models.get(model_id)
        conductor.lock(model_id)
        return success(record(row))

    @routes.post("/{model_id}/unlock", response_model=Answer[UnlockedModel])
    async def unlock_model(model_id: ModelId) -> Response:
        row = await models.get(model_id)
        lock = conductor.view().lock
        conductor.unlock(model_id)
        was_locked = lock is not None and lock.model_id == model_id
        message = unlocked(lock) if lock and was_locked else "the model was not locked"
        return success(UnlockedModel(**structs.asdict(record(row)), message=message))

    return routes


def unlocked(lock: Lock) -> str:
    """What an unlocking says about the lock that there was."""
    stays = {0: "", 1: "; the SAE stays attached"}.get(
        len(lock.sae_ids), "; the SAEs stay attached"
    )
    return f"the model was locked {lock.reason}{stays if lock.by is LockedBy.ATTACHED_SAE else ''}"


def preview(shown: ModelPreview) -> OfferedModels:
    """The answer of a preview: the models that a repository offers."""
    listed, offers = shown.repository, shown.offers
    return OfferedModels(
        name=listed.repo_id.rpartition("/")[2],
        repo_id=listed.repo_id,
        revision=listed.sha,
        params=parameters_label(listed.parameters),
        num_parameters=listed.parameters,
        architecture=next(iter(listed.architectures), None),
        architectures=list(listed.architectures) or None,
        model_type=listed.model_type,
        requires_trust_remote_code=listed.requires_trust_remote_code,
        is_gated=listed.is_gated,
        estimated_sizes=shown.sizes,
        downloads=listed.downloads,
        likes=listed.likes,
        tags=listed.tags,
        pipeline_tag=listed.pipeline_tag,
        license=listed.license,
        language=listed.language,
        gguf_quants=[_gguf_variant(variant) for variant in offers.variants] or None,
        gguf_companions=offers.companions or None,
        gguf_architecture=listed.gguf_architecture,
        gguf_context_length=listed.gguf_context_length,
        gguf_total_params=listed.gguf_parameters,
    )


def _gguf_variant(variant: GgufVariant) -> OfferedGguf:
    return OfferedGguf(
        label=variant.name,
        files=variant.files,
        total_size_bytes=variant.total_bytes,
        is_split=variant.is_split,
        quant_parsed=variant.quant_parsed,
    )


def _given(param: str, value: str | None, source: str) -> str:
    """Raises:
    Refusal: VALIDATION_ERROR naming the field that this source needs.
    """
    if value is None:
        raise refuse_field(param, f"required when source is {source}", param=param)
    return value
