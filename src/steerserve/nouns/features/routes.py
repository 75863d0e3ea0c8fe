"""/api/saes/{sae_id}/features and /labels: labels, figures and neighbours of single features."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.envelope import NDJSON, import_body, media_of, success
from steerserve.nouns.features.form import FeatureDetails, ImportedLabels, LabelPage
from steerserve.nouns.features.owner import Features
from steerserve.nouns.monitoring.form import Cleared
from steerserve.nouns.monitoring.rules import parse_features
from steerserve.rules.sensing import promoting

LARGEST_INTEGER = 2**31 - 1
PAGE_MAXIMUM = 1000


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


def router(observed: Features) -> APIRouter:
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
