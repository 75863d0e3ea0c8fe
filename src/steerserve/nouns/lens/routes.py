"""/api/lens and /api/attribution: what the residual stream of a text says about the next token, layer by layer and
feature by feature."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from steerserve import messages as m
from steerserve.api.answers import Answer
from steerserve.api.envelope import RequestBody, success
from steerserve.api.inference.tokens import Conversation, Id, Written, client_of, text_or_chat
from steerserve.control.inference.asked import Asked
from steerserve.control.inference.spelling import Speller
from steerserve.control.inference.texts import prompt_of
from steerserve.http.disconnect import unless_disconnected
from steerserve.nouns.lens.form import AttributionAnswer, LensAnswer
from steerserve.nouns.lens.owner import Lenses
from steerserve.nouns.lens.rules import LOGIT, AttributedPositions, AttributionMethod, check_method
from steerserve.rules.bounds import ATTRIBUTION_STEPS
from steerserve.rules.form import Form
from steerserve.rules.saes.attachment import SaeChoice
from steerserve.rules.steering.vector import NAME_MAXIMUM
from steerserve.settings import Settings

LAYERS_MAXIMUM = 1000
TOP_MAXIMUM = 100
FEATURES_MAXIMUM = 1000
POSITION_MAXIMUM = 2**31 - 1

Token = Id | Annotated[str, Field(min_length=1, max_length=200)]


class LensFile(RequestBody):
    """A trained lens: a folder of tuned-lens, or a file of jlens."""

    local_path: Annotated[str, Field(min_length=1, max_length=500)]


class LensBody(RequestBody):
    """A text, or the messages of a conversation, which is rendered as chat completions render it. `layers` are the
    layers to read, all without it; `top` is the number of tokens to list for each position. `kind` is `logit` for the
    logit lens, the id or the name of a trained lens, or the path of one on this machine."""

    text: Written | None = None
    messages: Conversation | None = None
    layers: Annotated[list[Id], Field(min_length=1, max_length=LAYERS_MAXIMUM)] | None = None
    top: Annotated[int, Field(ge=1, le=TOP_MAXIMUM)] = 5
    kind: Annotated[str, Field(min_length=1, max_length=NAME_MAXIMUM)] | LensFile = LOGIT


class AttributionBody(RequestBody):
    """A text or a conversation, a position in it, and the next token whose logit is attributed. A negative `position`
    counts from the end: -1 is the last token. `target_token` and `against_token` are ids, or texts that are one token;
    without `against_token` the mean logit over the vocabulary is taken off. `sae_id` and `layer` name the SAE where
    several are attached. `method` is how the logit is attributed: along the direct path, by its gradient, or by
    integrated gradients, which takes `steps` gradients. `over` says whether the features at this position count, or
    those at all positions up to it, which needs gradients."""

    text: Written | None = None
    messages: Conversation | None = None
    position: Annotated[int, Field(ge=-POSITION_MAXIMUM, le=POSITION_MAXIMUM)]
    target_token: Token
    against_token: Token | None = None
    sae_id: Annotated[str, Field(min_length=1, max_length=50)] | None = None
    layer: Id | None = None
    top: Annotated[int, Field(ge=1, le=FEATURES_MAXIMUM)] = 20
    method: AttributionMethod = "direct"
    steps: Annotated[int, Field(ge=1, le=ATTRIBUTION_STEPS)] = 16
    over: AttributedPositions = "position"


def router(lenses: Lenses, speller: Speller, settings: Settings) -> APIRouter:
    routes = APIRouter(prefix="/api", tags=["inference"])

    def reading(body: LensBody | AttributionBody, goal: m.Goal, request: Request) -> m.Request:
        """The request to read the text or the conversation of a body."""
        client = client_of(request, settings)
        prompt = prompt_of(text_or_chat(body.text, body.messages), client)
        return m.Request(goal=goal, prompts=[prompt], client=client)

    @routes.post("/lens", response_model=Answer[LensAnswer])
    async def lens(body: LensBody, request: Request) -> Response:
        named = body.kind if isinstance(body.kind, str) and body.kind != LOGIT else None
        goal = m.Lens(
            layers=body.layers,
            top=body.top,
            max_distributions=settings.lens_max_distributions,
            max_entries=settings.lens_max_entries,
            path=body.kind.local_path if isinstance(body.kind, LensFile) else None,
        )
        asked = Asked(request=reading(body, goal, request), lens=named, may_load=False)
        return await _answered(request, lenses.lens(asked))

    @routes.post("/attribution", response_model=Answer[AttributionAnswer])
    async def attribution(body: AttributionBody, request: Request) -> Response:
        text_or_chat(body.text, body.messages)
        check_method(body.method, body.over)
        against = body.against_token
        goal = m.Attribute(
            position=body.position,
            target=await speller.token("target_token", body.target_token),
            against=None if against is None else await speller.token("against_token", against),
            top=body.top,
            method=body.method,
            steps=body.steps,
            over=body.over,
        )
        choice = SaeChoice(body.sae_id, body.layer)
        asked = Asked(request=reading(body, goal, request), choice=choice, may_load=False)
        return await _answered(request, lenses.attribute(asked))

    return routes


async def _answered(request: Request, answer: Coroutine[object, object, Form]) -> Response:
    """The answer. The work for it ends early when the client goes away."""
    return success(await unless_disconnected(request, answer))
