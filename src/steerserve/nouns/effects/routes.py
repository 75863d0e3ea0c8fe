"""/api/effects: what a feature, a vector or a list of edits does at a ladder of strengths."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import AfterValidator, Field, WithJsonSchema
from starlette.requests import Request
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.answers.jobs import BEGUN, Wait, answered
from steerserve.api.envelope import (
    PageLimit,
    PageOffset,
    RequestBody,
    success,
)
from steerserve.api.inference.tokens import (
    Conversation,
    Id,
    Written,
    client_of,
    invalid_field,
    texts_or_chats,
)
from steerserve.control.inference.views import JobAnswer
from steerserve.nouns.effects.form import DeletedEffects, EffectList, EffectRecord, KeptEffects
from steerserve.nouns.effects.owner import EffectMeasurements, EffectsRequest
from steerserve.rules.bounds import PAGE_ROWS
from steerserve.rules.saes.attachment import SaeChoice
from steerserve.rules.steering import interventions
from steerserve.rules.steering.placed import Modifiers
from steerserve.rules.steering.request import RequestSteering, SteeredFeature, SteeredVector
from steerserve.settings import Settings

STRENGTH_MAXIMUM = 10_000
STRENGTHS_MAXIMUM = 16
PROMPTS_MAXIMUM = 32
TOKENS_MAXIMUM = 200
WORDS_MAXIMUM = 50
WORD_MAXIMUM = 50
DIRECTIONS_MAXIMUM = 16
SEED_MAXIMUM = 2**32 - 1

Strength = Annotated[float, Field(ge=-STRENGTH_MAXIMUM, le=STRENGTH_MAXIMUM, allow_inf_nan=False)]


def _word(text: str) -> str:
    """Raises:
    ValueError: blanks around a word, which would never be found in a text.
    """
    if text != text.strip():
        raise ValueError("a word has no blanks at its ends")
    return text


Word = Annotated[Written, Field(min_length=1, max_length=WORD_MAXIMUM), AfterValidator(_word)]
Words = Annotated[list[Word], Field(min_length=1, max_length=WORDS_MAXIMUM)]


class EffectFeature(RequestBody):
    """A feature of an attached SAE. `sae_id` and `layer` name the SAE where several are attached."""

    index: Id
    sae_id: Annotated[str, Field(min_length=1, max_length=50)] | None = None
    layer: Id | None = None


class EffectTarget(RequestBody):
    """Words whose probability is measured, and words to compare them with."""

    words: Words
    control: Words | None = None


class EffectsBody(RequestBody):
    """A lever, which is one of `feature`, `vector` and `edits`, and the strengths at which it is measured. A feature or
    a vector is added, with the strength as its value; edits are made at this intensity. Without `prompts` the service
    takes eight of its own. At each strength every prompt is continued by up to `tokens` tokens, and the same is done
    with random directions of the same length."""

    feature: EffectFeature | None = None
    vector: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    edits: Annotated[list[object], WithJsonSchema(interventions.EDITS_SCHEMA)] | None = None
    preserve_norm: bool = False
    strengths: Annotated[list[Strength], Field(min_length=1, max_length=STRENGTHS_MAXIMUM)]
    prompts: (
        Annotated[list[Written | Conversation], Field(min_length=1, max_length=PROMPTS_MAXIMUM)]
        | None
    ) = None
    tokens: Annotated[int, Field(ge=1, le=TOKENS_MAXIMUM)] = 40
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = 1.0
    seed: Annotated[int, Field(ge=0, le=SEED_MAXIMUM)] = 0
    target: EffectTarget | None = None
    random_directions: Annotated[int, Field(ge=0, le=DIRECTIONS_MAXIMUM)] = 4


def router(effects: EffectMeasurements, settings: Settings) -> APIRouter:
    routes = APIRouter(prefix="/api", tags=["steering"])

    @routes.post("/effects", response_model=Answer[JobAnswer], responses=BEGUN)
    async def measure(body: EffectsBody, request: Request, wait: Wait = False) -> Response:
        """Begin a job that measures what a lever does. Its result has the figures of each strength."""
        asked = _asked(body, client_of(request, settings))
        return await answered(await effects.start(asked), request, wait=wait)

    @routes.get("/effects", response_model=Answer[EffectList])
    async def list_effects(
        limit: PageLimit = PAGE_ROWS,
        offset: PageOffset = 0,
        evidence_for: Annotated[str | None, Query(min_length=1, max_length=40)] = None,
    ) -> Response:
        """Kept results without their figures, the newest first. `evidence_for` is the id of a profile, a cluster or a
        circuit: then only the results that are evidence for it."""
        return success(await effects.page(limit, offset, evidence_for))

    @routes.get("/effects/{effect_id}", response_model=Answer[KeptEffects])
    async def get_effects(effect_id: str) -> Response:
        """A kept result, and the documents that it is evidence for."""
        return success(await effects.get(effect_id))

    @routes.delete("/effects/{effect_id}", response_model=Answer[DeletedEffects])
    async def delete_effects(effect_id: str) -> Response:
        """Delete a kept result. It is evidence no more."""
        return success(DeletedEffects(await effects.remove(effect_id)))

    @routes.put("/effects/{effect_id}/evidence/{document_id}", response_model=Answer[EffectRecord])
    async def attach_evidence(effect_id: str, document_id: str) -> Response:
        """Make a kept result evidence for the profile, cluster or circuit with this id. It changes no evidence rung."""
        return success(await effects.attach(effect_id, document_id))

    @routes.delete(
        "/effects/{effect_id}/evidence/{document_id}", response_model=Answer[EffectRecord]
    )
    async def detach_evidence(effect_id: str, document_id: str) -> Response:
        return success(await effects.detach(effect_id, document_id))

    return routes


def _asked(body: EffectsBody, client: str) -> EffectsRequest:
    """Raises:
    Refusal: VALIDATION_ERROR where the lever is missing or there are several, and for a strength that is there twice;
        INVALID_INTERVENTION, TOO_MANY_EDITS.
    """
    lever, steering = _lever(body)
    if len(set(body.strengths)) < len(body.strengths):
        raise invalid_field("strengths", "give each strength once")
    target = body.target
    prompts = None if body.prompts is None else texts_or_chats(body.prompts)
    return EffectsRequest(
        lever=lever,
        steering=steering,
        strengths=body.strengths,
        prompts=prompts,
        tokens=body.tokens,
        temperature=body.temperature,
        seed=body.seed,
        target=target.words if target else (),
        control=(target.control or ()) if target else (),
        random_directions=body.random_directions,
        client=client,
    )


def _lever(body: EffectsBody) -> tuple[dict[str, object], RequestSteering]:
    """The lever as JSON, and its edits at the strength 1."""
    given = {"feature": body.feature, "vector": body.vector, "edits": body.edits}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        why = "give one of feature, vector and edits"
        raise invalid_field(named[1] if named else "feature", why)
    modifiers = Modifiers(preserve_norm=body.preserve_norm)
    if body.feature is not None:
        one = body.feature
        sent = {k: v for k, v in one.model_dump().items() if v is not None}
        edit = SteeredFeature(one.index, 1.0, SaeChoice(one.sae_id, one.layer))
        return {"feature": sent}, RequestSteering((edit,), field="", modifiers=modifiers)
    if body.vector is not None:
        added = SteeredVector(body.vector, "add", 1.0)
        made = RequestSteering((added,), field="", modifiers=modifiers)
        return {"vector": body.vector}, made
    if not body.edits:
        raise invalid_field("edits", "give at least one edit")
    raw = {"edits": body.edits, "preserve_norm": body.preserve_norm}
    return {"edits": body.edits}, interventions.parse(raw, "")
