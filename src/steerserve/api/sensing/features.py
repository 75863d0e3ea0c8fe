"""/api/saes/{sae_id}/features and /labels: labels, figures and neighbours of single features."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import Field, model_validator
from starlette.exceptions import HTTPException
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.answers.jobs import BEGUN, Wait, begun, is_over
from steerserve.api.envelope import NDJSON, RequestBody, import_body, media_of, success
from steerserve.control.jobs import Job
from steerserve.control.sensing.feature_views import (
    FeatureDetails,
    FeatureSearch,
    ImportedLabels,
    LabelPage,
)
from steerserve.control.sensing.features import Features
from steerserve.control.sensing.monitoring_views import Cleared
from steerserve.control.sensing.promotions import Promotions
from steerserve.rules.sensing import promoting
from steerserve.rules.sensing.monitoring import parse_features

LARGEST_INTEGER = 2**31 - 1
SEARCH_MAXIMUM = 100
PAGE_MAXIMUM = 1000

Text = Annotated[str, Field(min_length=1, max_length=200)]


class Search(RequestBody):
    """A search for features: by words of their labels, by a feature whose neighbours are wanted, or by both. By
    `promotes` it is a search for the features that promote the tokens of the word `query`."""

    query: Text | None = None
    feature_idx: int | None = None
    by: Literal["labels", "promotes"] = "labels"
    limit: Annotated[int, Field(ge=1, le=SEARCH_MAXIMUM)] = 20

    @model_validator(mode="after")
    def _asks(self) -> Search:
        if self.feature_idx is None and not (self.query or "").strip():
            raise ValueError("give a query, a feature_idx, or both")
        if self.by == "promotes" and self.feature_idx is not None:
            raise ValueError("a search by promotes has no feature_idx")
        return self


_IMPORT = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "anyOf": [
                        {"type": "object", "additionalProperties": True},
                        {"type": "array", "items": {"type": "object"}},
                    ]
                }
            },
        },
    }
}


def router(observed: Features, promotions: Promotions) -> APIRouter:
    routes = APIRouter(prefix="/api/saes", tags=["features"])

    @routes.get("/{sae_id}/labels", response_model=Answer[LabelPage])
    async def get_labels(
        sae_id: str,
        query: Annotated[str | None, Query(max_length=200)] = None,
        limit: Annotated[int, Query(ge=1, le=PAGE_MAXIMUM)] = 100,
        offset: Annotated[int, Query(ge=0, le=LARGEST_INTEGER)] = 0,
        features: Annotated[str | None, Query(description="Only of these, as in `1,2,3`.")] = None,
    ) -> Response:
        wanted = parse_features(features)
        return success(await observed.page(sae_id, query, limit, offset, wanted))

    @routes.post(
        "/{sae_id}/labels",
        response_model=Answer[ImportedLabels],
        openapi_extra=_IMPORT,
    )
    async def add_labels(sae_id: str, request: Request, replace: bool = False) -> Response:
        """`replace` forgets the labels that were there before. The body may also be JSON Lines, as
        application/x-ndjson."""
        is_lines = media_of(request) in NDJSON
        body = await (request.body() if is_lines else import_body(request))
        return success(await observed.add_body(sae_id, body, is_lines=is_lines, replace=replace))

    @routes.delete("/{sae_id}/labels", response_model=Answer[Cleared])
    async def clear_labels(sae_id: str) -> Response:
        cleared = await observed.clear_labels(sae_id)
        return success(Cleared(cleared, "the labels are forgotten"))

    @routes.delete("/{sae_id}/labels/{index}", response_model=Answer[Cleared])
    async def clear_label(sae_id: str, index: int) -> Response:
        cleared = await observed.clear_label(sae_id, index)
        return success(Cleared(cleared, "the label is forgotten"))

    @routes.post("/{sae_id}/features/search", response_model=Answer[FeatureSearch], responses=BEGUN)
    async def search(sae_id: str, body: Search, request: Request, wait: Wait = False) -> Response:
        """The first search by `promotes` in an attached SAE begins a job that computes the promoted tokens of all
        features. Later ones are answered at once."""
        if body.by == "labels":
            return success(await observed.search(sae_id, body.query, body.feature_idx, body.limit))
        while isinstance(
            found := await promotions.search(sae_id, body.query or "", body.limit), Job
        ):
            if not wait:
                return begun(found)
            if not await is_over(found, request):
                return Response(status_code=499)
            if found.facts.state == "cancelled":
                return begun(found)
        return success(found)

    @routes.get("/{sae_id}/features/search", include_in_schema=False)
    async def not_by_get() -> Response:
        """Answers 405. Without this route, `search` would be read as the index of a feature."""
        raise HTTPException(405)

    @routes.get("/{sae_id}/features/{index}", response_model=Answer[FeatureDetails])
    async def get_feature(
        sae_id: str,
        index: int,
        tokens: Annotated[int, Query(ge=1, le=promoting.MOST)] = promoting.SHOWN,
    ) -> Response:
        """`tokens` is the number of tokens in `promotes` and in `suppresses`."""
        return success(await observed.get(sae_id, index, tokens))

    return routes
