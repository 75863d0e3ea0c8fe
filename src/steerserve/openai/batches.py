"""/v1/batches: many requests in one file, answered while no other request wants the model."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from steerserve.control.inference.batches import Batches, BatchRow
from steerserve.control.metrics import note_object
from steerserve.control.threads import Threads
from steerserve.openai import answers, bodies
from steerserve.openai.files import listed
from steerserve.openai.intake import client_of, header, read_json
from steerserve.openai.response_shape import usage_of
from steerserve.rules.inference import fields
from steerserve.rules.inference.batches import seconds
from steerserve.settings import Settings

PAGE_MAXIMUM = 100
TIMES = (
    "in_progress_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)


def router(batches: Batches, reader: Threads, settings: Settings) -> APIRouter:
    routes = APIRouter(tags=["batches"])
    answered = answers.answered(answers.BatchObject)

    @routes.post(
        "/v1/batches",
        response_model=None,
        responses=answered,
        openapi_extra=bodies.described(bodies.BatchBody),
    )
    async def create_batch(request: Request) -> dict[str, object]:
        """Begin a batch. Its input is checked whole before its first line runs."""
        is_strict = fields.is_strict(header(request, "x-service-strict"))
        body = bodies.validated(bodies.BatchBody, await read_json(request, reader))
        lasts = body.output_expires_after
        row = await batches.create(
            body.endpoint,
            body.input_file_id,
            client_of(request, settings),
            body.metadata,
            None if lasts is None else lasts.seconds,
            is_strict=is_strict,
        )
        note_object(batch_id=row.id)
        return shown(row)

    @routes.get("/v1/batches", response_model=None, responses=answers.answered(answers.BatchList))
    async def list_batches(
        limit: Annotated[int, Query(ge=1, le=PAGE_MAXIMUM)] = 20, after: str | None = None
    ) -> dict[str, object]:
        """Batches, the newest first. `after` is the id of the last batch of the page before."""
        rows, has_more = await batches.store.page(limit, after)
        return listed([shown(row) for row in rows], has_more=has_more)

    @routes.get("/v1/batches/{batch_id}", response_model=None, responses=answered)
    async def get_batch(batch_id: str) -> dict[str, object]:
        """How far a batch is, and its files once it is over."""
        return shown(await batches.store.get(batch_id))

    @routes.post("/v1/batches/{batch_id}/cancel", response_model=None, responses=answered)
    async def cancel_batch(batch_id: str) -> dict[str, object]:
        """Cancel a batch. The lines that are answered are in its files."""
        return shown(await batches.cancel(batch_id))

    return routes


def shown(row: BatchRow) -> dict[str, object]:
    """A batch in the form of the Batch API."""
    faults = None
    if row.errors is not None:
        data = [
            {"code": one.code, "line": one.line, "message": one.message, "param": one.param}
            for one in row.errors
        ]
        faults = {"object": "list", "data": data}
    return {
        "id": row.id,
        "object": "batch",
        "endpoint": row.endpoint,
        "model": row.model,
        "errors": faults,
        "input_file_id": row.input_file_id,
        "completion_window": "24h",
        "status": row.status,
        "output_file_id": row.output_file_id,
        "error_file_id": row.error_file_id,
        "created_at": seconds(row.created_at),
        "expires_at": seconds(row.expires_at),
        **{name: row.times.get(name) for name in TIMES},
        "request_counts": {
            "total": row.total,
            "completed": row.completed,
            "failed": row.failed,
        },
        "metadata": row.metadata,
        "usage": usage_of(row.input_tokens, row.output_tokens),
    }
