"""Downloads by real processes from a hub on a loopback port: files, progress, turns, the disk, hostile jobs."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from steerserve.hub import job as job_module
from steerserve.hub.job import Job
from steerserve.hub.session import troubles
from steerserve.hub.wire import Kind, Trouble
from steerserve.rules.models.repository import RepoFile
from tests.hub.conftest import FILES, GET, TOTAL, Desk, MakeDesk, assert_there, held, percents
from tests.loopback_hub import LoopbackHub
from tests.refusals import refused


@pytest.mark.shows("models.17")
async def test_the_files_of_one_commit_are_fetched(desk: Desk, tiny: LoopbackHub) -> None:
    job = desk.job(await desk.hub.describe("acme/tiny"))
    assert job.folder == desk.cache / "acme--tiny" / tiny.repos["acme/tiny"].sha
    assert await desk.downloads.missing_bytes(job) == TOTAL
    await desk.start(7, job)
    assert desk.downloads.progress(7)
    await desk.ended()
    assert desk.ends == [(7, None)]
    assert_there(job)
    assert not desk.downloads.progress(7)
    assert desk.downloads.progress(7) is None
    assert await desk.downloads.missing_bytes(job) == 0
    assert all(f"/resolve/{job.sha}/" in seen.path for seen in tiny.asked("/resolve/"))
    assert percents(desk)[-1] == 100
    assert desk.told[-1][1].downloaded_bytes == desk.told[-1][1].total_bytes == TOTAL


async def test_progress_grows_with_the_bytes_and_ends_at_100(desk: Desk, tiny: LoopbackHub) -> None:
    job = desk.job(await desk.hub.describe("acme/tiny"))
    fault = tiny.fault(GET + job.sha + "/model", drip=1000)
    await desk.start(1, job)
    await desk.told_of(lambda progress: progress.percent > 2)
    early = desk.downloads.progress(1)
    await desk.told_of(lambda progress: early is not None and progress.percent > early.percent)
    fault.release.set()
    await desk.ended()
    speeds = [progress.speed_bps for _, progress in desk.told]
    assert any(speed is not None and speed > 1000 for speed in speeds)
    assert percents(desk) == sorted(percents(desk))
    assert percents(desk)[-1] == 100
    assert percents(desk).count(100) == 1
    assert len(desk.told) >= 3


async def test_files_can_be_chosen_and_those_that_are_there_are_not_fetched_again(
    desk: Desk, tiny: LoopbackHub
) -> None:
    found = await desk.hub.describe("acme/tiny")
    first, whole = desk.job(found, "config.json"), desk.job(found)
    await desk.fetch(1, first)
    assert_there(first, {"config.json": FILES["config.json"]})
    tiny.seen.clear()
    await desk.start(2, whole)
    progress = desk.downloads.progress(2)
    assert progress is not None
    assert progress.downloaded_bytes == len(FILES["config.json"])
    await desk.ended(2)
    assert_there(whole)
    assert not tiny.asked("/config.json")


async def test_only_so_many_run_at_once(make_desk: MakeDesk, loopback: LoopbackHub) -> None:
    desk = make_desk(max_download_workers=1)
    for name in ("one", "two"):
        loopback.add(f"acme/{name}", FILES)
    one = desk.job(await desk.hub.describe("acme/one"))
    two = desk.job(await desk.hub.describe("acme/two"))
    fault = loopback.fault("GET /acme/one/resolve/", times=1, hold=10)
    await desk.start(1, one)
    await held(fault.held)
    await desk.start(2, two)
    waiting = desk.downloads.progress(2)
    assert waiting is not None
    assert (waiting.downloaded_bytes, waiting.percent) == (0, 0)
    assert not loopback.asked("HEAD /acme/two/")
    fault.release.set()
    await desk.ended(2)
    assert desk.ends == [(1, None), (2, None)]
    assert_there(two)


# ------------------------------------------------------------------ the disk


async def test_a_disk_that_is_too_small_is_told_before_anything_is_fetched(
    make_desk: MakeDesk, loopback: LoopbackHub
) -> None:
    huge = {"type": "file", "path": "model.safetensors", "size": 1 << 60, "oid": "0" * 40}
    loopback.add("acme/huge", {}, extra=[huge])
    desk = make_desk(disk_reserve_mb=10)
    job = desk.job(await desk.hub.describe("acme/huge"))
    refusal = await refused(desk.start(1, job))
    details = refusal.details
    assert refusal.code == "INSUFFICIENT_DISK"
    assert (details["needed_mb"], details["reserve_mb"]) == (1 << 40, 10)
    assert 0 < details["free_mb"] < 1 << 40
    assert not loopback.asked("/resolve/")
    assert not desk.downloads.progress(1)


async def test_the_reserve_and_what_runs_beside_it_count(
    make_desk: MakeDesk, tiny: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = make_desk(disk_reserve_mb=1)
    tiny.add("acme/other", FILES)
    one = desk.job(await desk.hub.describe("acme/tiny"))
    two = desk.job(await desk.hub.describe("acme/other"))
    monkeypatch.setattr(job_module, "free_bytes", lambda _: (1 << 20) + TOTAL + TOTAL // 2)
    fault = tiny.fault("HEAD /acme/tiny", hold=0)
    tiny.fault(GET, times=1, hold=0, release=fault.release)
    await desk.downloads.check_disk(two)
    await desk.start(1, one)
    refusal = await refused(desk.start(2, two))
    assert refusal.code == "INSUFFICIENT_DISK"
    assert refusal.details["promised_mb"] == 1
    fault.release.set()
    await desk.ended()
    await desk.fetch(2, two)
    assert desk.codes == [None, None]


async def test_a_file_that_two_downloads_want_is_promised_once(
    desk: Desk, tiny: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.add("acme/other", FILES)
    whole = desk.job(await desk.hub.describe("acme/tiny"))
    part = replace(whole, files=whole.files[1:])
    other = desk.job(await desk.hub.describe("acme/other"))
    monkeypatch.setattr(job_module, "free_bytes", lambda _: TOTAL)
    fault = tiny.fault("HEAD ", hold=0)
    for key, job in enumerate([whole, whole, part]):
        await desk.start(key, job)
    monkeypatch.setattr(job_module, "free_bytes", lambda _: 2 * TOTAL - 1)
    assert (await refused(desk.start(3, other))).details["promised_mb"] == 1
    monkeypatch.setattr(job_module, "free_bytes", lambda _: 2 * TOTAL)
    await desk.start(3, other)
    fault.release.set()
    await desk.ended(4)
    assert desk.codes == [None] * 4


def test_a_disk_that_fills_up_is_said_so() -> None:
    """A file system cannot be filled here: the downloader is asked about the error it would see."""
    with pytest.raises(Trouble) as raised, troubles(False):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert raised.value.kind is Kind.DISK_FULL


# ------------------------------------------------------------------ hostile jobs


@pytest.mark.parametrize("path", ["../../outside", "/tmp/outside", "a/../../../outside", "a\x00b"])
async def test_a_job_that_names_places_outside_is_refused(
    desk: Desk, tiny: LoopbackHub, path: str
) -> None:
    found = await desk.hub.describe("acme/tiny")
    job = Job("acme/tiny", found.sha, (RepoFile(path, 1),), desk.cache / "x" / found.sha)
    assert (await refused(desk.start(1, job))).code == "DOWNLOAD_FAILED"
    assert not tiny.asked("HEAD ")


async def test_odd_but_harmless_names_are_stored_where_they_belong(
    desk: Desk, loopback: LoopbackHub
) -> None:
    files = {"a b/Ä%2f..%2fx.json": b"1", "x" * 250: b"2", "model.part": b"3", "a?b#c": b"4"}
    loopback.add("acme/odd", files)
    job = desk.job(await desk.hub.describe("acme/odd"))
    await desk.fetch(1, job)
    assert desk.codes == [None]
    assert {path: (job.folder / path).read_bytes() for path in files} == files


async def test_files_without_a_listed_size_or_digest(desk: Desk, tiny: LoopbackHub) -> None:
    found = await desk.hub.describe("acme/tiny")
    files = tuple(RepoFile(file.path, None) for file in found.files)
    job = Job("acme/tiny", found.sha, files, desk.cache / "acme--tiny" / found.sha)
    await desk.fetch(1, job)
    assert desk.codes == [None]
    assert_there(job)
