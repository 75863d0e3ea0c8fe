"""The placer as the service sees it: a child process that is started with the first question, and again when it has
ended."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable
from typing import TypeVar

import msgspec
import structlog

from steerserve.engines import environment as environments
from steerserve.engines.ray import messages as m
from steerserve.errors import Refusal
from steerserve.logs import background
from steerserve.messages import LENGTH

log = structlog.get_logger(__name__)

JOIN_SECONDS = 30.0
"""Seconds in which the placer must have connected to the cluster."""

_PLACE = re.compile(r"^\[.*?\] \S+:\d+: ")
"""The time and the place in the code before a line that Ray writes."""

Kind = TypeVar("Kind")


class PlacerProcess:
    """The placer, seen from the service."""

    def __init__(self, address: str, namespace: str, on_gone: Callable[[m.Gone], None]) -> None:
        self._address = address
        self._namespace = namespace
        self._on_gone = on_gone
        self._numbers = itertools.count(1)
        self._starting = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[m.PlacerAnswer]] = {}
        self._child: Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._is_closed = False
        self._last_words = ""

    @property
    def pid(self) -> int | None:
        """The id of the process; None while none runs."""
        return self._child.pid if self._child is not None and self._writer is not None else None

    async def ask(
        self,
        make: Callable[[int], m.Question],
        kind: type[Kind],
        seconds: float,
        *,
        may_repeat: bool = False,
    ) -> Kind:
        """The answer to a question. A placer that does not run is started first. A question that `may_repeat` is asked
        once more where the placer ended before it answered.

        Raises:
            Refusal: ENGINE_UNAVAILABLE with the reason; also when the placer ended, or was silent for so long.
        """
        if may_repeat:
            with contextlib.suppress(_Ended):
                return await self._asked(make, kind, seconds)
        return await self._asked(make, kind, seconds)

    async def _asked(
        self, make: Callable[[int], m.Question], kind: type[Kind], seconds: float
    ) -> Kind:
        async with self._starting:
            if self._writer is None:
                if self._is_closed:
                    raise unavailable("its placer does not run")
                await self._start()
        return await self._answered(make, kind, seconds)

    async def close(self) -> None:
        self._is_closed = True
        async with self._starting:
            await self._end()

    async def _answered(
        self, make: Callable[[int], m.Question], kind: type[Kind], seconds: float
    ) -> Kind:
        number = next(self._numbers)
        answered = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            if self._writer is None:
                raise _Ended()
            self._writer.write(m.placer_frame(make(number)))
            async with asyncio.timeout(seconds):
                answer = await answered
        except TimeoutError:
            # the placer itself waits less long, so it stands still
            self._kill()
            raise unavailable(f"its placer has not answered within {seconds:g} s") from None
        finally:
            self._waiting.pop(number, None)
        if isinstance(answer, m.Unplaced):
            raise unavailable(answer.reason)
        assert isinstance(answer, kind)
        return answer

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._child = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    m.PLACER,
                    stdin=theirs.fileno(),
                    stdout=DEVNULL,
                    stderr=PIPE,
                    env=environment(),
                    start_new_session=True,
                )
            reader, self._writer = await asyncio.open_connection(sock=ours, limit=1 << 24)
        except BaseException:
            ours.close()
            raise
        self._reading = background.start(self._read(reader, self._writer), name="placer-reader")
        self._listening = background.start(self._listen(self._child), name="placer-words")
        join = (lambda number: m.Join(number, self._address, self._namespace), m.Joined)
        try:
            await self._answered(*join, JOIN_SECONDS)
        except BaseException as error:
            await self._end()
            await self._listening
            if isinstance(error, Refusal) and self._last_words:
                raise Refusal(error.code, f"{error.message} ({self._last_words})") from None
            raise

    async def _listen(self, child: Process) -> None:
        """Remember the last line that Ray has written. The others are dropped, because Ray keeps a log of its own."""
        assert child.stderr is not None
        self._last_words = ""
        while chunk := await child.stderr.read(1 << 14):
            lines = chunk.decode("utf-8", "replace").strip().splitlines()
            self._last_words = _PLACE.sub("", lines[-1])[:300] if lines else self._last_words

    async def _end(self) -> None:
        """End the process. It has nothing to finish."""
        if self._child is not None and self._reading is not None:
            self._kill()
            await self._child.wait()
            await self._reading

    def _kill(self) -> None:
        if self._child is not None and self._child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._child.kill()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                header = await reader.readexactly(LENGTH.size)
                body = await reader.readexactly(LENGTH.unpack(header)[0])
                self._take(m.decode_told(body))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except msgspec.ValidationError:
            log.exception("placer_unreadable")
        finally:
            self._writer = None
            writer.close()
            self._kill()
            for answered in self._waiting.values():
                if not answered.done():
                    answered.set_exception(_Ended())

    def _take(self, told: m.Told) -> None:
        if isinstance(told, m.Gone):
            self._on_gone(told)
        elif (answered := self._waiting.get(told.id)) is not None and not answered.done():
            answered.set_result(told)


def environment() -> dict[str, str]:
    """The environment of the placer: the variables that an engine gets, and those of Ray, which reads from them how to
    connect."""
    ray = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
    kept = environments.passed(os.environ) | ray
    # Ray would otherwise copy the environment of a service that was started through `uv run` to every node
    return kept | {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_USAGE_STATS_ENABLED": "0"}


def unavailable(reason: str) -> Refusal:
    return Refusal("ENGINE_UNAVAILABLE", f"the Ray cluster cannot place a replica: {reason}")


class _Ended(Refusal):
    """The placer ended before it answered."""

    def __init__(self) -> None:
        reason = "its placer has ended; perhaps the cluster has lost its head"
        super().__init__("ENGINE_UNAVAILABLE", unavailable(reason).message)
