"""The process of an engine as its client sees it, and the start of such a process on this machine.

Processes are forked from a server that has imported the engine's modules before, so a start takes a fraction of a
second. Each process gets one end of a socket pair, and ends when the other end closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing import connection, util
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Protocol

from steerserve.engines import environment
from steerserve.messages import endings
from steerserve.messages.engine import is_stopped
from steerserve.rules.residency import heartbeat
from steerserve.rules.residency.heartbeat import Sign

PRELOAD = "steerserve.worker.process.preload"
ENGINE = "steerserve.worker.process.loop"
TOKENIZER = "steerserve.worker.process.tokenizing"
NAMES = {ENGINE: "steer-engine", TOKENIZER: "steer-tokenizer"}
"""The names of the processes in `ps` and `top`, which show 15 characters."""

_REAPING = threading.Lock()
"""Held whenever the end of any process is looked at. At each start, the library looks which of all processes have
ended, and it reads an exit code without a lock of its own."""


class EngineProcess(Protocol):
    """The process of an engine, on this machine or on another one. `exitcode` is None until its end is known; from
    then on the process names its own reason."""

    exitcode: int | None

    @property
    def pid(self) -> int | None:
        """The id of the process on its machine."""

    def kill(self) -> None:
        """End the process by force. Does not wait. A process that has ended is left alone."""

    async def wait(self, seconds: float | None = None) -> None:
        """Wait for the end of the process, at most for `seconds`. Only one caller may wait at a time."""

    def sign(self) -> Sign:
        """The last heartbeat. It can be read while the process stands still."""

    def reason(self) -> str:
        """Why the process ended, as a clause. Asked after `wait` has seen the end."""


class FrameReader(Protocol):
    """Where the events of an engine are read."""

    async def readexactly(self, n: int, /) -> bytes:
        """Raises:
        IncompleteReadError: the process closed its end.
        ConnectionError: the connection broke.
        """


class FrameWriter(Protocol):
    """Where the commands for an engine are written."""

    def write(self, data: bytes, /) -> None: ...

    async def drain(self) -> None:
        """Wait until little is unsent."""

    def is_closing(self) -> bool: ...

    def close(self) -> None: ...


class Child:
    """One process on this machine. The pipes to the process are closed as soon as `wait` has seen its end.

    Args:
        process: the process, of which nothing but this object may ask whether it has ended.
        word: the number in which the process writes its heartbeats; None where it gives none.
    """

    def __init__(self, process: ForkServerProcess, word: ctypes.c_uint64 | None = None) -> None:
        self.pid = process.pid
        self.exitcode: int | None = None
        self._process = process
        self._sentinel = process.sentinel
        self._word = word

    def kill(self) -> None:
        if self.exitcode is None:
            self._process.kill()

    async def wait(self, seconds: float | None = None) -> None:
        """Wait for the end of the process, at most for `seconds`. Only one caller may wait at a time."""
        if self.exitcode is not None:
            return
        exitcode = await asyncio.to_thread(self._ended, seconds)
        if exitcode is not None:
            self.exitcode = exitcode
            self._process.close()

    def sign(self) -> Sign:
        number = 0 if self._word is None else self._word.value
        return heartbeat.sign(number, is_stopped=is_stopped(self.pid))

    def reason(self) -> str:
        return endings.reason(self.exitcode)

    def _ended(self, seconds: float | None) -> int | None:
        """The exit code; None when the process still runs after `seconds`."""
        if not connection.wait([self._sentinel], seconds):
            return None
        with _REAPING:
            self._process.join()
            return self._process.exitcode


Started = tuple[Child, asyncio.StreamReader, asyncio.StreamWriter]
"""A process, and our end of its socket."""


class ForkServer:
    """Owns the fork server, which starts with the first process and then imports the modules of the engine."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([PRELOAD])

    async def start_engine(self, log_level: str, log_format: str) -> Started:
        """Start the process of an engine, which shares its heartbeats with this process; see `start`."""
        word = self._context.RawValue(ctypes.c_uint64)
        return await self.start(ENGINE, log_level, log_format, word, word=word)

    async def start(
        self, module: str, *args: object, word: ctypes.c_uint64 | None = None
    ) -> Started:
        """Start a process that runs `main` of a module of the engine. Waits while the fork server still imports. The
        process gets the variables of `engines/environment.py` alone."""
        starting = asyncio.ensure_future(asyncio.to_thread(self._start, module, args, word))
        try:
            child, link = await asyncio.shield(starting)
        except asyncio.CancelledError:
            await _abandon(*await starting)  # the thread starts the process all the same
            raise
        try:
            return child, *await asyncio.open_connection(sock=link, limit=1 << 24)
        except BaseException:
            await _abandon(child, link)
            raise

    def _start(
        self, module: str, args: tuple[object, ...], word: ctypes.c_uint64 | None
    ) -> tuple[Child, socket.socket]:
        """The process, and our end of its socket."""
        ours, theirs = socket.socketpair()
        try:
            with theirs, _REAPING, _no_program(), _few_variables():
                process = self._context.Process(
                    target=_main, args=(module, theirs, *args), daemon=True
                )
                process.start()
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)
        return Child(process, word), ours


@contextlib.contextmanager
def _no_program() -> Iterator[None]:
    """Inside the block, `multiprocessing` does not know which program this process runs. By itself it runs the program
    again in each new process, and waits for all imports of the command line there."""
    names = sys.modules["__main__"].__dict__
    file = names.pop("__file__", None)
    try:
        yield
    finally:
        if file is not None:
            names["__file__"] = file


@contextlib.contextmanager
def _few_variables() -> Iterator[None]:
    """Inside the block, `multiprocessing` starts its fork server, and the process that looks after shared memory, with
    the variables that an engine gets. By itself it gives them all variables, and engines inherit them."""
    spawn = util.spawnv_passfds

    def spawn_with_few(path: str, args: Sequence[str], passfds: Iterable[int]) -> int:
        process = subprocess.Popen(  # noqa: S603 -- the program of `multiprocessing`
            args, executable=path, pass_fds=tuple(passfds), env=environment.passed(os.environ)
        )
        # `multiprocessing` waits for the process by its id
        process.returncode = 0
        return process.pid

    vars(util)["spawnv_passfds"] = spawn_with_few
    try:
        yield
    finally:
        vars(util)["spawnv_passfds"] = spawn


async def _abandon(child: Child, link: socket.socket) -> None:
    """End a process that nobody waits for any more."""
    link.close()
    child.kill()
    await child.wait()


def _main(module: str, link: socket.socket, *args: object) -> None:
    """Run the module; called in the new process. The module is imported by its name, because this module must never
    import the tensor library."""
    with contextlib.suppress(OSError):  # only Linux names a process in this way
        Path("/proc/self/comm").write_text(NAMES[module])
    importlib.import_module(module).main(link, *args)
