"""/api/jobs: work that takes longer than a client waits for an answer."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.answers.jobs import record
from steerserve.api.envelope import success
from steerserve.control.inference.views import JobAnswer, JobList
from steerserve.control.jobs import Jobs


def router(jobs: Jobs) -> APIRouter:
    routes = APIRouter(prefix="/api/jobs", tags=["jobs"])

    @routes.get("", response_model=Answer[JobList])
    async def list_jobs() -> Response:
        """The jobs without their results, the newest first."""
        return success(JobList([job.facts for job in jobs.all()]))

    @routes.get("/{job_id}", response_model=Answer[JobAnswer])
    async def get_job(job_id: str) -> Response:
        return success(JobAnswer(record(jobs.get(job_id))))

    @routes.delete("/{job_id}", response_model=Answer[JobAnswer])
    async def drop_job(job_id: str) -> Response:
        """Cancel a job that runs or waits, and forget a job that has ended."""
        return success(JobAnswer(record(await jobs.drop(job_id))))

    return routes
