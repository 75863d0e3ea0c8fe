"""Owner of the jobs: what runs, what waits for its turn, and what has ended lately. Jobs end with the service."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import ClassVar

import structlog
from msgspec.structs import replace

from steerserve.control.bus import Bus
from steerserve.control.metrics import CURRENT
from steerserve.database.catalog import Clock, utc_now
from steerserve.errors import Refusal
from steerserve.logs import background
from steerserve.rules import jobs as rules
from steerserve.rules.bounds import JOBS_UNFINISHED
from steerserve.rules.events import LiveEvent
from steerserve.rules.form import Form
from steerserve.rules.jobs import JobError, JobFacts
from steerserve.rules.throttle import WorkReport

log = structlog.get_logger(__name__)

Report = Callable[[float, str], None]
"""(progress from 0 to 1, what is done now)"""
Work = Callable[[Report], Awaitable[Form]]
"""The work of a job, which returns its result. A refusal that it raises is the typed end of the job."""


class JobProgressed(LiveEvent, frozen=True):
    """A job has begun, or is further."""

    wire: ClassVar = "job:progress"
    content: ClassVar = "job"
    job: JobFacts

    def work_report(self) -> WorkReport:
        return WorkReport(("job", self.job.id), is_last=self.job.progress >= 1)


class JobEnded(LiveEvent, frozen=True):
    """A job has ended."""

    wire: ClassVar = "job:done"
    content: ClassVar = "job"
    job: JobFacts

    def work_report(self) -> WorkReport:
        return WorkReport(("job", self.job.id), is_last=True)


class Job:
    """One job of a client. `facts` are as of now; `result` is None until the job is done."""

    def __init__(self, kind: str, client: str, now: datetime) -> None:
        self.client = client
        self.facts = JobFacts(
            id=f"job_{secrets.token_hex(6)}",
            kind=kind,
            state="waiting",
            progress=0.0,
            message="waits for its turn",
            created_at=now,
            finished_at=None,
            error=None,
        )
        self.result: Form | None = None
        self.refusal: Refusal | None = None
        self.over = asyncio.Event()

    @property
    def id(self) -> str:
        return self.facts.id


class Jobs:
    """Starts jobs, and keeps them for a day after their end."""

    def __init__(self, bus: Bus, now: Clock = utc_now) -> None:
        self._bus = bus
        self._now = now
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[str, asyncio.Task[Form]] = {}
        self._waiting: dict[Job, asyncio.Future[None]] = {}
        self._running: set[Job] = set()
        self._is_closing = False

    def start(self, kind: str, work: Work) -> Job:
        """A new job of the client whose request is served, which begins when it is its turn.

        Raises:
            Refusal: TOO_MANY_JOBS, SHUTTING_DOWN.
        """
        if self._is_closing:
            raise _shutting_down()
        self._forget()
        record = CURRENT.get()
        job = Job(kind, record.client if record is not None else "", self._now())
        if len(self._waiting) + len(self._running) >= JOBS_UNFINISHED:
            self._make_room(job.client)
        self._jobs[job.id] = job
        turn = self._waiting[job] = asyncio.get_running_loop().create_future()
        task = self._tasks[job.id] = background.start(self._run(job, turn, work), name=job.id)
        task.add_done_callback(partial(self._end, job))
        self._give_turns()
        return job

    def all(self) -> list[Job]:
        """The jobs, the newest first."""
        self._forget()
        return list(reversed(self._jobs.values()))

    def get(self, job_id: str) -> Job:
        """Raises:
        Refusal: JOB_NOT_FOUND.
        """
        self._forget()
        if job_id not in self._jobs:
            raise Refusal("JOB_NOT_FOUND", f"no job {job_id!r}", job_id=job_id)
        return self._jobs[job_id]

    async def drop(self, job_id: str) -> Job:
        """Cancel a job, and return it once its work has stopped; forget a job that has ended.

        Raises:
            Refusal: JOB_NOT_FOUND.
        """
        job = self.get(job_id)
        if (task := self._tasks.get(job_id)) is None:
            del self._jobs[job_id]
        else:
            task.cancel()
            await job.over.wait()
        return job

    async def close(self) -> None:
        """End all jobs."""
        self._is_closing = True
        jobs = [self._jobs[job_id] for job_id in self._tasks]
        for task in self._tasks.values():
            task.cancel()
        for job in jobs:
            await job.over.wait()

    # ------------------------------------------------------------- inside

    async def _run(self, job: Job, turn: asyncio.Future[None], work: Work) -> Form:
        def report(progress: float, message: str) -> None:
            self._note(job, progress=progress, message=message)

        await turn
        self._note(job, state="running", message="has begun")
        return await work(report)

    def _give_turns(self) -> None:
        while True:
            waiting = list(self._waiting)
            running = (job.client for job in self._running)
            place = rules.next_job([job.client for job in waiting], running)
            if place is None:
                return
            turn = self._waiting.pop(waiting[place])
            self._running.add(waiting[place])
            if not turn.done():
                turn.set_result(None)

    def _make_room(self, client: str) -> None:
        """End a waiting job of another client for one of this client.

        Raises:
            Refusal: TOO_MANY_JOBS.
        """
        waiting, count = list(self._waiting), len(self._waiting) + len(self._running)
        running = (job.client for job in self._running)
        place = rules.displaced(client, [job.client for job in waiting], running)
        if place is None:
            why = f"{count} jobs run or wait; cancel one, or wait until one has ended"
            raise Refusal("TOO_MANY_JOBS", why, jobs=count)
        job = waiting[place]
        why = f"{count} jobs ran or waited, most of them of one client, and a job of another client has taken the place"
        job.refusal = Refusal("TOO_MANY_JOBS", why, jobs=count)
        del self._waiting[job]
        self._tasks[job.id].cancel()

    def _note(self, job: Job, **changes: object) -> None:
        job.facts = replace(job.facts, **changes)
        self._bus.publish(JobProgressed(job.facts))

    def _end(self, job: Job, task: asyncio.Task[Form]) -> None:
        """The work of a job has stopped, perhaps before it began."""
        del self._tasks[job.id]
        self._waiting.pop(job, None)
        self._running.discard(job)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Refusal):
            self._fail(job, error)
        elif error is not None:
            log.error("job_failed", job_id=job.id, kind=job.facts.kind, exc_info=error)
            self._fail(job, Refusal("INTERNAL_ERROR", "an error inside the service"))
        elif not task.cancelled():
            job.result = task.result()
            job.facts = replace(job.facts, state="done", progress=1.0, message="is done")
        elif job.refusal is not None:
            self._fail(job, job.refusal)
        elif self._is_closing:
            self._fail(job, _shutting_down())
        else:
            job.facts = replace(job.facts, state="cancelled", message="was cancelled")
        job.facts = replace(job.facts, finished_at=self._now())
        job.over.set()
        self._bus.publish(JobEnded(job.facts))
        self._give_turns()

    def _fail(self, job: Job, refusal: Refusal) -> None:
        job.refusal = refusal
        named = {} if refusal.param is None else {"param": refusal.param}
        error = JobError(refusal.code, refusal.message, named | refusal.details)
        job.facts = replace(job.facts, state="failed", message=refusal.message, error=error)

    def _forget(self) -> None:
        for job_id in rules.forgotten((job.facts for job in self._jobs.values()), self._now()):
            del self._jobs[job_id]


def _shutting_down() -> Refusal:
    return Refusal("SHUTTING_DOWN", "the service is shutting down")
