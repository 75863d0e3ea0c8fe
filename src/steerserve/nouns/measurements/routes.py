"""/api/vectors/{vector_id}/measure: what a vector does when it is added at one of its layers."""

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
    given_text,
    invalid_field,
    texts_or_chats,
)
from steerserve.control.inference.texts import NamedText, prompt_of
from steerserve.control.inference.views import JobAnswer
from steerserve.nouns.effects.routes import (
    DIRECTIONS_MAXIMUM,
    PROMPTS_MAXIMUM,
    SEED_MAXIMUM,
    STRENGTHS_MAXIMUM,
    TOKENS_MAXIMUM,
    Strength,
    Words,
)
from steerserve.nouns.lens.routes import LAYERS_MAXIMUM
from steerserve.nouns.measurements.owner import Measurement, VectorMeasurements
from steerserve.nouns.trainings.routes import EXAMPLES_MAXIMUM
from steerserve.rules.steering.levers import EXAMPLES_MINIMUM
from steerserve.settings import Settings

Text = Written | Conversation
Group = Annotated[
    list[Text], Field(min_length=EXAMPLES_MINIMUM, max_length=EXAMPLES_MAXIMUM, fail_fast=True)
]


class MeasureBody(RequestBody):
    """How a vector is measured. Its effect is how often texts have one of `words`; without words, what a probe of
    `positives` against `negatives` says of them. `layers` are chosen by the AUC of the training where there is one, and
    `strengths` close in on the largest one that leaves the texts unbroken. Without `prompts` the service takes eight of
    its own. Each is continued by up to `tokens` tokens."""

    positives: Group | None = None
    negatives: Group | None = None
    words: Words | None = None
    prompts: Annotated[list[Text], Field(min_length=2, max_length=PROMPTS_MAXIMUM)] | None = None
    layers: (
        Literal["auto"] | Annotated[list[Id], Field(min_length=1, max_length=LAYERS_MAXIMUM)]
    ) = "auto"
    strengths: (
        Literal["auto"]
        | Annotated[list[Strength], Field(min_length=1, max_length=STRENGTHS_MAXIMUM)]
    ) = "auto"
    tokens: Annotated[int, Field(ge=1, le=TOKENS_MAXIMUM)] = 40
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = 1.0
    seed: Annotated[int, Field(ge=0, le=SEED_MAXIMUM)] = 0
    random_directions: Annotated[int, Field(ge=0, le=DIRECTIONS_MAXIMUM)] = 4


def router(measurements: VectorMeasurements, settings: Settings) -> APIRouter:
    routes = APIRouter(prefix="/api/vectors", tags=["vectors"])

    @routes.post("/{vector_id}/measure", response_model=Answer[JobAnswer], responses=BEGUN)
    async def measure_vector(
        vector_id: str, body: MeasureBody, request: Request, wait: Wait = False
    ) -> Response:
        """Begin a job that measures what a vector does at some of its layers and at some strengths. Its result is the
        vector's record, whose `measured` it replaces."""
        asked = _asked(body, client_of(request, settings))
        return await answered(await measurements.start(vector_id, asked), request, wait=wait)

    return routes


def _asked(body: MeasureBody, client: str) -> Measurement:
    """Raises:
    Refusal: VALIDATION_ERROR where there are neither words nor two groups, or both, and for a strength or a layer that
        is named twice.
    """
    groups = {"positives": body.positives, "negatives": body.negatives}
    for name, group in groups.items():
        if (group is None) == (body.words is None):
            raise invalid_field(name, "give either words, or positives and negatives")
    for name, given in (("layers", body.layers), ("strengths", body.strengths)):
        if len(set(given)) < len(given) and given != "auto":
            raise invalid_field(name, "give each of them once")
    positives, negatives = (
        [
            NamedText(f"{name}[{place}]", prompt_of(given_text(one), client))
            for place, one in enumerate(group or ())
        ]
        for name, group in groups.items()
    )
    return Measurement(
        positives=positives,
        negatives=negatives,
        words=body.words or (),
        prompts=None if body.prompts is None else texts_or_chats(body.prompts),
        layers=None if body.layers == "auto" else body.layers,
        strengths=None if body.strengths == "auto" else body.strengths,
        tokens=body.tokens,
        temperature=body.temperature,
        seed=body.seed,
        random_directions=body.random_directions,
        client=client,
    )
