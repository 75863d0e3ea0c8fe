"""The fork server of the downloaders: what it keeps of a task, and what happens when a process dies or hangs."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path

import psutil

from steerserve.hub.child import Downloaders
from tests.hub.conftest import (
    FILES,
    GET,
    MakeDesk,
    assert_there,
    downloaders,
    fork_servers,
    held,
)
from tests.loopback_hub import LoopbackHub
from tests.refusals import refused

TOKEN = "hf_" + "SENTINEL" * 4


def memory(process: psutil.Process) -> bytes:
    """All memory of a process that can be written."""
    folder, parts = Path(f"/proc/{process.pid}"), []
    with (folder / "mem").open("rb", buffering=0) as opened:
        for line in (folder / "maps").read_text().splitlines():
            span = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
            if span is not None:
                begin, end = (int(place, 16) for place in span.groups())
                opened.seek(begin)
                parts.append(opened.read(end - begin))
    return b"".join(parts)


async def test_only_the_downloader_of_a_task_ever_has_its_token(
    make_desk: MakeDesk, own_downloaders: Downloaders, loopback: LoopbackHub
) -> None:
    loopback.add("acme/tiny", FILES, gated="manual", tokens=(TOKEN, "hf_other"))
    desk = make_desk(downloaders=own_downloaders)
    fault = loopback.fault("GET /api/models/", times=1, hold=1)
    question = asyncio.create_task(desk.hub.describe("acme/tiny", token=TOKEN))
    await held(fault.held)
    (child,) = downloaders()
    server = child.parent()
    assert server is not None
    # a process with further threads must not be forked
    assert server.num_threads() == 1
    assert TOKEN.encode() in memory(child)
    fault.release.set()
    await question
    assert TOKEN.encode() not in memory(server)
    fault = loopback.fault("GET /api/models/", times=1, hold=1)
    question = asyncio.create_task(desk.hub.describe("acme/tiny", token="hf_other"))
    await held(fault.held)
    assert TOKEN.encode() not in memory(downloaders()[0])
    fault.release.set()
    await question


async def test_a_killed_fork_server_is_started_anew_and_its_download_goes_on(
    make_desk: MakeDesk, own_downloaders: Downloaders, tiny: LoopbackHub
) -> None:
    desk = make_desk(downloaders=own_downloaders)
    job = desk.job(await desk.hub.describe("acme/tiny"))
    fault = tiny.fault(GET + job.sha + "/model", times=1, hold=1000)
    await desk.start(1, job)
    await held(fault.held)
    (server,) = (child.parent() for child in downloaders())
    assert server is not None
    server.kill()
    # the service reads the end of this process, so the test must not wait for the process itself
    while server.status() != psutil.STATUS_ZOMBIE:
        await asyncio.sleep(0)
    assert (await desk.hub.describe("acme/tiny")).sha == job.sha
    assert not server.is_running()
    fault.release.set()
    await desk.ended()
    assert (desk.codes, desk.waits) == ([None], [])
    assert_there(job)


async def test_a_downloader_that_hangs_is_killed_by_a_cancel(
    make_desk: MakeDesk, tiny: LoopbackHub
) -> None:
    desk = make_desk()
    job = desk.job(await desk.hub.describe("acme/tiny"))
    fault = tiny.fault(GET + job.sha + "/model", times=1, hold=1000)
    await desk.start(1, job)
    await held(fault.held)
    (child,) = downloaders()
    child.send_signal(signal.SIGSTOP)
    assert await desk.downloads.cancel(1)
    assert not child.is_running()
    assert desk.files == []


async def test_a_question_whose_downloader_dies_is_refused_and_the_next_one_is_answered(
    make_desk: MakeDesk, tiny: LoopbackHub
) -> None:
    desk = make_desk(hub_breaker_failures=1)
    fault = tiny.fault("GET /api/models/", times=1, hold=1)
    question = asyncio.create_task(desk.hub.describe("acme/tiny"))
    await held(fault.held)
    (child,) = downloaders()
    child.kill()
    refusal = await refused(question)
    assert (refusal.code, "ended early" in refusal.message) == ("DOWNLOAD_FAILED", True)
    assert not child.is_running()
    assert (await desk.hub.describe("acme/tiny")).files


async def test_the_end_of_the_service_ends_all_processes(
    make_desk: MakeDesk, own_downloaders: Downloaders, tiny: LoopbackHub
) -> None:
    desk = make_desk(downloaders=own_downloaders)
    before = {server.pid for server in fork_servers()}
    fault = tiny.fault("GET /api/models/", times=1, hold=1)
    question = asyncio.create_task(desk.hub.describe("acme/tiny"))
    await held(fault.held)
    (child,) = downloaders()
    await own_downloaders.close()
    assert not child.is_running()
    assert {server.pid for server in fork_servers()} <= before
    assert (await refused(question)).code == "DOWNLOAD_FAILED"
    assert (await refused(desk.hub.describe("acme/tiny"))).code == "SHUTTING_DOWN"
