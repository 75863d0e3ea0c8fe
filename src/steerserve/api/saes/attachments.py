"""/api/saes/attachment and its neighbours: attaching SAEs to the loaded model and detaching them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query
from pydantic import Field, field_validator
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.answers.saes import (
    AttachedSet,
    AttachmentList,
    Compatibility,
    DetachedSae,
    FirstAttachment,
    NewAttachment,
    NoAttachment,
)
from steerserve.api.envelope import RequestBody, success
from steerserve.control.metrics import note_object
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.resident import Attachment
from steerserve.control.saes.attachments import Attachments, Member
from steerserve.control.saes.saes import Saes
from steerserve.control.sensing.monitoring import Monitoring
from steerserve.control.steering.steering import Steering
from steerserve.rules.saes import sets as sae_set
from steerserve.rules.saes import sites as sae_sites
from steerserve.settings import Settings

LAYER_MAXIMUM = 10_000
Layer = Annotated[int, Field(ge=0, le=LAYER_MAXIMUM)]
Dtype = Literal["float32", "bfloat16", "float16", "model", "stored"]
Activation = Literal["relu", "topk", "abstopk", "groupmax", "jumprelu", "gated"]
Normalisation = Literal["none", "layer_norm", "constant_norm_rescale", "expected_average_only_in"]


class OverridesBody(RequestBody):
    """Properties of an SAE that replace those in its files. `norm_factor` is sqrt(d_in) divided by the mean norm of the
    activations that the SAE reads. `site` is a hook name or the name of a site."""

    activation: Activation | None = None
    k: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    threshold: Annotated[float, Field(allow_inf_nan=False)] | None = None
    subtract_b_dec: bool | None = None
    normalisation: Normalisation | None = None
    norm_factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    site: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    is_centred: bool | None = None

    @field_validator("site")
    @classmethod
    def _known(cls, site: str | None) -> str | None:
        if site is not None and sae_sites.locate(site)[0] is None:
            raise ValueError(f"no known site; a hook name, or one of {', '.join(sae_sites.SITES)}")
        return site


class AttachBody(RequestBody):
    """How to attach an SAE. `layer` is the decoder layer, counted from 0. `dtype` is the type in which the matrices of
    the SAE are kept, by default the type in its file. `check` tries the SAE on a short text."""

    layer: Layer
    dtype: Dtype | None = None
    overrides: OverridesBody | None = None
    check: bool = True


class MemberBody(RequestBody):
    sae_id: Annotated[str, Field(min_length=1, max_length=100)]
    layer: Layer


class AttachSetBody(RequestBody):
    """SAEs to attach beside those that are attached already. `dtype` is MULTISAE_ATTACH_DTYPE where it is left out."""

    saes: Annotated[list[MemberBody], Field(min_length=1, max_length=sae_set.MAXIMUM)]
    dtype: Dtype | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """Describes the attached SAEs for answers."""

    conductor: Conductor
    steering: Steering
    monitoring: Monitoring

    def first(self) -> dict[str, Any]:
        """The first attached SAE, and whether it is steered and monitored. Without an attached SAE its fields are None,
        false or 0."""
        return _first(self)

    def entries(self) -> list[dict[str, Any]]:
        """Every attached SAE."""
        return [_entry(attachment, self) for attachment in self.conductor.attachments()]


def _first(status: Status) -> dict[str, Any]:
    attached = status.conductor.attachments()
    if not attached:
        return {
            "is_attached": False,
            "sae_id": None,
            "layer": None,
            "memory_usage_mb": None,
            "steering_enabled": False,
            "monitoring_enabled": False,
            "steering_apply_count": 0,
        }
    return {"is_attached": True, **_entry(attached[0], status)}


def _entry(attachment: Attachment, status: Status) -> dict[str, Any]:
    resident, steering = status.conductor.resident, status.steering
    applied = resident.engine.applied if resident and resident.engine else {}
    return {
        "sae_id": attachment.sae_id,
        "layer": attachment.layer,
        "memory_usage_mb": attachment.memory_mb,
        "steering_enabled": steering.live.enabled,
        "monitoring_enabled": status.monitoring.key() == attachment.key,
        "steering_apply_count": applied.get(attachment.key, 0),
        "warnings": list(attachment.warnings),
        "check": attachment.check,
        **_where(attachment),
    }


def _where(attachment: Attachment) -> dict[str, Any]:
    return {
        "layer_module_path": attachment.layer_module_path,
        "site": attachment.site,
        "dtype": attachment.dtype,
        "is_calibrated": attachment.is_calibrated,
        "overrides": attachment.order.scale,
    }


def _member(member: Member) -> dict[str, Any]:
    attachment = member.attachment
    return {
        "sae_id": attachment.sae_id,
        "layer": attachment.layer,
        "status": "already_attached" if member.was_there else "attached",
        "memory_usage_mb": attachment.memory_mb,
        "warnings": list(attachment.warnings),
        "check": attachment.check,
        **_where(attachment),
    }


def router(saes: Saes, attachments: Attachments, status: Status, settings: Settings) -> APIRouter:
    conductor, envelope_mb = status.conductor, settings.multisae_vram_envelope_mb
    routes = APIRouter(prefix="/api/saes", tags=["saes"])

    def memory() -> dict[str, Any]:
        attached = conductor.attachments()
        total = sum(attachment.memory_mb for attachment in attached)
        return {
            "total_memory_usage_mb": total if attached else None,
            "vram_envelope_mb": envelope_mb,
            "vram_warning": total > envelope_mb,
        }

    @routes.get("/attachment", response_model=Answer[FirstAttachment | NoAttachment])
    async def get_attachment() -> Response:
        return success(status.first())

    @routes.get("/attachments", response_model=Answer[AttachmentList])
    async def get_attachments() -> Response:
        """Every attached SAE. `to_restore` lists the SAEs that were attached when an engine ended by itself: the next
        load of their model attaches them again."""
        entries = status.entries()
        lost = [
            {"model_id": order.model_id, "sae_id": order.sae_id, "layer": order.layer}
            for order in (attachment.order for attachment in conductor.reattaching.pending())
        ]
        return success(
            {
                "is_attached": bool(entries),
                "count": len(entries),
                "entries": entries,
                **memory(),
                "to_restore": lost,
            }
        )

    @routes.post("/attach-set", response_model=Answer[AttachedSet])
    async def attach_set(body: AttachSetBody) -> Response:
        members = [(member.sae_id, member.layer) for member in body.saes]
        note_object(members=len(members))
        attached = await attachments.attach_set(members, body.dtype)
        note_object(sae_ids=[member.attachment.sae_id for member in attached])
        return success(
            {
                "status": "attached",
                "entries": [_member(member) for member in attached],
                "attached_count": len(conductor.attachments()),
                **memory(),
            }
        )

    @routes.api_route("/attachment", methods=["DELETE"], include_in_schema=False)
    @routes.api_route("/attachments", methods=["DELETE"], include_in_schema=False)
    @routes.api_route("/attach-set", methods=["GET", "DELETE"], include_in_schema=False)
    @routes.api_route("/monitoring", methods=["GET", "DELETE"], include_in_schema=False)
    async def is_a_word() -> Response:
        # without this route, these words would be read as ids of SAEs
        raise HTTPException(405)

    @routes.get("/{sae_id}/compatibility", response_model=Answer[Compatibility])
    async def compatibility(sae_id: str, layer: Annotated[int, Query()]) -> Response:
        verdict = attachments.compatibility(await saes.get(sae_id), layer)
        return success(
            {
                "compatible": verdict.is_compatible,
                "errors": list(verdict.errors),
                "warnings": list(verdict.warnings),
            }
        )

    @routes.post("/{sae_id}/attach", response_model=Answer[NewAttachment])
    async def attach_sae(sae_id: str, body: AttachBody) -> Response:
        note_object(layer=body.layer)
        attached = await attachments.attach(
            await saes.get(sae_id),
            body.layer,
            dtype=body.dtype,
            overrides=body.overrides.model_dump() if body.overrides else None,
            is_checked=body.check,
        )
        return success(
            {
                "status": "attached",
                "sae_id": attached.sae_id,
                "layer": attached.layer,
                "memory_usage_mb": attached.memory_mb,
                "warnings": list(attached.warnings),
                "check": attached.check,
                **_where(attached),
            }
        )

    @routes.post("/{sae_id}/detach", response_model=Answer[DetachedSae])
    async def detach_sae(sae_id: str) -> Response:
        sae_id = (await saes.get(sae_id)).id
        freed = await attachments.detach(sae_id)
        return success({"status": "detached", "sae_id": sae_id, "memory_freed_mb": freed})

    return routes
