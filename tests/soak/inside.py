"""A service under stress in the process of the tests: the tasks, threads and files that it holds."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.conftest import Start
from tests.service import Running
from tests.soak import watching

RETURN_SECONDS = 10.0


def engine(live: Running) -> psutil.Process:
    """The engine process of the resident model."""
    resident = live.service.owners.conductor.resident
    assert resident is not None
    assert resident.engine is not None
    return psutil.Process(resident.engine.pid)


class Held(NamedTuple):
    """What must not grow: tasks, threads and open files, without those of the database."""

    tasks: int
    threads: int
    files: int


@contextmanager
def one_model(start: Start, folder: Path, name: str = "red", **settings: Any) -> Iterator[Running]:
    """A service of the test's own with one tiny model loaded."""
    with start(**watching.SMALL, **settings) as live:
        watching.load(live.http, watching.register(live.http, folder, name))
        yield live


def held(live: Running) -> Held:
    resident = live.service.owners.conductor.resident
    assert resident is not None
    gc.collect()
    tasks = asyncio.all_tasks(resident.ready.get_loop())
    return Held(len(tasks), _threads(), _open_files(live.home))


# The connections of the database are not counted: a pool keeps them, and opens one more up to its size when several
# questions come at once. SQLite has a thread and open files for each connection.


def _threads() -> int:
    """The threads of this process without those of the database."""
    return sum("_connection_worker_thread" not in thread.name for thread in threading.enumerate())


def _open_files(home: Path) -> int:
    """The open descriptors of this process without those of the data folder."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            count += not str(descriptor.readlink()).startswith(str(home))
        except FileNotFoundError:
            continue  # closed meanwhile
    return count


def until_inactive(live: Running, seconds: float) -> None:
    """Wait until no request is counted, in the queue or out of it."""
    watching.until_idle(live.http, seconds)
    watching.until(
        lambda: not live.service.owners.generation.active, "no request is active", seconds
    )


def until_as_before(live: Running, before: Held) -> None:
    """Wait until nothing more is held than before."""
    now = held(live)

    def is_as_before() -> bool:
        nonlocal now
        live.http.get("/api/health")
        now = held(live)
        return all(this <= that for this, that in zip(now, before, strict=True))

    watching.until(is_as_before, f"at most {before}; {now} at first", RETURN_SECONDS)
