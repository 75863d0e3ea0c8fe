"""/api/saes/{sae_id}/features/search: features by labels, neighbours, promoted tokens, examples, or a text."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import Field, model_validator
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.answers.jobs import BEGUN, Wait, begun, until_over
from steerserve.api.envelope import RequestBody, success
from steerserve.api.inference.tokens import Conversation, Written, client_of, text_or_chat
from steerserve.control.jobs import Job
from steerserve.nouns.feature_search.owner import Order, TextSearch
from steerserve.nouns.features.form import FeatureSearch
from steerserve.nouns.features.owner import Features
from steerserve.nouns.promotions.owner import Promotions
from steerserve.settings import Settings

SEARCH_MAXIMUM = 100

Query = Annotated[str, Field(min_length=1, max_length=200)]


class Search(RequestBody):
    """A search for features: by words of their labels, by a feature whose neighbours are wanted, or by both. By
    `promotes` it is a search for the features that promote the tokens of the word `query`, by `examples` for those that
    peak at it in the newest corpus, and by `text` for those that fire on `text` or `messages`, in this `order`. With
    `examples` each feature has its strongest example."""

    query: Query | None = None
    feature_idx: int | None = None
    by: Literal["labels", "promotes", "examples", "text"] = "labels"
    text: Annotated[Written, Field(min_length=1)] | None = None
    messages: Conversation | None = None
    order: Order = "value"
    examples: bool = False
    limit: Annotated[int, Field(ge=1, le=SEARCH_MAXIMUM)] = 20

    @model_validator(mode="after")
    def _asks(self) -> Search:
        has_query = bool((self.query or "").strip())
        has_text = self.text is not None or self.messages is not None
        if self.by == "text":
            if (self.text is None) == (self.messages is None):
                raise ValueError("a search by text has either text or messages")
            if self.query is not None or self.feature_idx is not None:
                raise ValueError("a search by text has no query and no feature_idx")
            return self
        if has_text or self.order != "value":
            raise ValueError("text, messages and order belong to a search by text")
        if self.feature_idx is None and not has_query:
            raise ValueError("give a query, a feature_idx, or both")
        if self.by != "labels" and self.feature_idx is not None:
            raise ValueError(f"a search by {self.by} has no feature_idx")
        return self


def router(
    observed: Features, promotions: Promotions, texts: TextSearch, settings: Settings
) -> APIRouter:
    routes = APIRouter(prefix="/api/saes", tags=["features"])

    @routes.post("/{sae_id}/features/search", response_model=Answer[FeatureSearch], responses=BEGUN)
    async def search(sae_id: str, body: Search, request: Request, wait: Wait = False) -> Response:
        """The first search by `promotes` in an attached SAE begins a job that computes the promoted tokens of all
        features. Later ones are answered at once."""

        async def answered(found: FeatureSearch) -> Response:
            return success(await observed.with_examples(found) if body.examples else found)

        query = body.query or ""
        if body.by == "labels":
            return await answered(
                await observed.search(sae_id, body.query, body.feature_idx, body.limit)
            )
        if body.by == "examples":
            return await answered(await observed.peaking(sae_id, query, body.limit))
        if body.by == "text":
            text, client = text_or_chat(body.text, body.messages), client_of(request, settings)
            return await answered(await texts.search(sae_id, text, body.order, body.limit, client))
        while isinstance(found := await promotions.search(sae_id, query, body.limit), Job):
            if not wait:
                return begun(found)
            await until_over(found, request)
            if found.facts.state == "cancelled":
                return begun(found)
        return await answered(found)

    return routes
