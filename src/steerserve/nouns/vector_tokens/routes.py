"""/api/vectors/{vector_id}/tokens: the tokens that a vector promotes and suppresses."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.envelope import success
from steerserve.nouns.features.form import VectorTokens
from steerserve.nouns.vector_tokens.owner import PromotingVectors
from steerserve.rules.sensing import promoting
from steerserve.rules.steering.vector import LAYER_MAXIMUM


def router(vectors: PromotingVectors) -> APIRouter:
    routes = APIRouter(prefix="/api/vectors", tags=["vectors"])

    @routes.get("/{vector_id}/tokens", response_model=Answer[VectorTokens])
    async def get_tokens(
        vector_id: str,
        tokens: Annotated[int, Query(ge=1, le=promoting.MOST)] = promoting.SHOWN,
        layer: Annotated[int | None, Query(ge=0, le=LAYER_MAXIMUM)] = None,
    ) -> Response:
        """The tokens whose logits each direction of the vector raises most and lowers most, `tokens` of each, in the
        loaded model. With `layer`, only the directions at this layer are read."""
        return success(await vectors.tokens(vector_id, layer, tokens))

    return routes
