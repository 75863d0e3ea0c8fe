"""Running the service: the listening socket first, then the application, and a stop that lets streams finish."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import socket
import sys
from types import FrameType
from typing import Any

import uvicorn

from steerserve.settings import Settings

APPLICATION = "steerserve.app:Service"
CONNECTION_PATIENCE = 5
"""Seconds that open connections get after the requests in flight are done."""


class Server(uvicorn.Server):
    """A server whose first signal drains the service and whose second ends it at once."""

    _loop: asyncio.AbstractEventLoop | None = None
    _draining: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

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
        listening = _listen(settings)
    except OSError as error:
        print(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}", file=sys.stderr
        )
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
    try:
        server.run(sockets=[listening])
    finally:
        kill_engines()
    return 0 if server.started else 3


def kill_engines() -> None:
    """End every engine process that is left; they ignore the signals that a terminal sends to all."""
    for child in multiprocessing.active_children():
        child.kill()


def _listen(settings: Settings) -> socket.socket:
    family: Any = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
    except OSError:
        listening.close()
        raise
    listening.set_inheritable(False)
    return listening
