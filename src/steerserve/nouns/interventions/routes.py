"""/api/interventions: the edits of features and vectors that steer every request without steering of its own."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import RootModel, WithJsonSchema
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.envelope import success
from steerserve.control.metrics import note_object
from steerserve.control.steering.interventions import Interventions
from steerserve.control.steering.views import LiveInterventions
from steerserve.rules.steering import interventions as rules


class InterventionsBody(RootModel[Annotated[dict[str, object], WithJsonSchema(rules.schema())]]):
    """Edits in the form that the requests of `/v1` have them."""


def router(interventions: Interventions) -> APIRouter:
    routes = APIRouter(prefix="/api/interventions", tags=["steering"])

    @routes.get("", response_model=Answer[LiveInterventions])
    async def get_interventions() -> Response:
        return success(interventions.state())

    @routes.put("", response_model=Answer[LiveInterventions])
    async def put_interventions(body: InterventionsBody) -> Response:
        """Replace the live interventions, and switch steering on. Without edits they end."""
        edits = body.root.get("edits")
        note_object(edits=len(edits) if isinstance(edits, list) else 0)
        return success(await interventions.put(body.root))

    @routes.delete("", response_model=Answer[LiveInterventions])
    async def clear_interventions() -> Response:
        """End the live interventions, also those that wait for their model to be loaded again after a crash."""
        return success(await interventions.clear())

    return routes
