"""Hands the jobs of all nouns to the service."""

from __future__ import annotations

from steerserve.control.jobs import JobEnded, JobProgressed, Jobs
from steerserve.nouns.jobs.routes import router
from steerserve.nouns.noun import Noun

JOBS = Noun(
    name="jobs",
    owner=lambda world: Jobs(world.bus, world.now),
    routes=lambda owner, _: router(owner),
    events=(JobProgressed, JobEnded),
    changes={
        ("DELETE", "/api/jobs/{job_id}"): "job_delete",
    },
)
