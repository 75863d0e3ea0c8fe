"""Where the hub token goes, and where it does not; where the hub may send us, and where not; who outlives whom."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import psutil
import pytest

from steerserve.hub import child
from steerserve.hub.child import Downloaders
from steerserve.hub.job import Job
from steerserve.hub.session import Session
from steerserve.hub.wire import Describe, DownloaderTask, Kind, Trouble
from steerserve.logs import setup as log
from tests.hub.conftest import FILES, GET, PATIENCE, WEIGHTS, Desk, MakeDesk, downloaders, held
from tests.loopback_hub import LoopbackHub
from tests.refusals import refused

SENTINEL = "hf_SENTINEL0123456789"


@pytest.fixture
def tiny(loopback: LoopbackHub) -> LoopbackHub:
    loopback.add("acme/tiny", FILES, gated="manual", tokens=(SENTINEL,))
    return loopback


@pytest.fixture
def logged(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """Everything the service logs, debug lines and the libraries' included."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    log.configure("DEBUG", "json")
    yield lambda: "".join(capsys.readouterr())
    root.handlers[:] = handlers
    root.setLevel(level)


def contents(folder: Path) -> bytes:
    names = (str(path).encode() for path in folder.rglob("*"))
    return b"".join([*names, *(p.read_bytes() for p in folder.rglob("*") if p.is_file())])


@pytest.mark.parametrize("is_own", [True, False])
async def test_the_token_is_seen_by_the_hub_only(
    make_desk: MakeDesk,
    tiny: LoopbackHub,
    logged: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    own_downloaders: Downloaders,
    is_own: bool,
) -> None:
    for name in ("HUB_TOKEN", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.setenv(name, SENTINEL)
    desk = make_desk(
        downloaders=own_downloaders,
        hub_token=SENTINEL if is_own else None,
        download_attempts=2,
    )
    token = None if is_own else SENTINEL
    job = desk.job(await desk.hub.describe("acme/tiny", token=token), token=token)
    with LoopbackHub() as elsewhere:
        elsewhere.blobs.update(tiny.blobs)
        tiny.blobs_at = elsewhere.url
        tiny.fault(GET + job.sha + "/config", times=1, status=503)
        fault = elsewhere.fault("GET /blob/", times=1, hold=1000)
        await desk.start(1, job)
        await held(fault.held)
        (process,) = downloaders()
        exposed = [" ".join(process.cmdline()), repr(process.environ()), repr(job)]
        fault.release.set()
        await desk.ended()
        elsewhere.fault("GET /blob/", status=500)
        other = Job(job.repo_id, job.sha, job.files, job.folder.parent / ("0" * 40), token)
        await desk.fetch(2, other)
    tiny.known_tokens.clear()
    rejected = await refused(desk.hub.describe("acme/tiny", token=token))
    assert (desk.codes, rejected.code) == ([None, "DOWNLOAD_FAILED"], "INVALID_HUB_TOKEN")
    assert {seen.token for seen in tiny.seen} == {SENTINEL}
    assert len(elsewhere.seen) == 3
    assert not any("authorization" in seen.headers for seen in elsewhere.seen)
    refusals = [rejected, *(refusal for _, refusal in desk.ends if refusal)]
    exposed += [repr((r.message, r.details)) for r in refusals]
    exposed += [logged(), repr(desk.told), repr(desk.hub.breakers())]
    assert "download_attempt_failed" in "".join(exposed), "the log was read"
    assert not any(SENTINEL in text or "signature" in text for text in exposed)
    assert SENTINEL.encode() not in contents(tmp_path)


def test_what_carries_the_token_does_not_show_it(tmp_path: Path) -> None:
    ask = DownloaderTask("http://h", SENTINEL, Describe("a/b", None))
    job = Job("a/b", "0" * 40, (), tmp_path, SENTINEL)
    assert SENTINEL not in f"{ask!r} {ask} {job!r} {job}"


def test_a_downloader_gets_nothing_of_the_environment_but_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("HOME", "/home/operator")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "localhost")
    found = child.environment(tmp_path)
    assert not {"AWS_SECRET_ACCESS_KEY", "HOME"} & found.keys()
    assert (found["HTTPS_PROXY"], found["no_proxy"]) == ("http://proxy:3128", "localhost")
    assert found["HF_HOME"].startswith(str(tmp_path))


def test_the_service_itself_does_not_import_the_hubs_library() -> None:
    code = (
        "import sys, steerserve.hub.downloads\n"
        "assert not {'huggingface_hub', 'httpx2', 'hf_xet'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)


# ------------------------------------------------------------------ redirects


@pytest.mark.parametrize(
    "target",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://[fe80::1]/x",
        "http://[::ffff:169.254.169.254]/x",
        "http://0.0.0.0/x",
        "file:///etc/passwd",
        "ftp://127.0.0.1/x",
        "http://[bad/x",
        "gopher:x",
    ],
)
async def test_a_redirect_to_where_no_hub_has_business_is_refused(
    desk: Desk, loopback: LoopbackHub, target: str
) -> None:
    loopback.add("acme/tiny", FILES)
    job = desk.job(await desk.hub.describe("acme/tiny"))
    loopback.fault(GET + job.sha + "/model", status=302, headers={"Location": target})
    await desk.fetch(1, job)
    assert (desk.codes, desk.waits) == (["DOWNLOAD_FAILED"], [])


async def test_redirects_without_end_are_refused(desk: Desk, loopback: LoopbackHub) -> None:
    loopback.add("acme/tiny", FILES)
    job = desk.job(await desk.hub.describe("acme/tiny"))
    model = f"/acme/tiny/resolve/{job.sha}/model.safetensors"
    loopback.fault(f"GET {model}", status=302, headers={"Location": model})
    await desk.fetch(1, job)
    assert (desk.codes, desk.waits) == (["DOWNLOAD_FAILED"], [])
    assert len(loopback.asked(f"GET {model}")) < 10


@pytest.mark.parametrize(
    ("endpoint", "target", "is_allowed"),
    [
        ("https://1.1.1.1", "https://1.1.1.1/x", True),
        ("https://1.1.1.1", "https://8.8.8.8/x", True),
        ("https://1.1.1.1", "http://1.1.1.1/x", False),
        ("https://1.1.1.1", "https://127.0.0.1/x", False),
        ("https://1.1.1.1", "https://10.0.0.1/x", False),
        ("https://1.1.1.1", "https://100.100.100.200/x", False),
        ("https://1.1.1.1", "https://[fd00:ec2::254]/x", False),
        ("http://10.0.0.1:8080", "http://10.0.0.1:8080/x", True),
        ("http://10.0.0.1:8080", "http://10.0.0.2/x", True),
        ("http://10.0.0.1:8080", "https://8.8.8.8/x", True),
        ("http://10.0.0.1:8080", "http://169.254.169.254/x", False),
        ("http://169.254.1.1", "http://169.254.1.1/x", True),
    ],
)
def test_places_the_hub_may_send_us_to(endpoint: str, target: str, is_allowed: bool) -> None:
    session = Session(endpoint, SENTINEL, None)
    request = httpx2.Request("GET", target, headers=session.headers)
    if is_allowed:
        session._guard(request)
        assert ("Authorization" in request.headers) is target.startswith(endpoint + "/")
        return
    with pytest.raises(Trouble) as refused:
        session._guard(request)
    assert refused.value.kind is Kind.FAILED


# ------------------------------------------------------------------ who outlives whom

SERVICE = """
import asyncio, sys
from pathlib import Path
from steerserve.hub.child import Downloaders
from steerserve.hub.client import Hub
from steerserve.hub.downloads import Downloads
from steerserve.hub.job import Job
from steerserve.files.folder import folder_of
from steerserve.settings import Settings

async def end(key, refusal):
    print("ended", refusal)

async def main(url, home):
    settings = Settings(_env_file=None, steerserve_home=home, hf_endpoint=url, disk_reserve_mb=0)
    hub = Hub(settings, Downloaders(settings.model_cache_dir))
    downloads = Downloads(hub)
    found = await hub.describe("acme/tiny")
    folder = folder_of(settings.model_cache_dir, found.repo_id, found.sha)
    await downloads.start(1, Job(found.repo_id, found.sha, found.files, folder), print, end)
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_service_that_is_killed_leaves_no_downloader(
    loopback: LoopbackHub, tmp_path: Path
) -> None:
    loopback.add("acme/tiny", FILES)
    fault = loopback.fault("GET /acme/tiny/resolve/", hold=len(WEIGHTS) // 2)
    fault.match += f"{loopback.repos['acme/tiny'].sha}/model"
    service = subprocess.Popen([sys.executable, "-c", SERVICE, loopback.url, str(tmp_path)])
    try:
        assert fault.held.wait(PATIENCE)
        left = psutil.Process(service.pid).children(recursive=True)
        assert len([p for p in left if "steerserve.hub.forking" in p.cmdline()]) == 2
        os.kill(service.pid, signal.SIGKILL)
        gone, alive = psutil.wait_procs(left, PATIENCE)
    finally:
        service.kill()
        service.wait()
    assert gone
    assert not alive
