"""Fetches files of the hub on a node of a cluster, `python -m steerserve.hub.node_fetch`: the same downloads as those
of the service, without its records.

The program reads one JSON line from its standard input, a `FetchTask`, writes `FetchSign`s as JSON lines, and ends.
It also ends when its input closes, so none is left when the process that started it is killed. The hub token comes with
the task only, and is kept nowhere.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import msgspec
import structlog
from pydantic import SecretStr

from steerserve.errors import Refusal
from steerserve.files.folder import CommitFolder, folder_of
from steerserve.hub.child import Downloaders
from steerserve.hub.client import Hub
from steerserve.hub.downloads import Downloads
from steerserve.hub.job import Job
from steerserve.logs import setup as logging
from steerserve.rules.models.downloads import FetchProgress
from steerserve.rules.models.fetching import FetchSign, FetchTask, listed_files
from steerserve.rules.models.repository import RepoFile, check_paths
from steerserve.settings import Settings

LOCKS = ".fetching"
"""The folder of the locks, in the cache folder. Hidden files do not count as files of a checkpoint."""

HUB_SECONDS = 90.0
"""The longest time in seconds for an answer of the hub. The process that asks has to be started first, and nobody else
waits for it."""

SIGN_SECONDS = 0.5
"""Seconds between two signs, also while nothing arrives."""

log = structlog.get_logger(__name__)
_PR_SET_PDEATHSIG = 1

Tell = Callable[[float], None]


async def fetch(task: FetchTask, tell: Tell) -> None:
    """Fetch the files of the task that are not there. `tell` gets the percentage. Without files, only ask the hub.

    Raises:
        Refusal: REPO_NOT_FOUND, GATED_MODEL_NO_TOKEN, INVALID_HUB_TOKEN, HUB_UNAVAILABLE, INSUFFICIENT_DISK,
            DOWNLOAD_FAILED.
    """
    wanted = [RepoFile(file.path, file.size) for file in task.files]
    check_paths(wanted)
    cache = Path(task.cache)
    if not wanted:
        downloaders = Downloaders(cache)
        try:
            await _hub(task, downloaders).search("", [], 1)
        finally:
            await downloaders.close()
        return
    folder = folder_of(cache, task.repo_id, task.sha)
    async with _locked(cache / LOCKS / f"{folder.parent.name}--{task.sha}"):
        # another replica of this node may have fetched them meanwhile
        if not await asyncio.to_thread(CommitFolder(folder).has_all, wanted):
            downloaders = Downloaders(cache)
            try:
                await _download(task, folder, _hub(task, downloaders), tell)
            finally:
                await downloaders.close()


async def _download(task: FetchTask, folder: Path, hub: Hub, tell: Tell) -> None:
    listed = await hub.describe(task.repo_id, task.sha)
    if listed.sha != task.sha:
        raise Refusal(
            "DOWNLOAD_FAILED", "the hub answers with another commit than it was asked for"
        )
    job = Job(listed.repo_id, task.sha, listed_files(task.files, listed.files), folder)
    outcome: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()

    def advance(_: int, progress: FetchProgress) -> None:
        tell(100 * progress.downloaded_bytes / max(1, progress.total_bytes))

    async def end(_: int, refusal: Refusal | None) -> None:
        outcome.set_result(refusal)

    downloads = Downloads(hub)
    await downloads.start(0, job, advance, end)
    if (refusal := await outcome) is not None:
        raise refusal


def _hub(task: FetchTask, downloaders: Downloaders) -> Hub:
    return Hub(_settings(task), downloaders, describe_seconds=HUB_SECONDS)


def _settings(task: FetchTask) -> Settings:
    """The settings of the service that concern downloads. The environment of the node has none of them."""
    return Settings(
        _env_file=None,  # type: ignore[call-arg]
        hf_endpoint=task.endpoint,
        hub_token=None if task.token is None else SecretStr(task.token),
        download_attempts=task.attempts,
        download_stall_timeout=task.stall_seconds,
        disk_reserve_mb=task.reserve_mb,
    )


@asynccontextmanager
async def _locked(file: Path) -> AsyncIterator[None]:
    """Hold a lock that one process of the node has at a time. The system gives the lock back when its process ends,
    however it ends.

    Raises:
        Refusal: DOWNLOAD_FAILED where the cache folder cannot be written to.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        why = f"the cache folder {file.parent.parent} cannot be written to: {error.strerror}"
        raise Refusal("DOWNLOAD_FAILED", why) from None
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(SIGN_SECONDS)
        yield
    finally:
        os.close(descriptor)


# ------------------------------------------------------------- the process


class _Signs:
    """Writes signs to the process that asked, at least one every `SIGN_SECONDS`."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._percent = 0.0

    def tell(self, percent: float) -> None:
        self._percent = max(self._percent, min(percent, 99.0))

    async def beat(self) -> None:
        while True:
            self.say(FetchSign(self._percent))
            await asyncio.sleep(SIGN_SECONDS)

    def say(self, sign: FetchSign) -> None:
        self._out.write(msgspec.json.encode(sign) + b"\n")
        self._out.flush()


async def _run(task: FetchTask, signs: _Signs) -> None:
    beating = asyncio.create_task(signs.beat())
    try:
        await fetch(task, signs.tell)
        last = FetchSign(100.0)
    except Refusal as refusal:
        last = FetchSign(0.0, refusal.code, refusal.message, refusal.details)
    except Exception as error:
        # border of the process: only the type is told, because the text of an error may hold secrets
        log.error("node_fetch_failed", reason=type(error).__name__)
        last = FetchSign(0.0, "DOWNLOAD_FAILED", f"the fetch failed ({type(error).__name__})")
    beating.cancel()
    signs.say(last)


def _end_with_input() -> None:
    """End the process when its input closes."""
    while os.read(0, 1 << 10):
        pass
    os._exit(1)


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # unbuffered, because the thread that waits for the end of the input reads the descriptor itself
    line = os.fdopen(os.dup(0), "rb", buffering=0)
    task = msgspec.json.decode(_line(line), type=FetchTask)
    threading.Thread(target=_end_with_input, daemon=True).start()
    logging.configure("WARNING", "json")
    with suppress(BrokenPipeError):
        asyncio.run(_run(task, _Signs(out)))
    # at once, because the end of Python would wait for the thread that reads the input
    os._exit(0)


def _line(source: BinaryIO) -> bytes:
    """The first line of an input. The input stays open behind it."""
    data = bytearray()
    while not data.endswith(b"\n") and (part := source.read(1 << 16)):
        data += part
    return bytes(data)


if __name__ == "__main__":
    main()
