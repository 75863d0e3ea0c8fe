"""The answers of routes whose work is a job."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.envelope import success
from steerserve.control.inference.views import JobAnswer, JobRecord, JobResult
from steerserve.control.jobs import Job
from steerserve.errors import Refusal
from steerserve.http.disconnect import unless_disconnected

Wait = Annotated[bool, Query(description="Answer once the job is over.")]

BEGUN: dict[int | str, dict[str, object]] = {
    202: {"model": Answer[JobAnswer], "description": "the work goes on as a job"}
}
"""The description of the answer of a route that may begin a job."""


def record(job: Job) -> JobRecord:
    """The job as it is answered."""
    facts = {name: getattr(job.facts, name) for name in job.facts.__struct_fields__}
    return JobRecord(**facts, result=cast("JobResult", job.result))


def begun(job: Job) -> Response:
    """The answer to a request whose work goes on."""
    return success(JobAnswer(record(job)), 202)


async def answered(job: Job, request: Request, *, wait: bool) -> Response:
    """The job, with `wait` once it is over. It goes on when the client leaves.

    Raises:
        Refusal: with `wait`, the refusal that ended the job, with the id of the job.
    """
    if not wait:
        return begun(job)
    await until_over(job, request)
    return success(JobAnswer(record(job)))


async def until_over(job: Job, request: Request) -> None:
    """Wait until the job is over.

    Raises:
        ClientDisconnect: the client left before.
        Refusal: the refusal that ended the job, with the id of the job.
    """
    await unless_disconnected(request, job.over.wait())
    if job.refusal is not None:
        why = job.refusal
        raise Refusal(why.code, why.message, param=why.param, **{**why.details, "job_id": job.id})
