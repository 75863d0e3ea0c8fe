"""/api/saes/attachment and its neighbours: attaching SAEs to the loaded model and detaching them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query
from pydantic import Field, field_validator
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.envelope import RequestBody, success
from steerserve.control.metrics import note_object
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.resident import Attachment
from steerserve.control.sensing.corpus_results import CorpusResults
from steerserve.control.steering.steering import Steering
from steerserve.nouns.attachments.owner import Attachments, Member
from steerserve.nouns.monitoring.owner import Monitoring
from steerserve.nouns.saes.form import (
    AttachedSet,
    AttachmentEntry,
    AttachmentList,
    Compatibility,
    CorpusCheck,
    DetachedSae,
    FirstAttachment,
    LostAttachment,
    NewAttachment,
    NoAttachment,
    SaeCheck,
    ScaleOverrides,
    SetMember,
)
from steerserve.nouns.saes.owner import Saes
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
    corpora: CorpusResults

    async def first(self) -> FirstAttachment | NoAttachment:
        """The first attached SAE, and whether it is steered and monitored. Without an attached SAE its fields are None,
        false or 0."""
        entries = await self._entries()
        if not entries:
            return NoAttachment(
                is_attached=False,
                sae_id=None,
                layer=None,
                memory_usage_mb=None,
                steering_enabled=False,
                monitoring_enabled=False,
                steering_apply_count=0,
            )
        return FirstAttachment(is_attached=True, **entries[0])

    async def entries(self) -> list[AttachmentEntry]:
        """Every attached SAE."""
        return [AttachmentEntry(**one) for one in await self._entries()]

    async def _entries(self) -> list[dict[str, Any]]:
        attached = self.conductor.attachments()
        seen = await self.corpora.over_largest(attached)
        if seen is None:
            return [self._entry(one, None, None) for one in attached]
        return [
            self._entry(one, over is not None, over)
            for one, over in zip(attached, seen, strict=True)
        ]

    def _entry(
        self, attachment: Attachment, has_corpus: bool | None, over: CorpusCheck | None
    ) -> dict[str, Any]:
        resident = self.conductor.resident
        applied = resident.engine.passes.applied if resident and resident.engine else {}
        return _attached(attachment) | {
            "steering_enabled": self.steering.live.enabled,
            "monitoring_enabled": self.monitoring.key() == attachment.key,
            "steering_apply_count": applied.get(attachment.key, 0),
            "has_corpus": has_corpus,
            "over_corpus": over,
        }


def _attached(attachment: Attachment) -> dict[str, Any]:
    """The fields that every answer about an attached SAE has."""
    return {
        "sae_id": attachment.sae_id,
        "layer": attachment.layer,
        "memory_usage_mb": attachment.memory_mb,
        "warnings": attachment.warnings,
        "check": SaeCheck.from_figures(attachment.check),
        "layer_module_path": attachment.layer_module_path,
        "site": attachment.site,
        "dtype": attachment.dtype,
        "is_calibrated": attachment.is_calibrated,
        "k": attachment.k,
        "overrides": ScaleOverrides(**attachment.order.scale),
    }


def _member(member: Member) -> SetMember:
    return SetMember(
        status="already_attached" if member.was_there else "attached",
        **_attached(member.attachment),
    )


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
        return success(await status.first())

    @routes.get("/attachments", response_model=Answer[AttachmentList])
    async def get_attachments() -> Response:
        """Every attached SAE. `to_restore` lists the SAEs that were attached when an engine ended by itself: the next
        load of their model attaches them again."""
        entries = await status.entries()
        lost = [
            LostAttachment(order.model_id, order.sae_id, order.layer)
            for order in (attachment.order for attachment in conductor.reattaching.pending())
        ]
        return success(
            AttachmentList(
                is_attached=bool(entries),
                count=len(entries),
                entries=entries,
                to_restore=lost,
                **memory(),
            )
        )

    @routes.post("/attach-set", response_model=Answer[AttachedSet])
    async def attach_set(body: AttachSetBody) -> Response:
        members = [(member.sae_id, member.layer) for member in body.saes]
        note_object(members=len(members))
        attached = await attachments.attach_set(members, body.dtype)
        note_object(sae_ids=[member.attachment.sae_id for member in attached])
        return success(
            AttachedSet(
                status="attached",
                entries=[_member(member) for member in attached],
                attached_count=len(conductor.attachments()),
                **memory(),
            )
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
        found = Compatibility(verdict.is_compatible, verdict.errors, verdict.warnings)
        return success(found)

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
        return success(NewAttachment(status="attached", **_attached(attached)))

    @routes.post("/{sae_id}/detach", response_model=Answer[DetachedSae])
    async def detach_sae(sae_id: str) -> Response:
        sae_id = (await saes.get(sae_id)).id
        freed = await attachments.detach(sae_id)
        return success(DetachedSae("detached", sae_id, freed))

    return routes
