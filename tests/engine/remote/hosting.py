"""A host in a process of its own, as another node would run it.

As a program: reads a `Wanted` as one line of JSON, prints the contact as one line, and the reason of the end as another.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
import psutil

from steerserve import log
from steerserve.engine.remote.channel import Patience
from steerserve.engine.remote.contact import Contact
from steerserve.engine.remote.host import EngineHost


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the process shall do."""

    certificate: str
    patience: Patience = field(default_factory=Patience)
    address: str = "127.0.0.1"


@dataclass(slots=True)
class Hosting:
    """A running host, seen from outside."""

    process: asyncio.subprocess.Process
    contact: Contact
    tree: list[psutil.Process]
    """The host, its engine, and the fork server."""

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def reason(self) -> str:
        """Wait for the end of the host. The answer is empty when the host was killed."""
        assert self.process.stdout
        return (await self.process.stdout.read()).decode().strip()

    @property
    def engine(self) -> psutil.Process:
        return psutil.Process(self.contact.pid)

    def left(self) -> list[psutil.Process]:
        """The processes that still run. One that its parent has not looked at yet does not run any more."""
        return [p for p in self.tree if _runs(p)]


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@asynccontextmanager
async def hosting(wanted: Wanted) -> AsyncIterator[Hosting]:
    """A host that waits for its peer."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.engine.remote.hosting",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 20,
    )
    assert process.stdin
    assert process.stdout
    tree: list[psutil.Process] = []
    try:
        process.stdin.write(msgspec.json.encode(wanted) + b"\n")
        contact = msgspec.json.decode(await process.stdout.readline(), type=Contact)
        this = psutil.Process(process.pid)
        tree = [this, *this.children(recursive=True)]
        yield Hosting(process, contact, tree)
    finally:
        for left in tree or [psutil.Process(process.pid)]:
            if _runs(left):
                left.kill()
        await process.wait()


async def _host(wanted: Wanted) -> None:
    log.configure("CRITICAL", "json")
    host = EngineHost(wanted.certificate, "CRITICAL", "json", wanted.patience)
    print(msgspec.json.encode(await host.open(wanted.address)).decode(), flush=True)
    print(await host.ended(), flush=True)


if __name__ == "__main__":
    asyncio.run(_host(msgspec.json.decode(sys.stdin.readline(), type=Wanted)))
