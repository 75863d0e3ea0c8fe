"""/api/patches: what the values of one text do in another, place by place."""

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
    Id,
    Written,
    client_of,
    text_or_chat,
)
from steerserve.control.inference.views import JobAnswer
from steerserve.nouns.lens.routes import LAYERS_MAXIMUM, POSITION_MAXIMUM, Token
from steerserve.nouns.patches.owner import PatchesRequest, PatchSweeps
from steerserve.nouns.patches.rules import Direction
from steerserve.rules.bounds import PATCH_GROUPS, PATCH_NOISE_REPEATS
from steerserve.rules.inference.prompts import Conversation as Chat
from steerserve.rules.steering.vector import NAME_MAXIMUM
from steerserve.settings import Settings

SITES_MAXIMUM = 16

Position = Annotated[int, Field(ge=-POSITION_MAXIMUM, le=POSITION_MAXIMUM)]
Positions = Annotated[list[Position], Field(min_length=1, max_length=PATCH_GROUPS)]
Groups = Annotated[list[Positions], Field(min_length=1, max_length=PATCH_GROUPS)]
Pair = Annotated[list[Position], Field(min_length=2, max_length=2)]
SiteName = Annotated[str, Field(min_length=1, max_length=NAME_MAXIMUM)]


class PatchText(RequestBody):
    """A text, or the messages of a conversation, which is rendered as chat completions render it."""

    text: Written | None = None
    messages: Conversation | None = None


class LogitDifferenceMetric(RequestBody):
    """The logit of one next token less that of another. Tokens are ids, or texts that are one token."""

    kind: Literal["logit_difference"]
    target_token: Token
    against_token: Token


class LogprobMetric(RequestBody):
    """The log-probability of the next token."""

    kind: Literal["logprob"]
    target_token: Token


class KlMetric(RequestBody):
    """The KL divergence in nats of the distribution of the next token from that of the clean text."""

    kind: Literal["kl"]


PatchMetric = Annotated[
    LogitDifferenceMetric | LogprobMetric | KlMetric, Field(discriminator="kind")
]


class PatchesBody(RequestBody):
    """Two texts, and the places whose values are patched. `denoise` puts values of the clean text into the corrupt
    one, `noise` the other way round. `align` pairs positions of the clean text with positions of the corrupt one, for
    texts of different lengths. `positions` are each position, all of them together, a list of positions, or of groups
    that are patched together; they are positions of the text that is patched, and negative ones count from its end."""

    clean: Written | PatchText
    corrupt: Written | PatchText
    align: Annotated[list[Pair], Field(min_length=1, max_length=PATCH_GROUPS)] | None = None
    sites: Annotated[list[SiteName], Field(min_length=1, max_length=SITES_MAXIMUM)]
    layers: Annotated[list[Id], Field(min_length=1, max_length=LAYERS_MAXIMUM)] | Literal["all"] = (
        "all"
    )
    positions: Literal["each", "all"] | Positions | Groups = "each"
    heads: Literal["each"] | None = None
    direction: Direction = "denoise"
    metric: PatchMetric
    noise_repeats: Annotated[int, Field(ge=0, le=PATCH_NOISE_REPEATS)] = 4


def router(patches: PatchSweeps, settings: Settings) -> APIRouter:
    routes = APIRouter(prefix="/api", tags=["inference"])

    @routes.post("/patches", response_model=Answer[JobAnswer], responses=BEGUN)
    async def patch(body: PatchesBody, request: Request, wait: Wait = False) -> Response:
        """Begin a job that patches places of one text with the values of another, one after the other, and measures
        what each patch does to the next token."""
        asked = PatchesRequest(
            clean=_text(body.clean),
            corrupt=_text(body.corrupt),
            align=None if body.align is None else [(one, other) for one, other in body.align],
            sites=body.sites,
            layers=body.layers,
            positions=body.positions,
            has_heads=body.heads is not None,
            direction=body.direction,
            kind=body.metric.kind,
            target=getattr(body.metric, "target_token", None),
            against=getattr(body.metric, "against_token", None),
            noise_repeats=body.noise_repeats,
            client=client_of(request, settings),
        )
        return await answered(await patches.start(asked), request, wait=wait)

    return routes


def _text(given: str | PatchText) -> str | Chat:
    return given if isinstance(given, str) else text_or_chat(given.text, given.messages)
