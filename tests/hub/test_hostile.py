"""A hub that lies or stalls: each fault has a typed end, costs bounded time, memory and disk, and leaves no process."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from steerserve.hub import client
from steerserve.hub.job import Job
from steerserve.rules.models.repository import RepoFile
from tests.hub.conftest import (
    FILES,
    GET,
    TOTAL,
    MakeDesk,
    MakeHub,
    assert_there,
    downloaders,
    held,
)
from tests.loopback_hub import LoopbackHub
from tests.refusals import refused

# ------------------------------------------------------------------ answers without end


class Endless:
    """A server that answers every connection with `begin`, then with `more` until the client leaves."""

    def __init__(self, begin: bytes, more: bytes) -> None:
        self._begin, self._more = begin, more
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.recv(1 << 16)
                connection.sendall(self._begin)
                while True:
                    connection.sendall(self._more)
            except OSError:
                return


@pytest.fixture
def endless() -> Iterator[Callable[[bytes, bytes], str]]:
    servers: list[Endless] = []

    def make(begin: bytes, more: bytes) -> str:
        servers.append(Endless(begin, more))
        return servers[-1].url

    yield make
    for server in servers:
        server.close()


OK = b"HTTP/1.1 200 OK\r\n"
ENDLESS = {
    "headers": (OK, b"X-Header: " + b"a" * 1000 + b"\r\n", "HUB_UNAVAILABLE"),
    "one header": (OK + b"X-Header: ", b"a" * 1000, "HUB_UNAVAILABLE"),
    "a first line": (b"HTTP/1.1 200 ", b"O" * 1000, "HUB_UNAVAILABLE"),
    "provisional answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 40, "HUB_UNAVAILABLE"),
    "a body": (OK + b"\r\n", b"[" * 65536, "DOWNLOAD_FAILED"),
    "chunks": (
        OK + b"Transfer-Encoding: chunked\r\n\r\n",
        b"1\r\n[\r\n" * 10_000,
        "HUB_UNAVAILABLE",
    ),
}
SLOW = ("provisional answers", "chunks")


@pytest.mark.parametrize("kind", ENDLESS)
async def test_an_answer_without_end_ends(
    endless: Callable[[bytes, bytes], str], make_hub: MakeHub, kind: str
) -> None:
    begin, more, code = ENDLESS[kind]
    # only the answers in SLOW take so long; all others are noticed by their size
    hub = make_hub(1.0 if kind in SLOW else 30.0, hf_endpoint=endless(begin, more))
    async with asyncio.timeout(25):
        assert (await refused(hub.describe("acme/tiny"))).code == code
    assert not downloaders()


async def test_a_packing_that_nobody_asked_for_is_refused(
    make_hub: MakeHub, tiny: LoopbackHub
) -> None:
    for packing in ("br", "zstd", "gzip, gzip"):
        tiny.fault("/tree/", times=1, status=200, headers={"Content-Encoding": packing})
        refusal = await refused(make_hub().describe("acme/tiny"))
        assert (refusal.code, "packs" in refusal.message) == ("DOWNLOAD_FAILED", True)


# ------------------------------------------------------------------ lies about a repository


async def test_the_names_in_a_configuration_are_bounded(
    make_hub: MakeHub, loopback: LoopbackHub
) -> None:
    config = b'{"architectures": ["A\\u202eB\\n", 5, null, "%s"], "model_type": ["x"]}' % (
        b"x" * 9000
    )
    weights = {"parameters": {"d" * 9000: 5, "F16": 7, "\n": 1}}
    loopback.add("acme/odd", {"config.json": config}, info={"safetensors": weights})
    found = await make_hub().describe("acme/odd")
    assert found.architectures == ("AB", "x" * 255)
    assert found.model_type is None
    assert found.parameters_by_dtype == {"d" * 200: 5, "F16": 7}


async def test_a_listing_of_endless_paths_is_refused(
    make_hub: MakeHub, loopback: LoopbackHub
) -> None:
    loopback.page = 50_000
    paths = [f"{n}/".ljust(900, "x") for n in range(5000)]
    loopback.add("acme/long", {}, extra=[{"type": "file", "path": p, "size": 1} for p in paths])
    refusal = await refused(make_hub().describe("acme/long"))
    assert (refusal.code, "too long" in refusal.message) == ("DOWNLOAD_FAILED", True)


async def test_questions_wait_in_bounded_number(
    make_hub: MakeHub, tiny: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "AT_ONCE", 1)
    monkeypatch.setattr(client, "WAITING", 1)
    hub = make_hub()
    fault = tiny.fault("GET /api/models/acme/tiny", times=1, hold=0)
    asked = [asyncio.create_task(hub.describe("acme/tiny")) for _ in range(2)]
    await held(fault.held)
    refusal = await refused(hub.describe("acme/tiny"))
    assert (refusal.code, "too many" in refusal.message) == ("HUB_UNAVAILABLE", True)
    assert hub.breakers()[0].failure_count == 0
    fault.release.set()
    assert [found.repo_id for found in await asyncio.gather(*asked)] == ["acme/tiny"] * 2


# ------------------------------------------------------------------ lies about files


async def test_bytes_that_drip_are_given_up(make_desk: MakeDesk, tiny: LoopbackHub) -> None:
    desk = make_desk(download_stall_timeout=3.0, download_attempts=2)
    job = desk.job(await desk.hub.describe("acme/tiny"))
    tiny.fault(GET + job.sha + "/model", times=1, drip=1)
    await desk.fetch(1, job)
    assert (desk.codes, desk.waits) == ([None], [2.0])
    assert_there(job)


async def test_a_repository_with_other_bytes_than_listed_does_not_close_the_hub(
    make_desk: MakeDesk, tiny: LoopbackHub
) -> None:
    """The hub answers, so its breaker stays closed for all other repositories; nothing of the bytes is kept."""
    desk = make_desk(hub_breaker_failures=1, download_attempts=2)
    job = desk.job(await desk.hub.describe("acme/tiny"))
    tiny.fault(
        GET + job.sha + "/model", status=200, body=os.urandom(len(FILES["model.safetensors"]))
    )
    await desk.fetch(1, job)
    ((_, refusal),) = desk.ends
    assert refusal is not None
    assert (refusal.code, "not the content" in refusal.message) == ("DOWNLOAD_FAILED", True)
    assert (desk.hub.breakers()[0].state, desk.hub.breakers()[0].failure_count) == ("closed", 0)
    assert not job.folder.exists()
    assert sum(p.stat().st_size for p in desk.cache.rglob("*") if p.is_file()) < TOTAL / 2


@pytest.mark.parametrize("size", ["9" * 18, "-5", "1e3", "\u0661", ""])
async def test_a_size_that_only_the_file_tells_is_checked_before_it_is_fetched(
    make_desk: MakeDesk, tiny: LoopbackHub, size: str
) -> None:
    desk = make_desk(download_attempts=1)
    found = await desk.hub.describe("acme/tiny")
    files = tuple(RepoFile(file.path, None) for file in found.files)
    job = Job("acme/tiny", found.sha, files, desk.job(found).folder)
    headers = {
        "X-Repo-Commit": found.sha,
        "ETag": '"x"',
        "X-Linked-Size": size.encode().decode("latin-1"),
    }
    tiny.fault("HEAD ", status=200, headers=headers)
    await desk.fetch(1, job)
    assert desk.codes == [
        "INSUFFICIENT_DISK" if size.isascii() and len(size) > 9 else "DOWNLOAD_FAILED"
    ]
    assert not [seen for seen in tiny.asked(GET) if "config.json" not in seen.path]


async def test_files_that_cannot_be_moved_leave_no_half_of_a_download(
    make_desk: MakeDesk, tiny: LoopbackHub
) -> None:
    desk = make_desk()
    job = desk.job(await desk.hub.describe("acme/tiny"))
    in_the_way = job.folder / "tokenizer.json" / "other"
    in_the_way.mkdir(parents=True)
    await desk.fetch(1, job)
    ((_, refusal),) = desk.ends
    assert refusal is not None
    assert (refusal.code, "moved to their places" in refusal.message) == ("DOWNLOAD_FAILED", True)
    assert [p.name for p in job.folder.rglob("*")] == ["tokenizer.json", "other"]
    in_the_way.rmdir()
    in_the_way.parent.rmdir()
    asked = len(tiny.seen)
    await desk.fetch(2, job)
    assert desk.codes[-1] is None
    assert_there(job)
    assert len(tiny.seen) == asked, "the files were there already"


async def test_a_file_of_another_listing_in_place_of_a_folder_is_a_failed_download(
    make_desk: MakeDesk, tiny: LoopbackHub
) -> None:
    """A hub may list a file `a` of a commit today, and a file `a/b` of the same commit tomorrow."""
    desk = make_desk()
    found = await desk.hub.describe("acme/tiny")
    job = desk.job(found, "config.json")
    await desk.fetch(1, job)
    tiny.add("acme/tiny", FILES | {"config.json/b": b"1"}, sha=job.sha)
    await desk.fetch(2, replace(job, files=(RepoFile("config.json/b", 1),)))
    assert desk.codes == [None, "DOWNLOAD_FAILED"]
    assert (job.folder / "config.json").read_bytes() == FILES["config.json"]
