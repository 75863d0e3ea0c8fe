"""The real service over simulated engines: `python -m benchmarks.simulated_service SOCKET... --port PORT`.

Each SOCKET is one of a process of `benchmarks.simulated`; the engines take the processes in turn. With 0 replicas the
service has one engine and no fleet. Settings come from the environment.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import resource
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.sampling import Sampler
from steerserve.app import serve
from steerserve.app.service import Service
from steerserve.engines.checkpoint.client import CheckpointEngine, Launcher
from steerserve.engines.checkpoint.prompts import PromptMaker, TokensGiven
from steerserve.engines.fleet.fleet import Fleet
from steerserve.messages.engine import Engine
from steerserve.rules.residency.heartbeat import Activity, Bounds, Sign
from steerserve.settings import Settings

_PEER = struct.Struct("3i")
"""What the system says about the other end of a Unix socket: the ids of its process, user and group."""


class SimulatedProcess:
    """One engine of a process of `benchmarks.simulated`. Its end is the end of its connection."""

    def __init__(self, link: socket.socket, writer: asyncio.StreamWriter) -> None:
        peer = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        self.pid: int | None = _PEER.unpack(peer)[0]
        self._writer = writer
        self._signs = itertools.count()

    def kill(self) -> None:
        self._writer.close()

    async def wait(self, seconds: float | None = None) -> None:
        """Nothing is left of an engine without its connection."""

    def sign(self) -> Sign:
        return Sign(Activity.IDLE, next(self._signs))

    def reason(self) -> str:
        return "the simulated engine ended"


class SimulatedEngines:
    """Connects to engines. Prompts are tokenized as for real ones."""

    def __init__(self, paths: Sequence[str], settings: Settings, replicas: int) -> None:
        self._paths = itertools.cycle(paths)
        self._launcher = Launcher(settings.log_level, settings.log_format)
        self._settings = settings
        self._replicas = replicas

    async def _one(self, prompts: PromptMaker) -> Engine:
        """One engine, whose prompts are made here."""
        link = socket.socket(socket.AF_UNIX)
        link.setblocking(False)
        await asyncio.get_running_loop().sock_connect(link, next(self._paths))
        reader, writer = await asyncio.open_connection(sock=link, limit=1 << 24)
        return CheckpointEngine(SimulatedProcess(link, writer), reader, writer, prompts)

    async def launch(self, *_: object) -> Engine:
        """An engine that reads files."""
        return await self._one(self._launcher.prompts())

    async def resident(self, *_: object) -> Engine:
        """What serves the resident model."""
        prompts = self._launcher.prompts()
        if not self._replicas:
            return await self._one(prompts)
        settings = self._settings
        return Fleet(
            lambda _: self._one(TokensGiven()),
            prompts,
            count=self._replicas,
            least=self._replicas,
            slots=settings.max_concurrent_requests,
            bounds=Bounds(settings.engine_stall_timeout, settings.load_timeout),
            drain_seconds=settings.graceful_unload_timeout,
            wait_seconds=settings.replica_wait_s,
        )


def application(paths: Sequence[str], replicas: int) -> Service:
    """The service, whose engines are simulated."""
    service = Service()
    engines = SimulatedEngines(paths, service.settings, replicas)
    launcher = service.owners.launcher
    setattr(launcher, "launch", engines.launch)  # noqa: B010 -- a method is replaced
    setattr(launcher, "launch_resident", engines.resident)  # noqa: B010
    return service


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sockets", nargs="+")
    parser.add_argument("--replicas", type=int, default=0)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--profile", type=Path, help="where shares of the processor time go")
    parser.add_argument("--open-files", type=int, help="the most files that the service may open")
    given = parser.parse_args()
    if given.open_files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (given.open_files, given.open_files))
    if given.profile:
        Sampler(given.profile)
    os.environ["PORT"] = str(given.port)
    made: Callable[[], Service] = partial(application, given.sockets, given.replicas)
    setattr(serve, "APPLICATION", made)  # noqa: B010 -- the application is given, not named
    sys.exit(serve.run(Settings()))


if __name__ == "__main__":
    main()
