"""Jobs: work for a request that can take longer than a client waits for an answer."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Literal

from steerserve.rules.form import Form

JobState = Literal["waiting", "running", "done", "failed", "cancelled"]

RUNNING_MAXIMUM = 4
"""The jobs that run at once; further ones wait for their turn."""
UNFINISHED_MAXIMUM = 32
"""The jobs that run or wait."""
FINISHED_MAXIMUM = 200
"""The finished jobs that are kept, the newest of them."""
KEPT = timedelta(days=1)
"""How long a finished job is kept."""


class JobError(Form, frozen=True):
    """Why a job failed: a code of the error table, a sentence for people, and details for programs."""

    code: str
    message: str
    details: dict[str, object]


class JobFacts(Form, frozen=True, kw_only=True):
    """A job without its result. `progress` is from 0 to 1. `message` says what the job does now. `finished_at` is null
    until the job has ended, and `error` unless it failed."""

    id: str
    kind: str
    state: JobState
    progress: float
    message: str
    created_at: datetime
    finished_at: datetime | None
    error: JobError | None

    @property
    def is_over(self) -> bool:
        return self.finished_at is not None


def forgotten(jobs: Iterable[JobFacts], now: datetime) -> list[str]:
    """The ids of the finished jobs that are not kept any more: those that are too old, and the oldest of too many."""
    finished = [(job.finished_at, job.id) for job in jobs if job.finished_at is not None]
    finished.sort(reverse=True)
    return [
        job_id
        for place, (at, job_id) in enumerate(finished)
        if place >= FINISHED_MAXIMUM or now - at >= KEPT
    ]
