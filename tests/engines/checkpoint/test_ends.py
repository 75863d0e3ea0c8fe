"""Each way in which an engine ends leaves no open file, and no process, behind in the control plane."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from steerserve import messages as m
from steerserve.engines.checkpoint.client import CheckpointEngine, Launcher
from steerserve.errors import Refusal
from tests.engines.checkpoint.test_process import FIELDS, Folder, events, text_of
from tests.waiting import until

Way = Callable[[Launcher, Path], Awaitable[None]]


@pytest.fixture(scope="module")
def launcher() -> Launcher:
    return Launcher("CRITICAL", "json")


@pytest.fixture
def uncollected() -> Iterator[None]:
    """While open, only a close closes a file; the collector does not."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def loaded(launcher: Launcher, folder: Path) -> CheckpointEngine:
    engine = await launcher.launch()
    await engine.load(lambda _: None, path=str(folder), **FIELDS)
    return engine


async def refused(launcher: Launcher, folder: Path) -> None:
    engine = await launcher.launch()
    with pytest.raises(Refusal):
        await engine.load(lambda _: None, path=str(folder / "nowhere"), **FIELDS)
    await engine.stop()


async def load_ended(launcher: Launcher, folder: Path) -> None:
    """An operator ends a load that has begun."""
    engine = await launcher.launch()
    began: asyncio.Future[m.Progress] = asyncio.get_running_loop().create_future()

    def report(progress: m.Progress) -> None:
        if not began.done():
            began.set_result(progress)

    loading = asyncio.create_task(engine.load(report, path=str(folder), **FIELDS))
    await began
    loading.cancel()
    await asyncio.wait([loading])
    await engine.stop()


async def load_ended_at_once(launcher: Launcher, folder: Path) -> None:
    """A load is ended while the process that tokenizes is still being started."""
    engine = await launcher.launch()
    loading = asyncio.create_task(engine.load(lambda _: None, path=str(folder), **FIELDS))
    await until(lambda: engine._prompts._tokenizer._exchange is not None)
    loading.cancel()
    await asyncio.wait([loading])
    await engine.stop()


async def crashed(launcher: Launcher, folder: Path) -> None:
    engine = await loaded(launcher, folder)
    os.kill(engine.pid or 0, signal.SIGKILL)
    assert await engine.ended == "the engine process was ended by signal 9"


async def tokenizer_crashed(launcher: Launcher, folder: Path) -> None:
    """The process that tokenizes ends; another one is started, and the engine serves on until it is stopped."""
    engine = await loaded(launcher, folder)
    first = engine._prompts._tokenizer.pid
    process = psutil.Process(first)
    process.kill()
    await until(lambda: not process.is_running())
    assert text_of(await events(engine, "the boats"))
    assert engine._prompts._tokenizer.pid != first
    await engine.stop()


async def launch_ended(launcher: Launcher, _: Path) -> None:
    """Nobody waits any more for an engine that is being started."""
    begun, start = asyncio.Event(), launcher._server.start

    async def starting(*args: Any, **named: Any) -> Any:
        begun.set()
        return await start(*args, **named)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(launcher._server, "start", starting)
        launching = asyncio.create_task(launcher.launch())
        await begun.wait()
        launching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await launching


WAYS: list[Way] = [
    refused,
    load_ended,
    load_ended_at_once,
    crashed,
    tokenizer_crashed,
    launch_ended,
]


@pytest.mark.usefixtures("uncollected")
async def test_no_way_to_end_leaves_a_file_or_a_process(launcher: Launcher, folder: Folder) -> None:
    path, this = folder("llama"), psutil.Process()
    await refused(launcher, path)  # the fork server starts, and the shared memory is made
    processes = set(this.children(recursive=True))
    for way in WAYS:
        files = this.num_fds()
        await way(launcher, path)
        await until(lambda files=files: this.num_fds() <= files)
        await until(lambda: set(this.children(recursive=True)) <= processes)


async def test_the_end_of_an_engine_is_known_when_the_wait_for_it_is_cut_off(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event loop that ends cancels all its tasks, and those that wait for the engine must end too."""
    engine = await launcher.launch()
    process, waits = psutil.Process(engine.pid), asyncio.Event()
    wait = engine._process.wait

    async def announced(seconds: float | None = None) -> None:
        waits.set()
        await wait(seconds)

    monkeypatch.setattr(engine._process, "wait", announced)
    process.suspend()  # the process cannot end by itself when its socket is closed
    engine._writer.close()
    await waits.wait()
    engine._reading.cancel()
    await asyncio.wait([engine._reading])
    await asyncio.wait_for(engine.stop(), 60)
    await until(lambda: not process.is_running())
