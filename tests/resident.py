"""The engine of the resident model of a service, on either backend: its processes, and a way to hold them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psutil

from steerserve.messages.engine import Engine
from tests.service import Running


def engine_of(live: Running) -> Engine:
    resident = live.service.owners.conductor.resident
    assert resident is not None
    assert resident.engine is not None
    return resident.engine


def processes(live: Running) -> list[psutil.Process]:
    """The process of the engine, or those of its replicas."""
    engine = engine_of(live)
    pids = [v.pid for v in engine.fleet.replicas()] if engine.fleet else [engine.pid]
    # without a number, psutil would take the process of the tests
    return [psutil.Process(pid) for pid in pids if pid is not None]


def engine_pid(live: Running) -> int:
    """The id of the one engine process."""
    (process,) = processes(live)
    return process.pid


def kill_engine(live: Running) -> None:
    os.kill(engine_pid(live), signal.SIGKILL)


def crash(live: Running) -> None:
    """End the one engine process by force, and wait until its model counts as unloaded."""
    kill_engine(live)
    while live.data("GET", "/api/models")["loaded_model_id"] is not None:
        pass


@contextmanager
def standing_still(live: Running) -> Iterator[None]:
    """Inside the block, the system lets no process of the engine run."""
    running = processes(live)
    assert running
    with ExitStack() as stack:
        for process in running:
            process.suspend()
            stack.callback(process.resume)
        yield
