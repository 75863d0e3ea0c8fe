"""Jobs: work for a request that can take longer than a client waits for an answer.

Clients take turns, so that a client with many jobs delays mostly itself:

(1) The next free place goes to the client with the fewest running jobs, and there to the job that has waited longest.
(2) The running jobs of one client leave one place to the others, because a job may run for hours.
(3) Where as many jobs run or wait as may, a new job gets the place of the newest waiting job of the client that has
    most jobs, if that client would still have more jobs than the client of the new one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Literal

from steerserve.rules.bounds import JOBS_OF_CLIENT, JOBS_RUNNING
from steerserve.rules.form import Form

JobState = Literal["waiting", "running", "done", "failed", "cancelled"]

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


def next_job(waiting: Sequence[str], running: Iterable[str]) -> int | None:
    """The place of the waiting job that runs next, the oldest first, by the clients of the jobs. None where all places
    are taken, and where no job may run."""
    counts = Counter(running)
    if counts.total() >= JOBS_RUNNING:
        return None
    may_run = [
        place for place, client in enumerate(waiting) if counts[client] < JOBS_OF_CLIENT
    ]  # (2)
    return min(may_run, key=lambda place: counts[waiting[place]], default=None)  # (1)


def displaced(client: str, waiting: Sequence[str], running: Iterable[str]) -> int | None:
    """The place of the waiting job that goes for a new job of `client`, by the clients of the jobs (3). None where the
    new job has to go."""
    counts = Counter([*waiting, *running])
    newest = range(len(waiting) - 1, -1, -1)
    place = max(newest, key=lambda place: counts[waiting[place]], default=None)
    if place is None or counts[waiting[place]] <= counts[client] + 1:
        return None
    return place


def forgotten(jobs: Iterable[JobFacts], now: datetime) -> list[str]:
    """The ids of the finished jobs that are not kept any more: those that are too old, and the oldest of too many."""
    finished = [(job.finished_at, job.id) for job in jobs if job.finished_at is not None]
    finished.sort(reverse=True)
    return [
        job_id
        for place, (at, job_id) in enumerate(finished)
        if place >= FINISHED_MAXIMUM or now - at >= KEPT
    ]
