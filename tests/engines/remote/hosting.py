"""A node, and a control plane, each in a process of its own.

As a program: for each `Wanted` that comes as a line of JSON, opens a host and prints its contact, and later the reason of
its end. With the argument `peer`, the program is a control plane: it prints its certificate, reads a contact, connects,
and stays.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import psutil

from steerserve.engines.remote import certificates
from steerserve.engines.remote.channel import Patience
from steerserve.engines.remote.facts import Contact
from steerserve.engines.remote.host import EngineHost
from steerserve.engines.remote.link import connect
from steerserve.logs import setup as log

Line = TypeVar("Line")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A host that the process shall open."""

    certificate: str
    patience: Patience = field(default_factory=Patience)


class Outside:
    """A process, seen from outside."""

    def __init__(self, *args: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.engines.remote.hosting", *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def is_running(self) -> bool:
        return self._process.poll() is None

    def tree(self) -> list[psutil.Process]:
        """The process and all that it has started."""
        this = psutil.Process(self._process.pid)
        return [this, *this.children(recursive=True)]

    async def ask(self, value: Any, kind: type[Line]) -> Line:
        assert self._process.stdin
        self._process.stdin.write(msgspec.json.encode(value) + b"\n")
        return await self.said(kind)

    async def said(self, kind: type[Line]) -> Line:
        """The next line that the process prints."""
        assert self._process.stdout
        return msgspec.json.decode(
            await asyncio.to_thread(self._process.stdout.readline), type=kind
        )

    def end(self) -> None:
        for left in self.tree() if self.is_running() else []:
            left.kill()
        with self._process:
            self._process.kill()


def runs(process: psutil.Process) -> bool:
    """Whether a process runs. One that its parent has not looked at yet does not run any more."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _say(value: Any) -> None:
    print(msgspec.json.encode(value).decode(), flush=True)


async def _peer() -> None:
    identity = certificates.new_identity()
    _say(identity.certificate)
    contact = msgspec.json.decode(await asyncio.to_thread(sys.stdin.readline), type=Contact)
    process, _, _ = await connect(contact, identity)
    _say("connected")
    await process.wait()


async def _node() -> None:
    log.configure("CRITICAL", "json")
    async with asyncio.TaskGroup() as ends:
        while line := await asyncio.to_thread(sys.stdin.readline):
            wanted = msgspec.json.decode(line, type=Wanted)
            host = EngineHost(wanted.certificate, "CRITICAL", "json", wanted.patience)
            _say(await host.open("127.0.0.1"))
            ends.create_task(_end(host))


async def _end(host: EngineHost) -> None:
    _say(await host.ended())


if __name__ == "__main__":
    asyncio.run(_peer() if sys.argv[1:] == ["peer"] else _node())
