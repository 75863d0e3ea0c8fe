"""A child process with limits of time and memory that answers questions, and its client.

Frames on its standard input and output are a 4-byte big-endian length and a body. The child ends when its input closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import resource
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence
from typing import BinaryIO

from steerserve.errors import Refusal
from steerserve.messages import LENGTH

START_SECONDS = 30.0
"""Seconds in which the process must have imported its modules."""

_KEPT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "TZ")
_READY = b"ready"


class Died(Exception):
    """The process ended over this question, which needs more memory or depth than the limits allow."""


class PoolProcess:
    """One process: started when it is first needed, and again after it had to be killed or died.

    `name` names the process in refusals; the program that `command` starts ends in `serve`. A process with a
    `niceness` lets others have the processor first.
    """

    def __init__(self, name: str, command: Sequence[str], niceness: int = 0) -> None:
        self._name = name
        self._command = command
        self._niceness = niceness
        self._lock = asyncio.Lock()
        self._child: Process | None = None
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    @property
    def is_warm(self) -> bool:
        """Whether the process runs."""
        return self._child is not None and self._child.returncode is None

    async def warm(self) -> None:
        """Start the process, unless it runs.

        Raises:
            Refusal: SHUTTING_DOWN, or INTERNAL_ERROR when no process starts.
        """
        async with self._lock:
            await self._started()

    async def close(self) -> None:
        self._is_closed = True
        if self._child and self._child.returncode is None:
            self._child.kill()
        async with self._lock:
            await self._end()

    async def ask(self, body: bytes, seconds: float) -> bytes:
        """The answer of the process.

        Raises:
            TimeoutError: the answer takes longer than `seconds`.
            Died: the process did not survive the question.
            Refusal: SHUTTING_DOWN, or INTERNAL_ERROR when no process starts.
        """
        async with self._lock:
            while True:
                is_fresh = self._child is None or self._child.returncode is not None
                child = await self._started()
                try:
                    return await self._exchange(child, body, seconds)
                except (asyncio.IncompleteReadError, ConnectionError):
                    await self._end()
                    if self._is_closed:
                        raise stopping() from None
                    if is_fresh:
                        raise Died from None
                    # the process may have died before this question, which then is not the cause: ask a new process
                except (TimeoutError, asyncio.CancelledError):
                    # the answer that is still to come would be taken for the answer to the next question
                    await self._end()
                    raise

    async def _exchange(self, child: Process, body: bytes, seconds: float) -> bytes:
        assert child.stdin is not None
        assert child.stdout is not None
        async with asyncio.timeout(seconds):
            child.stdin.write(LENGTH.pack(len(body)) + body)
            await child.stdin.drain()
            (size,) = LENGTH.unpack(await child.stdout.readexactly(LENGTH.size))
            return await child.stdout.readexactly(size)

    async def _started(self) -> Process:
        if self._is_closed:
            raise stopping()
        if self._child and self._child.returncode is None:
            return self._child
        await self._end()
        self._child = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            env={name: os.environ[name] for name in _KEPT if name in os.environ},
        )
        assert self._child.stdout
        if self._niceness:
            with contextlib.suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, self._child.pid, self._niceness)
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._child.stdout.readexactly(len(_READY))
        except (asyncio.IncompleteReadError, TimeoutError):
            await self._end()
            if self._is_closed:
                raise stopping() from None
            raise Refusal("INTERNAL_ERROR", f"{self._name} does not start") from None
        except asyncio.CancelledError:
            await self._end()
            raise
        return self._child

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.communicate()


def stopping() -> Refusal:
    """The refusal of a question that comes after the end."""
    return Refusal("SHUTTING_DOWN", "the service is shutting down")


# ------------------------------------------------------------------ in the process


def limit(memory_bytes: int) -> None:
    """Bound the address space of this process, and ignore interrupts from the terminal, which the service handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def serve(answer: Callable[[bytes], bytes], seconds: float) -> None:
    """Answer question after question until the input closes. A question that takes much longer than `seconds` ends the
    process."""
    sys.stdout.buffer.write(_READY)
    sys.stdout.buffer.flush()
    while body := _read(sys.stdin.buffer):
        # an alarm, because a service that was killed cannot stop a question without end
        signal.alarm(math.ceil(seconds) + 1)
        reply = answer(body)
        signal.alarm(0)
        sys.stdout.buffer.write(LENGTH.pack(len(reply)) + reply)
        sys.stdout.buffer.flush()


def _read(source: BinaryIO) -> bytes:
    header = source.read(LENGTH.size)
    return source.read(LENGTH.unpack(header)[0]) if len(header) == LENGTH.size else b""
