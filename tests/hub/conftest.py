"""Fixtures: a loopback hub, and the two owners of the service that use it through real downloader processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from steerserve.errors import Refusal
from steerserve.files.folder import folder_of
from steerserve.hub.child import Downloaders
from steerserve.hub.client import Hub
from steerserve.hub.described import Repository
from steerserve.hub.downloads import Downloads, Read
from steerserve.hub.job import Job
from steerserve.rules.models.downloads import FetchProgress
from steerserve.settings import Settings
from tests.loopback_hub import LoopbackHub
from tests.waiting import Clock

PATIENCE = 30.0
WEIGHTS = os.urandom(400_000)
FILES = {
    "config.json": b'{"architectures": ["TinyForCausalLM"], "model_type": "tiny"}',
    "model.safetensors": WEIGHTS,
    "tokenizer.json": b"{}" * 500,
}
TOTAL = sum(map(len, FILES.values()))
GET = "GET /acme/tiny/resolve/"


class Desk:
    """The owner of downloads, with all the progress and ends that it reported."""

    def __init__(self, hub: Hub) -> None:
        self.waits: list[float] = []
        self.downloads = Downloads(hub, sleep=self._sleep)
        self.hub = hub
        self.told: list[tuple[int, FetchProgress]] = []
        self.ends: list[tuple[int, Refusal | None]] = []
        self._changed = asyncio.Condition()
        self._was_told = asyncio.Event()

    @property
    def cache(self) -> Path:
        return self.hub.settings.model_cache_dir

    @property
    def codes(self) -> list[str | None]:
        """The codes with which the jobs ended, in the order of their ends."""
        return [refusal.code if refusal else None for _, refusal in self.ends]

    @property
    def files(self) -> list[str]:
        """All files and folders in the cache, except those of the hub's library."""
        found = (path.relative_to(self.cache).as_posix() for path in self.cache.rglob("*"))
        return sorted(path for path in found if not path.startswith(".hub"))

    def job(self, found: Repository, *paths: str, token: str | None = None) -> Job:
        files = tuple(file for file in found.files if not paths or file.path in paths)
        folder = folder_of(self.cache, found.repo_id, found.sha)
        return Job(found.repo_id, found.sha, files, folder, token)

    async def start(self, key: int, job: Job, read: Read | None = None) -> None:
        await self.downloads.start(key, job, self._on_progress, self._on_end, read)

    async def fetch(self, key: int, job: Job, read: Read | None = None) -> None:
        """Start a download and wait for its end."""
        before = len(self.ends)
        await self.start(key, job, read)
        await self.ended(before + 1)

    async def ended(self, count: int = 1) -> None:
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: len(self.ends) >= count)

    async def told_of(self, is_it: Callable[[FetchProgress], bool]) -> None:
        """Wait until a progress for which `is_it` is true has been reported."""
        async with asyncio.timeout(PATIENCE):
            while not any(is_it(progress) for _, progress in self.told):
                self._was_told.clear()
                await self._was_told.wait()

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    def _on_progress(self, key: int, progress: FetchProgress) -> None:
        self.told.append((key, progress))
        self._was_told.set()

    async def _on_end(self, key: int, refusal: Refusal | None) -> None:
        async with self._changed:
            self.ends.append((key, refusal))
            self._changed.notify_all()


MakeDesk = Callable[..., Desk]
MakeHub = Callable[..., Hub]


def percents(desk: Desk) -> list[int]:
    return [progress.percent for _, progress in desk.told]


def assert_there(job: Job, files: dict[str, bytes] = FILES) -> None:
    """Check that the job's folder has these files, and that no staging folder is left."""
    assert {p.name: p.read_bytes() for p in job.folder.rglob("*") if p.is_file()} == files
    assert not job.folder.with_name(job.folder.name + ".parts").exists()


def downloaders() -> list[psutil.Process]:
    """The running downloader processes that this process has started."""
    return [process for server in fork_servers() for process in server.children()]


def fork_servers() -> list[psutil.Process]:
    """The fork servers of downloaders that this process has started."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "steerserve.hub.forking" in child.cmdline():
                found.append(child)
    return found


async def held(event: Any) -> None:
    """Wait until the loopback hub has reached the point where it was told to hold."""
    assert await asyncio.to_thread(event.wait, PATIENCE)


@pytest.fixture
def loopback() -> Iterator[LoopbackHub]:
    with LoopbackHub() as hub:
        yield hub


@pytest.fixture
def tiny(loopback: LoopbackHub) -> LoopbackHub:
    """The loopback hub with one repository, acme/tiny."""
    loopback.add("acme/tiny", FILES)
    return loopback


@pytest.fixture
def settings(loopback: LoopbackHub, tmp_path: Path) -> Callable[..., Settings]:
    def make(**values: Any) -> Settings:
        defaults: dict[str, Any] = {
            "steerserve_home": tmp_path / "home",
            "hf_endpoint": loopback.url,
        }
        return Settings(_env_file=None, **({"disk_reserve_mb": 0} | defaults | values))

    return make


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture(scope="session")
def shared_downloaders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Downloaders]:
    """One fork server for all tests, because its start takes longer than most tests."""
    downloaders = Downloaders(tmp_path_factory.mktemp("hub"))
    yield downloaders
    asyncio.run(downloaders.close())


@pytest.fixture
async def own_downloaders(tmp_path: Path) -> AsyncIterator[Downloaders]:
    """A fork server for one test. It starts with the first downloader, in the environment of that moment."""
    downloaders = Downloaders(tmp_path / "own")
    yield downloaders
    await downloaders.close()


@pytest.fixture
def make_hub(
    settings: Callable[..., Settings], shared_downloaders: Downloaders, clock: Clock
) -> Callable[..., Hub]:
    def make(
        describe_seconds: float = PATIENCE,
        downloaders: Downloaders = shared_downloaders,
        **values: Any,
    ) -> Hub:
        return Hub(settings(**values), downloaders, clock, describe_seconds)

    return make


@pytest.fixture
async def make_desk(make_hub: Callable[..., Hub]) -> AsyncIterator[MakeDesk]:
    desks: list[Desk] = []

    def make(**values: Any) -> Desk:
        desks.append(Desk(make_hub(**values)))
        return desks[-1]

    yield make
    for desk in desks:
        await desk.downloads.close()
    assert not downloaders()


@pytest.fixture
async def desk(make_desk: MakeDesk) -> Desk:
    return make_desk()
