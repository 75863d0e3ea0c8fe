"""What a download does when the hub fails, stops, lies or refuses."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hub.conftest import (
    FILES,
    GET,
    TOTAL,
    WEIGHTS,
    Clock,
    Desk,
    MakeDesk,
    assert_there,
    percents,
)
from tests.loopback_hub import LoopbackHub
from tests.refusals import refused


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_hub_that_fails_twice_is_asked_a_third_time(
    desk: Desk, tiny: LoopbackHub, status: int
) -> None:
    job = desk.job(await desk.hub.describe("acme/tiny"))
    tiny.fault("/resolve/", times=2, status=status)
    await desk.fetch(1, job)
    assert desk.codes == [None]
    assert desk.waits == [2.0, 4.0]
    assert_there(job)


async def test_a_hub_that_asks_for_patience_gets_it_within_bounds(
    make_desk: MakeDesk, tiny: LoopbackHub
) -> None:
    desk = make_desk(download_attempts=4)
    job = desk.job(await desk.hub.describe("acme/tiny"))
    for wait in ("20", "900", "Wed, 21 Oct 2015 07:28:00 GMT"):
        tiny.fault(GET, times=1, status=429, headers={"Retry-After": wait})
    await desk.fetch(1, job)
    assert (desk.codes, desk.waits) == ([None], [20.0, 30.0, 8.0])


async def test_a_reset_connection_is_gone_on_with_where_it_stopped(
    desk: Desk, tiny: LoopbackHub
) -> None:
    job = desk.job(await desk.hub.describe("acme/tiny"))
    half = len(WEIGHTS) // 2
    fault = tiny.fault(GET + job.sha + "/model", times=1, hold=half, cut=0)
    await desk.start(1, job)
    await desk.told_of(lambda progress: progress.downloaded_bytes >= half)
    fault.release.set()
    await desk.ended()
    assert desk.codes == [None]
    assert_there(job)
    first, second = tiny.asked(GET + job.sha + "/model")
    assert first.range is None
    assert second.range is not None
    begin = int(second.range.removeprefix("bytes=").removesuffix("-"))
    assert 0 < begin <= half
    assert len(tiny.asked(GET + job.sha + "/config.json")) == 2, "one by the description"
    assert percents(desk) == sorted(percents(desk))


@pytest.mark.parametrize("how", [{"short": 150_000}, {"claim": 500_000}, {"claim": 1000}])
async def test_a_body_that_is_not_whole_is_noticed(
    desk: Desk, tiny: LoopbackHub, how: dict[str, Any]
) -> None:
    job = desk.job(await desk.hub.describe("acme/tiny"))
    tiny.fault(GET + job.sha + "/model", times=1, **how)
    await desk.fetch(1, job)
    assert (desk.codes, desk.waits) == ([None], [2.0])
    assert_there(job)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
async def test_a_body_of_other_bytes_is_noticed_and_fetched_again(
    desk: Desk, tiny: LoopbackHub, name: str
) -> None:
    job = desk.job(await desk.hub.describe("acme/tiny"))
    tiny.fault(GET + job.sha + f"/{name}", times=1, status=200, body=b"x" * len(FILES[name]))
    await desk.fetch(1, job)
    assert (desk.codes, desk.waits) == ([None], [2.0])
    assert_there(job)
    assert all(seen.range is None for seen in tiny.asked(GET + job.sha + f"/{name}"))
    assert percents(desk) == sorted(percents(desk))


async def test_a_body_without_end_is_cut_at_the_listed_size(
    make_desk: MakeDesk, tiny: LoopbackHub
) -> None:
    desk = make_desk(download_attempts=1)
    job = desk.job(await desk.hub.describe("acme/tiny"))
    tiny.fault(GET + job.sha + "/tokenizer", status=200, body=b"x" * 5_000_000)
    await desk.fetch(1, job)
    assert desk.codes == ["DOWNLOAD_FAILED"]
    assert sum(p.stat().st_size for p in desk.cache.rglob("*") if p.is_file()) <= TOTAL


async def test_a_server_that_ignores_the_range_sends_the_file_anew(
    desk: Desk, tiny: LoopbackHub
) -> None:
    job = desk.job(await desk.hub.describe("acme/tiny"))
    fault = tiny.fault(GET + job.sha + "/model", times=1, hold=100_000, cut=0)
    tiny.fault(GET + job.sha + "/model", times=1, status=200, body=WEIGHTS)
    await desk.start(1, job)
    await desk.told_of(lambda progress: progress.downloaded_bytes > 90_000)
    fault.release.set()
    await desk.ended()
    assert (desk.codes, desk.waits) == ([None], [2.0])
    assert_there(job)


async def test_a_download_that_stands_still_is_given_up(
    make_desk: MakeDesk, tiny: LoopbackHub
) -> None:
    desk = make_desk(download_stall_timeout=3.0, download_attempts=2)
    job = desk.job(await desk.hub.describe("acme/tiny"))
    tiny.fault(GET + job.sha + "/model", times=1, hold=1000)
    await desk.fetch(1, job)
    assert (desk.codes, desk.waits) == ([None], [2.0])
    assert_there(job)


async def test_after_the_last_attempt_the_parts_stay_for_a_later_start(
    desk: Desk, tiny: LoopbackHub
) -> None:
    job = desk.job(await desk.hub.describe("acme/tiny"))
    fault = tiny.fault(GET + job.sha + "/model", times=1, hold=300_000, cut=0)
    tiny.fault(GET + job.sha + "/model", status=500)
    await desk.start(1, job)
    await desk.told_of(lambda progress: progress.downloaded_bytes > 300_000)
    fault.release.set()
    await desk.ended()
    (refusal,) = [refusal for _, refusal in desk.ends if refusal]
    assert (refusal.code, desk.waits) == ("DOWNLOAD_FAILED", [2.0, 4.0])
    assert "http" not in refusal.message.lower()
    assert not job.folder.exists(), "files of an unfinished download are not among the finished"
    tiny.heal()
    await desk.start(1, job)
    resumed = desk.downloads.progress(1)
    assert resumed is not None
    assert resumed.percent > 50
    await desk.ended(2)
    assert desk.codes[-1] is None
    assert_there(job)


@pytest.mark.parametrize(
    ("status", "headers", "token", "code"),
    [
        (404, {"X-Error-Code": "RepoNotFound"}, None, "REPO_NOT_FOUND"),
        (404, {"X-Error-Code": "RevisionNotFound"}, None, "REPO_NOT_FOUND"),
        (404, {"X-Error-Code": "EntryNotFound"}, None, "DOWNLOAD_FAILED"),
        (401, {"X-Error-Code": "GatedRepo"}, None, "GATED_MODEL_NO_TOKEN"),
        (403, {"X-Error-Code": "GatedRepo"}, "hf_x", "INVALID_HUB_TOKEN"),
        (401, {}, "hf_x", "INVALID_HUB_TOKEN"),
        (403, {}, "hf_x", "INVALID_HUB_TOKEN"),
        (451, {}, None, "DOWNLOAD_FAILED"),
    ],
)
async def test_an_answer_that_refuses_is_not_repeated(
    make_desk: MakeDesk,
    tiny: LoopbackHub,
    status: int,
    headers: dict[str, str],
    token: str | None,
    code: str,
) -> None:
    desk = make_desk(hub_breaker_failures=1)
    tiny.known_tokens.add("hf_x")
    job = desk.job(await desk.hub.describe("acme/tiny"), token=token)
    tiny.fault("/resolve/", status=status, headers=headers)
    await desk.fetch(1, job)
    assert (desk.codes, desk.waits) == ([code], [])
    assert desk.hub.breakers()[0].failure_count == 0


async def test_a_file_of_another_commit_is_refused(desk: Desk, tiny: LoopbackHub) -> None:
    job = desk.job(await desk.hub.describe("acme/tiny"))
    tiny.fault("HEAD ", status=200, headers={"X-Repo-Commit": "e" * 40, "ETag": '"x"'})
    await desk.fetch(1, job)
    assert desk.codes == ["DOWNLOAD_FAILED"]
    assert not desk.files or desk.files == ["acme--tiny", f"acme--tiny/{job.sha}.parts"]


async def test_downloads_share_the_breaker(
    make_desk: MakeDesk, tiny: LoopbackHub, clock: Clock
) -> None:
    desk = make_desk(hub_breaker_failures=3, hub_breaker_recovery_s=60)
    job = desk.job(await desk.hub.describe("acme/tiny"))
    tiny.fault("/resolve/", status=500)
    await desk.fetch(1, job)
    assert desk.codes == ["DOWNLOAD_FAILED"]
    refusal = await refused(desk.start(2, job))
    assert (refusal.code, refusal.details["recovery_seconds"]) == (
        "HUB_UNAVAILABLE",
        60.0,
    )
    tiny.heal()
    clock.now += 60
    await desk.fetch(3, job)
    assert desk.codes[-1] is None
    assert desk.hub.breakers()[0].state == "closed"


async def test_a_storage_address_that_has_run_out_is_asked_for_again(
    loopback: LoopbackHub, desk: Desk
) -> None:
    with LoopbackHub() as storage:
        loopback.add("acme/tiny", FILES)
        storage.blobs = loopback.blobs
        loopback.blobs_at = storage.url
        storage.fault("/blob/", status=403, times=1)
        found = await desk.hub.describe("acme/tiny")
        await desk.fetch(1, desk.job(found))
        assert desk.codes == [None]
        assert len(storage.asked("/blob/")) >= 2
