"""/api/features/contrast: which features tell two groups of texts apart."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.answers.jobs import BEGUN, Wait, answered
from steerserve.api.envelope import RequestBody
from steerserve.api.inference.tokens import (
    Conversation,
    Written,
    client_of,
    texts_or_chats,
)
from steerserve.control.inference.views import JobAnswer
from steerserve.nouns.contrasts.owner import ContrastRequest, Contrasts
from steerserve.rules.saes.attachment import SaeChoice
from steerserve.settings import Settings

TEXTS_MAXIMUM = 2000
SEED_MAXIMUM = 2**32 - 1
LAYER_MAXIMUM = 2**31 - 1
TOP_MAXIMUM = 200

Texts = Annotated[
    list[Written | Conversation], Field(min_length=2, max_length=TEXTS_MAXIMUM, fail_fast=True)
]


class ContrastBody(RequestBody):
    """Two groups of texts or conversations, which are read unsteered. `pool` makes one activation of those at all
    positions. The seed chooses the share `holdout` of each group, on which the features of the answer are tried again.
    Only features that fire in at least the share `min_share` of the texts of one group are compared. With
    `special_tokens`, position 0 and special tokens count too; with `examples` each feature has its strongest example
    in the newest corpus."""

    positives: Texts
    negatives: Texts
    sae_id: Annotated[str, Field(min_length=1, max_length=50)] | None = None
    layer: Annotated[int, Field(ge=0, le=LAYER_MAXIMUM)] | None = None
    pool: Literal["max", "mean", "last"] = "max"
    top: Annotated[int, Field(ge=1, le=TOP_MAXIMUM)] = 20
    holdout: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.3
    seed: Annotated[int, Field(ge=0, le=SEED_MAXIMUM)] = 0
    min_share: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    special_tokens: bool = False
    examples: bool = False


def router(contrasts: Contrasts, settings: Settings) -> APIRouter:
    routes = APIRouter(prefix="/api/features", tags=["features"])

    @routes.post("/contrast", response_model=Answer[JobAnswer], responses=BEGUN)
    async def contrast(body: ContrastBody, request: Request, wait: Wait = False) -> Response:
        """Begin a job whose result has the features that tell the positives from the negatives best."""
        asked = ContrastRequest(
            positives=texts_or_chats(body.positives),
            negatives=texts_or_chats(body.negatives),
            choice=SaeChoice(body.sae_id, body.layer),
            pool=body.pool,
            top=body.top,
            holdout=body.holdout,
            seed=body.seed,
            min_share=body.min_share,
            has_special=body.special_tokens,
            has_examples=body.examples,
            client=client_of(request, settings),
        )
        return await answered(contrasts.start(asked), request, wait=wait)

    return routes
