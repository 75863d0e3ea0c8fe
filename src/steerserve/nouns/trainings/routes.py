"""/api/vectors/train and /api/probes/train: vectors and probes from examples."""

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
)
from steerserve.control.inference.views import JobAnswer
from steerserve.nouns.directions.rules import TextIndex
from steerserve.nouns.lens.routes import LAYERS_MAXIMUM
from steerserve.nouns.trainings.owner import Example, Method, Trainings
from steerserve.nouns.trainings.owner import TrainingRequest as Asked
from steerserve.rules.steering.vector import NAME_MAXIMUM
from steerserve.settings import Settings

EXAMPLES_MAXIMUM = 500
"""The most examples of one group. The engine fits a direction between two steps of the running batch."""
INDEX_MAXIMUM = 2**31 - 1
SEED_MAXIMUM = 2**32 - 1

Text = Written | Conversation
Group = Annotated[list[Text], Field(min_length=2, max_length=EXAMPLES_MAXIMUM, fail_fast=True)]


class PairBody(RequestBody):
    """Two texts or conversations that differ in what is to be found. With `prompt`, both are texts that continue it."""

    positive: Text
    negative: Text
    prompt: Text | None = None


class IndexBody(RequestBody):
    """A position of each text; a negative one counts from the end."""

    index: Annotated[int, Field(ge=-INDEX_MAXIMUM, le=INDEX_MAXIMUM)]


class TrainBody(RequestBody):
    """Pairs, or two groups of texts or conversations, which are read unsteered. `read` names the position that is read
    of each, or the positions whose mean is; without `special_tokens`, position 0 and special tokens are left out of
    `last` and the means. `layers` are all layers of the model, or some. The seed chooses the share `holdout` of the
    examples, which shape no direction."""

    name: Annotated[str, Field(min_length=1, max_length=NAME_MAXIMUM)]
    pairs: (
        Annotated[list[PairBody], Field(min_length=2, max_length=EXAMPLES_MAXIMUM, fail_fast=True)]
        | None
    ) = None
    positives: Group | None = None
    negatives: Group | None = None
    layers: Literal["all"] | Annotated[list[Id], Field(min_length=1, max_length=LAYERS_MAXIMUM)] = (
        "all"
    )
    site: Annotated[str, Field(min_length=1, max_length=50)] = "resid_post"
    read: Literal["last", "mean", "mean_completion"] | IndexBody = "last"
    holdout: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.3
    seed: Annotated[int, Field(ge=0, le=SEED_MAXIMUM)] = 0
    special_tokens: bool = False


class TrainVectorBody(TrainBody):
    """Examples, and the method that makes a direction of them. With `measure`, the vector is then measured as
    `POST /api/vectors/{id}/measure` does it, briefly, with a probe of the same examples."""

    method: Method = "mean_difference"
    measure: bool = True


class TrainProbeBody(TrainBody):
    """Examples for a probe, which is fitted by logistic regression."""

    method: Literal["logistic"] = "logistic"


def router(trainings: Trainings, settings: Settings) -> APIRouter:
    routes = APIRouter(prefix="/api")

    @routes.post(
        "/vectors/train", tags=["vectors"], response_model=Answer[JobAnswer], responses=BEGUN
    )
    async def train_vector(body: TrainVectorBody, request: Request, wait: Wait = False) -> Response:
        """Begin a job that trains and stores a vector. Its result is the vector's record."""
        asked = _asked(body, client_of(request, settings))
        return await answered(await trainings.start(asked), request, wait=wait)

    @routes.post(
        "/probes/train", tags=["probes"], response_model=Answer[JobAnswer], responses=BEGUN
    )
    async def train_probe(body: TrainProbeBody, request: Request, wait: Wait = False) -> Response:
        """Begin a job that trains and stores a probe. Its result is the probe's record."""
        asked = _asked(body, client_of(request, settings))
        return await answered(await trainings.start(asked), request, wait=wait)

    return routes


def _asked(body: TrainVectorBody | TrainProbeBody, client: str) -> Asked:
    """Raises:
    Refusal: VALIDATION_ERROR where there are neither pairs nor two groups, or both.
    """
    positives, negatives = _examples(body)
    return Asked(
        name=body.name,
        positives=positives,
        negatives=negatives,
        is_paired=body.pairs is not None,
        layers=None if body.layers == "all" else tuple(body.layers),
        site=body.site,
        method=body.method,
        is_probe=isinstance(body, TrainProbeBody),
        read=TextIndex(body.read.index) if isinstance(body.read, IndexBody) else body.read,
        has_special=body.special_tokens,
        holdout=body.holdout,
        seed=body.seed,
        is_measured=isinstance(body, TrainVectorBody) and body.measure,
        client=client,
    )


def _examples(body: TrainBody) -> tuple[list[Example], list[Example]]:
    groups = [("positives", body.positives), ("negatives", body.negatives)]
    for name, group in groups:
        if (group is None) == (body.pairs is None):
            raise invalid_field(name, "give either pairs, or positives and negatives")
    if body.pairs is not None:
        groups = [
            (side, [getattr(pair, side) for pair in body.pairs])
            for side in ("positive", "negative")
        ]
        prompts = [None if one.prompt is None else given_text(one.prompt) for one in body.pairs]
        names = "pairs[{place}].{name}"
    else:
        prompts, names = [None] * EXAMPLES_MAXIMUM, "{name}[{place}]"
    positives, negatives = (
        [
            Example(names.format(name=name, place=place), given_text(text), prompts[place])
            for place, text in enumerate(group or ())
        ]
        for name, group in groups
    )
    return positives, negatives
