"""Running the service: the listening socket first, then the application, and a stop that lets streams finish."""

from __future__ import annotations

import asyncio
import fcntl
import multiprocessing
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import structlog
import uvicorn

from steerserve.settings import Settings

log = structlog.get_logger(__name__)
APPLICATION = "steerserve.app:Service"
CONNECTION_PATIENCE = 2
"""Seconds that open connections get after the requests in flight are done."""


class Server(uvicorn.Server):
    """A server whose first signal drains the service and whose second ends it at once."""

    _loop: asyncio.AbstractEventLoop | None = None
    _draining: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            # logging is configured by the application, which exists by now
            log.info("listening", addresses=[_address(one) for one in sockets or ()])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._draining is None and self._loop is not None and self.started:
            self._loop.call_soon_threadsafe(self._drain)
        else:
            kill_engines()
            super().handle_exit(signal.SIGINT, frame)
            super().handle_exit(signal.SIGINT, frame)

    def _drain(self) -> None:
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain_and_exit())

    async def _drain_and_exit(self) -> None:
        try:
            await self.config.loaded_app.drain()
        finally:
            self.should_exit = True


def run(settings: Settings) -> int:
    """Serve until a signal; the exit code."""
    try:
        holding = _hold(settings.steerserve_home)
        listening = _listen(settings)
    except _CannotStart as error:
        print(error, file=sys.stderr)
        return 1
    config = uvicorn.Config(
        APPLICATION,
        factory=True,
        log_config=None,
        lifespan="on",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=CONNECTION_PATIENCE,
        timeout_keep_alive=75,
    )
    server = Server(config)
    with holding:
        try:
            server.run(sockets=[listening])
        finally:
            kill_engines()
    return 0 if server.started else 3


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def kill_engines() -> None:
    """End every engine process that is left; they ignore the signals that a terminal sends to all."""
    for child in multiprocessing.active_children():
        child.kill()


class _CannotStart(Exception):
    """A sentence for the person at the terminal."""


def _hold(home: Path) -> TextIO:
    """The data folder for this service alone, until the file is closed; a second service would undo its statuses."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = (home / "lock").open("w")
    except OSError as error:
        raise _CannotStart(f"cannot use the data folder {home}: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise _CannotStart(
            f"another steerserve uses the data folder {home}; set STEERSERVE_HOME for a second one"
        ) from None
    return lock


def _listen(settings: Settings) -> socket.socket:
    family: Any = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
    except OSError as error:
        listening.close()
        where = f"{settings.host}:{settings.port}"
        raise _CannotStart(f"cannot listen on {where}: {error.strerror}") from None
    listening.set_inheritable(False)
    return listening
