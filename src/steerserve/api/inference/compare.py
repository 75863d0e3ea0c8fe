"""/api/compare: one prompt, completed at several intensities of the same steering, side by side."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Annotated, Any, Literal

import structlog
from fastapi import APIRouter
from msgspec import UNSET, UnsetType
from pydantic import Field, WithJsonSchema
from starlette.requests import Request
from starlette.responses import Response

from steerserve import messages as m
from steerserve.api.answers import Answer
from steerserve.api.answers.compare import (
    CompareFailed,
    ComparePrompt,
    CompareStarted,
    CompareText,
    ReadSae,
    ReadToken,
    StartedSide,
)
from steerserve.api.envelope import RequestBody, encoded, success
from steerserve.api.inference.tokens import client_of
from steerserve.control import retry
from steerserve.control.inference.asked import Asked, AskedSteering
from steerserve.control.inference.compare import Compare, Compared, Comparing, Side
from steerserve.control.inference.texts import prompt_of
from steerserve.control.inference.views import (
    ComparedSide,
    Comparison,
    ReadFeature,
    ReadPosition,
    SideActivations,
)
from steerserve.control.models.served import ServedModel
from steerserve.errors import Refusal
from steerserve.http.disconnect import unless_disconnected
from steerserve.http.event_stream import COMMENT, EventStream, event, with_waits
from steerserve.messages import Piece
from steerserve.nouns.steering.routes import Value, texts
from steerserve.parts.activations.form import ACTIVATIONS, PlannedActivations, Reading, parse_value
from steerserve.rules.bounds import STEERED_FEATURES
from steerserve.rules.field_faults import refuse_field
from steerserve.rules.form import Form
from steerserve.rules.inference import compare as rules
from steerserve.rules.inference.prompts import Conversation
from steerserve.rules.saes.attachment import SaeChoice
from steerserve.rules.steering import interventions
from steerserve.rules.steering.live import plain_indices
from steerserve.rules.steering.request import RequestSteering, SteeredFeature
from steerserve.settings import Settings

log = structlog.get_logger(__name__)

SEED_MAXIMUM = 2**32 - 1
MESSAGES_MAXIMUM = 2000
TOKENS_MAXIMUM = 2**31 - 1
INDEX_MAXIMUM = 2**31 - 1


class CompareMessage(RequestBody):
    """One message of a conversation."""

    role: Annotated[str, Field(min_length=1, max_length=50)]
    content: str


class CompareFeature(RequestBody):
    """A feature of an attached SAE, and its value. `sae_id` and `layer` name the SAE where several are attached."""

    index: Annotated[int, Field(ge=0, le=INDEX_MAXIMUM)]
    value: Value
    sae_id: Annotated[str, Field(min_length=1, max_length=50)] | None = None
    layer: Annotated[int, Field(ge=0, le=INDEX_MAXIMUM)] | None = None


class CompareSteering(RequestBody):
    """The values of features of one or several SAEs, in the form that the requests of `/v1` have. They replace the live
    values; a comparison knows no other mode."""

    features: Annotated[list[CompareFeature], Field(max_length=STEERED_FEATURES)]
    mode: Literal["replace"] | None = None


_INTERVENTIONS = {"anyOf": [interventions.SHORT_SCHEMA, {"type": "null"}]}


class CompareBody(RequestBody):
    """A comparison of completions of `prompt` or of `messages`. The intensities multiply the values of `sae_steering`
    or of `steering`, and are the strength of `interventions`, else of what `profile` has, else of what steers now.
    Without `temperature` the completions are greedy, so that they differ by the steering alone. With `stream` the
    answer is server-sent events."""

    prompt: Annotated[str, Field(min_length=1)] | None = None
    messages: (
        Annotated[
            list[CompareMessage], Field(min_length=1, max_length=MESSAGES_MAXIMUM, fail_fast=True)
        ]
        | None
    ) = None
    intensities: Annotated[list[float], Field(default_factory=lambda: [0.0, 1.0])]
    steering: Annotated[dict[str, Value], Field(max_length=STEERED_FEATURES)] | None = None
    sae_id: Annotated[str, Field(max_length=50)] | None = None
    layer: Annotated[int, Field(ge=0)] | None = None
    sae_steering: CompareSteering | None = None
    interventions: Annotated[object, WithJsonSchema(_INTERVENTIONS)] = None
    profile: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=TOKENS_MAXIMUM)] = 64
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = 0.0
    top_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 1.0
    seed: Annotated[int, Field(ge=0, le=SEED_MAXIMUM)] | None = None
    activations: dict[str, object] | None = None
    stream: bool = False


STREAMED: dict[int | str, dict[str, object]] = {
    200: {
        "description": "the comparison; with `stream: true` as server-sent events, whose data are `CompareEvents`",
        "content": {"text/event-stream": {}},
    }
}


def router(compare: Compare, settings: Settings) -> APIRouter:
    routes = APIRouter(prefix="/api/compare", tags=["steering"])

    @routes.post("", response_model=Answer[Comparison], responses=STREAMED)
    async def run(body: CompareBody, request: Request) -> Response:
        """Run the comparison. It ends early when the client goes away."""
        model = await compare.model()
        asked = _asked(body, settings, request)
        if body.stream:
            return await _streamed(compare, settings, asked, model, request)
        compared = await unless_disconnected(request, compare.run(asked, model))
        return success(
            Comparison(
                model=compared.model,
                system_fingerprint=compared.fingerprint,
                prompt_tokens=compared.prompt_tokens,
                sides=[_side(side, compared) for side in compared.sides],
            )
        )

    return routes


async def _streamed(
    compare: Compare,
    settings: Settings,
    asked: Asked,
    model: ServedModel,
    request: Request,
) -> Response:
    """The answer as events. Its status is sent once every check has passed."""
    stack = AsyncExitStack()
    opening = stack.enter_async_context(compare.open(asked, model))
    try:
        comparing = await unless_disconnected(request, opening)
    except BaseException:
        await stack.aclose()
        raise
    return EventStream(_events(comparing, compare, settings), stack.aclose)


async def _events(
    comparing: Comparing, compare: Compare, settings: Settings
) -> AsyncIterator[bytes]:
    """`started`, then the texts of all sides as they are written, then `done` or `error`."""
    compared = comparing.compared
    yield event(encoded(_started(compared)), "started")
    try:
        async for written in with_waits(comparing.events):
            if written is None:
                yield COMMENT
                continue
            for name, data in _written(written, compared):
                yield event(encoded(data), name)
    except Refusal as refusal:
        yield _failure(refusal, compare, settings)
    except Exception:
        log.exception("comparison_failed")
        unknown = Refusal("INTERNAL_ERROR", "an error inside the service")
        yield _failure(unknown, compare, settings)
    else:
        yield event(b"{}", "done")


def _failure(refusal: Refusal, compare: Compare, settings: Settings) -> bytes:
    defaulted = compare.failed(refusal)
    after = retry.seconds(settings, refusal, refusal.row.api, defaulted)
    failed = CompareFailed(
        code=refusal.code,
        message=refusal.message,
        details=refusal.details,
        retry_after=UNSET if after is None else after,
    )
    return event(encoded(failed), "error")


def _started(compared: Compared) -> CompareStarted:
    read = _planned(compared)
    return CompareStarted(
        model=compared.model,
        system_fingerprint=compared.fingerprint,
        prompt_tokens=compared.prompt_tokens,
        sae=ReadSae(read.sae_id, read.layer) if read else None,
        sides=[StartedSide(side=i, **_steered(side)) for i, side in enumerate(compared.sides)],
    )


def _written(piece: Piece, compared: Compared) -> Iterator[tuple[str, Form]]:
    """The events of one piece of text. A token whose text is held back has its activations alone, as the tokens of the
    prompt have."""
    number = piece.choice
    intensity = compared.sides[number].intensity
    tokens = [_token(reading, compared) for reading in ACTIVATIONS.read(piece.parts) or ()]
    if piece.text or piece.finish:
        new = tokens[0] if tokens else None
        text = CompareText(
            side=number,
            intensity=intensity,
            text=piece.text,
            finish_reason=piece.finish,
            completion_tokens=piece.tokens,
            token=UNSET if _planned(compared) is None else new,
        )
        yield "text", text
    elif tokens:
        yield "prompt", ComparePrompt(side=number, intensity=intensity, tokens=tokens)


def _token(reading: Reading, compared: Compared) -> ReadToken:
    return ReadToken(
        position=reading.position,
        token_id=reading.token,
        features=_features(reading, compared),
        text=reading.text,
    )


def _features(reading: Reading, compared: Compared) -> list[ReadFeature]:
    planned = _planned(compared)
    labels = planned.labels if planned else {}
    weights: list[float | UnsetType] = [*reading.weights]
    weights += [UNSET] * (len(reading.features) - len(weights))
    return [
        ReadFeature(i, value, labels.get(i, UNSET), weight)
        for (i, value), weight in zip(reading.features, weights, strict=True)
    ]


def _steered(side: Side) -> dict[str, Any]:
    return {
        "intensity": side.intensity,
        "steering": {key: texts(values) for key, values in side.steering.items()},
        "edits": [interventions.without_data(edit) for edit in side.edits],
        "steering_state": side.state,
    }


def _side(side: Side, compared: Compared) -> ComparedSide:
    return ComparedSide(
        **_steered(side),
        text=side.text,
        finish_reason=side.finish,
        completion_tokens=side.tokens,
        sae_activations=_readings(side, compared),
    )


def _readings(side: Side, compared: Compared) -> SideActivations | None:
    planned = _planned(compared)
    if planned is None:
        return None
    positions = [
        ReadPosition(
            position=reading.position,
            token_id=reading.token,
            features=_features(reading, compared),
        )
        for told in side.parts
        for reading in ACTIVATIONS.read(told) or ()
    ]
    return SideActivations(sae_id=planned.sae_id, layer=planned.layer, positions=positions)


def _planned(compared: Compared) -> PlannedActivations | None:
    """The activations that the request asks for."""
    planned: PlannedActivations | None = compared.parts.get(ACTIVATIONS.name)
    return planned


def _asked(body: CompareBody, settings: Settings, request: Request) -> Asked:
    """Raises:
    Refusal: VALIDATION_ERROR, SAE_ACTIVATIONS_REFUSED.
    """
    if (body.prompt is None) == (body.messages is None):
        raise refuse_field("prompt", "give either prompt or messages")
    given = {
        "steering": body.steering,
        "sae_steering": body.sae_steering,
        "interventions": body.interventions,
        "profile": body.profile,
    }
    named = [field for field, value in given.items() if value is not None]
    if len(named) > 1:
        raise refuse_field(named[1], f"give either {named[0]} or {named[1]}")
    if body.steering is None and (body.sae_id is not None or body.layer is not None):
        raise refuse_field(
            "steering", "sae_id and layer name the SAE that steering is for; send steering too"
        )
    own = _own(body.sae_steering, body.interventions)
    if own is not None and body.messages is None and (where := own.roles_at) is not None:
        raise refuse_field(where, "a text has no messages with roles")
    client = client_of(request, settings)
    text: str | Conversation = body.prompt or ""
    if body.messages is not None:
        text = tuple({"role": one.role, "content": one.content} for one in body.messages)
    prompt = prompt_of(text, client)
    intensities = rules.check_intensities(body.intensities)
    read = {}
    if body.activations is not None:
        wanted = parse_value(body.activations, settings.sae_activations_max_top_k)
        read = {ACTIVATIONS.name: replace(wanted, is_streamed=body.stream)}
    sampling = m.Sampling(
        temperature=body.temperature,
        top_p=body.top_p,
        max_tokens=body.max_tokens,
        seed=body.seed,
    )
    sweep = rules.Sweep(
        intensities,
        None if body.steering is None else plain_indices(body.steering),
        body.sae_id,
        body.layer,
        own,
        _sent(body.interventions),
    )
    return Asked(
        request=m.Request(
            goal=m.Generate(sampling=sampling, is_stream=body.stream),
            prompts=[prompt] * len(intensities),
            client=client,
        ),
        steering=AskedSteering(profile=body.profile, sweep=sweep),
        parts=read,
        is_stream=body.stream,
        may_load=False,
    )


def _own(steering: CompareSteering | None, raw: object) -> RequestSteering | None:
    if raw is not None:
        made = interventions.parse(raw)
        if made.is_added:
            raise refuse_field("interventions", "a comparison knows no mode but replace")
        return made
    if steering is None:
        return None
    return RequestSteering(
        tuple(
            SteeredFeature(one.index, one.value, SaeChoice(one.sae_id, one.layer))
            for one in steering.features
        )
    )


def _sent(raw: object) -> tuple[Mapping[str, object], ...]:
    """The edits of a field `interventions` that was read without a refusal."""
    return tuple(raw["edits"]) if isinstance(raw, dict) else ()
