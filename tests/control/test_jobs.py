"""Jobs: their turns, their ends, and how long they are kept."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from steerserve.control import jobs
from steerserve.control.bus import Bus
from steerserve.control.jobs import Job, JobEnded, JobProgressed, Jobs, Report
from steerserve.control.metrics import CURRENT, RequestRecord
from steerserve.errors import Refusal
from steerserve.rules import jobs as rules
from steerserve.rules.bounds import JOBS_OF_CLIENT, JOBS_RUNNING, JOBS_UNFINISHED
from steerserve.rules.events import Event
from steerserve.rules.form import Form
from tests.refusals import refusal_of
from tests.waiting import soon, until


class Counted(Form, frozen=True):
    count: int


class Desk:
    """The owner of jobs with a clock that a test sets. Each job waits until its gate is opened."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 5, tzinfo=UTC)
        self.events: list[Event] = []
        bus = Bus()
        bus.subscribe(self.events.append)
        self.jobs = Jobs(bus, lambda: self.now)
        self.gate = asyncio.Event()

    def start(self, client: str = "") -> Job:
        token = CURRENT.set(RequestRecord(client=client))
        try:
            return self.jobs.start("counting", self._work)
        finally:
            CURRENT.reset(token)

    async def _work(self, report: Report) -> Counted:
        report(0.5, "half")
        await self.gate.wait()
        return Counted(3)

    async def end(self, job: Job) -> Job:
        self.gate.set()
        await soon(job.over.wait())
        return job


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def test_a_job_reports_its_progress_and_keeps_its_result(desk: Desk) -> None:
    job = desk.start()
    assert (job.facts.state, job.facts.progress, job.facts.finished_at) == ("waiting", 0.0, None)
    await until(lambda: job.facts.progress)
    assert (job.facts.state, job.facts.message) == ("running", "half")
    await desk.end(job)
    assert (job.facts.state, job.facts.progress, job.facts.finished_at) == ("done", 1.0, desk.now)
    assert (job.result, job.facts.error) == (Counted(3), None)
    progressed = [e.job for e in desk.events if isinstance(e, JobProgressed)]
    assert [(one.state, one.progress) for one in progressed] == [("running", 0), ("running", 0.5)]
    assert [e.job for e in desk.events if isinstance(e, JobEnded)] == [job.facts]
    assert desk.jobs.get(job.id) is job


async def test_a_refusal_is_the_typed_end_and_a_bug_an_internal_error(desk: Desk) -> None:
    async def refused(_: Report) -> Form:
        raise Refusal("SAE_NOT_ATTACHED", "gone", sae_id="sae_a")

    async def broken(_: Report) -> Form:
        raise KeyError("a")

    for work, code, details in (
        (refused, "SAE_NOT_ATTACHED", {"sae_id": "sae_a"}),
        (broken, "INTERNAL_ERROR", {}),
    ):
        job = await desk.end(desk.jobs.start("failing", work))
        assert job.facts.state == "failed"
        assert job.facts.error is not None
        assert (job.facts.error.code, job.facts.error.details) == (code, details)


async def test_a_dropped_job_is_cancelled_and_a_finished_one_forgotten(desk: Desk) -> None:
    job = desk.start()
    await until(lambda: job.facts.progress)
    assert (await soon(desk.jobs.drop(job.id))).facts.state == "cancelled"
    assert job.facts.finished_at == desk.now
    assert desk.jobs.get(job.id) is job
    await desk.jobs.drop(job.id)
    assert refusal_of(desk.jobs.get, job.id).code == "JOB_NOT_FOUND"


async def test_jobs_beyond_the_bound_wait_and_too_many_are_refused(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "JOBS_UNFINISHED", JOBS_OF_CLIENT + 1)
    started = [desk.start() for _ in range(JOBS_OF_CLIENT + 1)]
    *running, waiting = started
    await until(lambda: all(job.facts.progress for job in running))
    assert waiting.facts.state == "waiting"
    assert refusal_of(desk.start).code == "TOO_MANY_JOBS"
    await desk.jobs.drop(running[0].id)
    await until(lambda: waiting.facts.progress)
    desk.start()
    await desk.end(waiting)


async def test_a_waiting_job_is_cancelled_without_having_begun(desk: Desk) -> None:
    running = [desk.start() for _ in range(JOBS_OF_CLIENT)]
    await until(lambda: all(job.facts.progress for job in running))
    waiting = desk.start()
    assert (await soon(desk.jobs.drop(waiting.id))).facts.state == "cancelled"
    assert waiting.facts.progress == 0
    await desk.end(running[0])
    unstarted = desk.start()
    assert (await desk.jobs.drop(unstarted.id)).facts.state == "cancelled"


async def test_a_client_with_many_jobs_leaves_room_for_those_of_others(desk: Desk) -> None:
    greedy = [desk.start("greedy") for _ in range(JOBS_UNFINISHED)]
    assert refusal_of(desk.start, "greedy").code == "TOO_MANY_JOBS"
    polite = desk.start("polite")
    await until(lambda: polite.facts.progress)
    assert sum(job.facts.state == "running" for job in greedy) == JOBS_RUNNING - 1
    await soon(greedy[-1].over.wait())
    assert greedy[-1].facts.error is not None
    assert greedy[-1].facts.error.code == "TOO_MANY_JOBS"
    assert [job.facts.state for job in greedy[-3:-1]] == ["waiting", "waiting"]
    second = desk.start("polite")
    await desk.jobs.drop(greedy[0].id)
    await until(lambda: second.facts.progress)
    await desk.end(greedy[-2])


@pytest.mark.parametrize(
    ("waiting", "running", "place"),
    [
        ("", "", None),
        ("a", "", 0),
        ("aab", "a", 2),  # the client with the fewest running jobs
        ("aba", "ab", 0),  # of those the job that has waited longest
        ("a", "aaa", None),  # one place is left to others
        ("ab", "aaa", 1),
        ("ab", "aabb", None),
    ],
)
def test_clients_take_turns(waiting: str, running: str, place: int | None) -> None:
    assert rules.next_job(list(waiting), running) == place


@pytest.mark.parametrize(
    ("client", "waiting", "running", "place"),
    [
        ("c", "", "aaa", None),
        ("c", "aaa", "", 2),
        ("c", "aab", "a", 1),
        ("c", "aabb", "", 3),
        ("c", "a", "", None),  # the other client would not have more jobs than this one
        ("a", "aab", "", None),
    ],
)
def test_the_newest_job_of_the_client_with_most_goes(
    client: str, waiting: str, running: str, place: int | None
) -> None:
    assert rules.displaced(client, list(waiting), running) == place


async def test_finished_jobs_are_kept_for_a_day_and_the_newest_of_many(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "FINISHED_MAXIMUM", 2)
    ended = []
    for _ in range(3):
        ended.append(await desk.end(desk.start()))
        desk.now += timedelta(minutes=1)
    assert [job.id for job in desk.jobs.all()] == [ended[2].id, ended[1].id]
    desk.now = ended[1].facts.created_at + timedelta(days=1)
    assert [job.id for job in desk.jobs.all()] == [ended[2].id]


async def test_a_job_that_never_ran_is_ended_by_the_close_of_the_service(desk: Desk) -> None:
    job = desk.start()
    await desk.jobs.close()
    assert job.facts.error is not None
    assert job.facts.error.code == "SHUTTING_DOWN"
    assert refusal_of(desk.start).code == "SHUTTING_DOWN"


async def test_a_running_job_ends_with_the_service(desk: Desk) -> None:
    job = desk.start()
    await until(lambda: job.facts.progress)
    await soon(desk.jobs.close())
    assert job.facts.error is not None
    assert job.facts.error.code == "SHUTTING_DOWN"
