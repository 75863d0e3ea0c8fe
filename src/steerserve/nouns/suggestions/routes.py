"""/api/saes/{sae_id}/labels/suggest, /suggestions and /accept: labels that a language model suggests."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.answers.jobs import BEGUN, Wait, answered
from steerserve.api.envelope import RequestBody, success
from steerserve.api.inference.tokens import Id, Written
from steerserve.control.inference.views import JobAnswer
from steerserve.nouns.suggestions.form import AcceptedLabels, SuggestionList
from steerserve.nouns.suggestions.owner import AskedEndpoint, SuggestionRequest, Suggestions

FEATURES_MAXIMUM = 100
TEXTS_MAXIMUM = 1000
EXAMPLES_MAXIMUM = 50
SEED_MAXIMUM = 2**32 - 1

FeatureIds = Annotated[list[Id], Field(min_length=1, max_length=FEATURES_MAXIMUM)]


class EndpointBody(RequestBody):
    """An endpoint of the setting LABEL_ENDPOINTS, and the model that is asked there. `api_key_env` may repeat the name
    of the variable that the setting has for the endpoint."""

    base_url: Annotated[str, Field(min_length=1, max_length=1000)]
    model: Annotated[str, Field(min_length=1, max_length=255)]
    api_key_env: Annotated[str, Field(min_length=1, max_length=100)] | None = None


class SuggestBody(RequestBody):
    """The features that need labels, and who is asked: an endpoint, or the resident model. It sees `examples` texts of
    each feature, and as many are held out for the score. They are among `texts`; without texts they are the examples
    of the corpora."""

    features: FeatureIds
    endpoint: EndpointBody | Literal["resident"]
    examples: Annotated[int, Field(ge=1, le=EXAMPLES_MAXIMUM)] = 10
    texts: Annotated[list[Written], Field(min_length=1, max_length=TEXTS_MAXIMUM)] | None = None
    seed: Annotated[int, Field(ge=0, le=SEED_MAXIMUM)] = 0


class AcceptBody(RequestBody):
    """The features whose suggestions become labels."""

    features: FeatureIds


def router(suggestions: Suggestions) -> APIRouter:
    routes = APIRouter(prefix="/api/saes", tags=["features"])

    @routes.post("/{sae_id}/labels/suggest", response_model=Answer[JobAnswer], responses=BEGUN)
    async def suggest_labels(
        sae_id: str, body: SuggestBody, request: Request, wait: Wait = False
    ) -> Response:
        """Begin a job that suggests labels. No label is written."""
        endpoint = None
        if isinstance(body.endpoint, EndpointBody):
            endpoint = AskedEndpoint(**body.endpoint.model_dump())
        asked = SuggestionRequest(
            sae_id=sae_id,
            features=tuple(dict.fromkeys(body.features)),
            endpoint=endpoint,
            examples=body.examples,
            texts=tuple(body.texts or ()),
            seed=body.seed,
        )
        return await answered(await suggestions.start(asked), request, wait=wait)

    @routes.get("/{sae_id}/labels/suggestions", response_model=Answer[SuggestionList])
    async def get_suggestions(sae_id: str) -> Response:
        return success(await suggestions.suggested(sae_id))

    @routes.post("/{sae_id}/labels/accept", response_model=Answer[AcceptedLabels])
    async def accept_labels(sae_id: str, body: AcceptBody) -> Response:
        """Make labels of suggestions. Labels that were not made of suggestions are never replaced."""
        return success(await suggestions.accept(sae_id, body.features))

    return routes
