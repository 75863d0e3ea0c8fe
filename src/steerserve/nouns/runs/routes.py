"""/api/runs: recorded answers, which can be made again."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from steerserve.api.answers import Answer
from steerserve.api.envelope import NDJSON, import_body, media_of, success
from steerserve.api.inference.tokens import client_of
from steerserve.http.disconnect import unless_disconnected
from steerserve.nouns.runs.form import DeletedRun, ImportedRuns, RunList
from steerserve.nouns.runs.owner import Runs
from steerserve.nouns.runs.rules import Replayed, ShownRun
from steerserve.settings import Settings

PAGE_MAXIMUM = 1000

_LINES: dict[int | str, dict[str, object]] = {
    200: {"content": {NDJSON[0]: {"schema": {"type": "string"}}}}
}
_IMPORT = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["runs"],
                    "properties": {"runs": {"type": "array", "items": {"type": "object"}}},
                    "additionalProperties": True,
                }
            },
        },
    }
}


def router(runs: Runs, settings: Settings) -> APIRouter:
    routes = APIRouter(prefix="/api/runs", tags=["runs"])

    @routes.get("", response_model=Answer[RunList])
    async def list_runs(limit: Annotated[int, Query(ge=1, le=PAGE_MAXIMUM)] = 50) -> Response:
        return success(await runs.newest(limit))

    @routes.get("/export", response_class=Response, responses=_LINES)
    async def export_runs() -> Response:
        """Every recorded answer as a line of JSON, the oldest first."""
        lines = await runs.lines()
        named = {"Content-Disposition": 'attachment; filename="runs.jsonl"'}
        return StreamingResponse(lines, media_type=NDJSON[0], headers=named)

    @routes.post("/import", response_model=Answer[ImportedRuns], openapi_extra=_IMPORT)
    async def import_runs(request: Request) -> Response:
        """Store recorded answers, also of another service. The body may also be an export, as
        application/x-ndjson."""
        is_lines = media_of(request) in NDJSON
        body = await (request.body() if is_lines else import_body(request))
        return success(await runs.add(body, is_lines=is_lines))

    @routes.get("/{request_id}", response_model=Answer[ShownRun])
    async def get_run(request_id: str) -> Response:
        """One recorded answer, by its id or by the X-Request-Id of its request. Of several answers with one
        X-Request-Id the newest is shown, and `also` has the ids of the others."""
        return success(await runs.get(request_id))

    @routes.delete("/{request_id}", response_model=Answer[DeletedRun])
    async def delete_run(request_id: str) -> Response:
        """Delete one recorded answer."""
        return success(DeletedRun(await runs.remove(request_id)))

    @routes.post("/{request_id}/replay", response_model=Answer[Replayed])
    async def replay_run(request_id: str, request: Request) -> Response:
        """Make a recorded answer again on the loaded model, with the steering and the seed that it had, and compare the
        two. The live steering stays as it is."""
        replaying = runs.replay(request_id, client_of(request, settings))
        return success(await unless_disconnected(request, replaying))

    return routes
