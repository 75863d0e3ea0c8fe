"""/api/lenses: lenses that were trained for a model, from files of this machine and of the model hub."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.answers.jobs import BEGUN, Wait, answered
from steerserve.api.envelope import (
    PageLimit,
    PageOffset,
    check_source,
    success,
)
from steerserve.control.inference.views import JobAnswer
from steerserve.nouns.lens.rules import LensRecord, LensSource
from steerserve.nouns.saes.routes import SaeHubBody
from steerserve.nouns.trained_lenses.form import DeletedLens, LensList
from steerserve.nouns.trained_lenses.owner import LensRequest, TrainedLenses
from steerserve.rules.bounds import PAGE_ROWS
from steerserve.rules.models.repository import RepoType
from steerserve.rules.steering.vector import NAME_MAXIMUM

_NEEDED = {"local": ("local_path",), "huggingface": ("repository_id",)}
_OF_HUB = ("repository_type", "file_path", "revision", "hub_token")
_PLACES = ("local_path", "repository_id", *_OF_HUB)


class NewLens(SaeHubBody):
    """A trained lens to register: a folder of tuned-lens or a file of jlens. It is on this machine (`local_path`),
    where it stays, or in a repository of the model hub, at `file_path` or in the repository's own folder.
    `repository_type` is `model` without it. `model_hint` replaces the name of the model that the files say."""

    name: Annotated[str, Field(min_length=1, max_length=NAME_MAXIMUM)]
    source: Literal["local", "huggingface"]
    local_path: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    repository_id: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    repository_type: RepoType | None = None
    model_hint: Annotated[str, Field(min_length=1, max_length=200)] | None = None

    @property
    def asked(self) -> LensRequest:
        """Raises:
        Refusal: VALIDATION_ERROR naming a field that the source does not have.
        """
        optional = _OF_HUB if self.source == "huggingface" else ()
        check_source(self, self.source, _NEEDED[self.source], optional, _PLACES)
        source = LensSource(
            kind=self.source,
            local_path=self.local_path,
            repository_id=self.repository_id,
            repository_type=self.repository_type,
            revision=self.revision,
            file_path=self.file_path,
        )
        return LensRequest(self.name, source, self.model_hint, self.token)


def router(lenses: TrainedLenses) -> APIRouter:
    routes = APIRouter(prefix="/api/lenses", tags=["inference"])

    @routes.get("", response_model=Answer[LensList])
    async def list_lenses(limit: PageLimit = PAGE_ROWS, offset: PageOffset = 0) -> Response:
        """Registered trained lenses, oldest first. `total` counts all of them."""
        rows, total = await lenses.page(limit, offset)
        return success(LensList([row.record for row in rows], total))

    @routes.post(
        "",
        response_model=Answer[JobAnswer],
        responses=BEGUN,
    )
    async def add_lens(body: NewLens, request: Request, wait: Wait = False) -> Response:
        """Begin a job that registers a trained lens. The result of the job is the record of the lens."""
        return await answered(await lenses.start(body.asked), request, wait=wait)

    @routes.get("/{lens_id}", response_model=Answer[LensRecord])
    async def get_lens(lens_id: str) -> Response:
        """The trained lens with this id or this name."""
        return success((await lenses.get(lens_id)).record)

    @routes.delete("/{lens_id}", response_model=Answer[DeletedLens])
    async def delete_lens(lens_id: str) -> Response:
        """Delete a trained lens, with its files if they came from the hub. Requests that use it keep it to their
        end."""
        return success(DeletedLens(await lenses.remove(lens_id)))

    return routes
