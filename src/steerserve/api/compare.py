"""/api/compare: one prompt, completed at several intensities of the same steering, side by side."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from steerserve.api.envelope import Envelope, RequestBody, success, unambiguous
from steerserve.api.steering import Value
from steerserve.control.requests.compare import Compare, Compared, Side
from steerserve.disconnect import Disconnected, unless_disconnected
from steerserve.errors import Refusal
from steerserve.rules import activations, clients
from steerserve.rules import compare as rules
from steerserve.rules.intent import GenerateIntent, Prompt, SamplingParameters
from steerserve.rules.steering import BATCH_MAXIMUM, plain_indices
from steerserve.settings import Settings

SEED_MAXIMUM = 2**32 - 1
MESSAGES_MAXIMUM = 2000


class CompareMessage(RequestBody):
    """One message of a conversation."""

    role: Annotated[str, Field(min_length=1, max_length=50)]
    content: str


class CompareBody(RequestBody):
    """A comparison of completions of `prompt` or of `messages`. The intensities multiply the values of `steering`, else
    those of `profile`, else the live values. Without `temperature` the completions are greedy, so that they differ by
    the steering alone."""

    prompt: Annotated[str, Field(min_length=1)] | None = None
    messages: (
        Annotated[list[CompareMessage], Field(min_length=1, max_length=MESSAGES_MAXIMUM)] | None
    ) = None
    intensities: Annotated[list[float], Field(default_factory=lambda: [0.0, 1.0])]
    steering: Annotated[dict[str, Value], Field(max_length=BATCH_MAXIMUM)] | None = None
    sae_id: Annotated[str, Field(max_length=50)] | None = None
    layer: Annotated[int, Field(ge=0)] | None = None
    profile: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] = 64
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = 0.0
    top_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 1.0
    seed: Annotated[int, Field(ge=0, le=SEED_MAXIMUM)] | None = None
    activations: dict[str, Any] | None = None


def router(compare: Compare, settings: Settings) -> APIRouter:
    routes = APIRouter(
        prefix="/api/compare", tags=["steering"], dependencies=[Depends(unambiguous)]
    )

    @routes.post("", response_model=Envelope)
    async def run(body: CompareBody, request: Request) -> Response:
        """Run the comparison. It ends early when the client goes away."""
        model = await compare.model()
        intent = _intent(body, settings, request)
        try:
            compared = await unless_disconnected(request, compare.run(intent, model))
        except Disconnected:
            return Response(status_code=499)
        return success(
            {
                "model": compared.model,
                "system_fingerprint": compared.fingerprint,
                "prompt_tokens": compared.prompt_tokens,
                "sides": [_side(side, compared) for side in compared.sides],
            }
        )

    return routes


def _side(side: Side, compared: Compared) -> dict[str, Any]:
    return {
        "intensity": side.intensity,
        "steering": {
            key: {str(i): v for i, v in sorted(values.items())}
            for key, values in side.steering.items()
        },
        "steering_state": side.state,
        "text": side.text,
        "finish_reason": side.finish,
        "completion_tokens": side.tokens,
        "sae_activations": _readings(side, compared),
    }


def _readings(side: Side, compared: Compared) -> dict[str, Any] | None:
    if side.readings is None or compared.tapped is None:
        return None
    return {
        "sae_id": compared.tapped.sae_id,
        "layer": compared.tapped.layer,
        "positions": [
            {
                "position": reading.position,
                "token_id": reading.token,
                "features": [
                    activations.labelled(i, v, compared.labels) for i, v in reading.features
                ],
            }
            for reading in side.readings
        ],
    }


def _intent(body: CompareBody, settings: Settings, request: Request) -> GenerateIntent:
    """Raises:
    Refusal: VALIDATION_ERROR, SAE_ACTIVATIONS_REFUSED.
    """
    if (body.prompt is None) == (body.messages is None):
        raise _invalid("prompt", "give either prompt or messages")
    if body.steering is not None and body.profile is not None:
        raise _invalid("profile", "give either steering or profile")
    if body.steering is None and (body.sae_id is not None or body.layer is not None):
        raise _invalid(
            "steering", "sae_id and layer name the SAE that steering is for; send steering too"
        )
    prompt: Prompt
    if body.messages is not None:
        prompt = tuple({"role": one.role, "content": one.content} for one in body.messages)
    else:
        prompt = body.prompt or ""
    intensities = rules.check(body.intensities)
    asked = body.activations
    return GenerateIntent(
        prompts=(prompt,) * len(intensities),
        sampling=SamplingParameters(
            temperature=body.temperature,
            top_p=body.top_p,
            max_tokens=body.max_tokens,
            seed=body.seed,
        ),
        profile=body.profile,
        activations=(
            None if asked is None else activations.parse(asked, settings.sae_activations_max_top_k)
        ),
        sweep=rules.Sweep(
            intensities,
            None if body.steering is None else plain_indices(body.steering),
            body.sae_id,
            body.layer,
        ),
        may_load=False,
        client=clients.client(
            request.client.host if request.client else None,
            request.headers.get("authorization"),
            has_keys=bool(settings.api_keys),
        ),
    )


def _invalid(field: str, why: str) -> Refusal:
    return Refusal(
        "VALIDATION_ERROR", f"{field}: {why}", errors=[{"loc": ["body", field], "msg": why}]
    )
