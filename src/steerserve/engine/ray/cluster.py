"""The Ray cluster as the service sees it: asks the placer, and makes the client of each replica.

The placer is started with the first question, and again when it has ended. Replicas do not depend on it. This module
imports neither Ray nor the other packages of the extra `ray` before a cluster is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
import os
import re
import secrets
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable
from typing import TypeVar

import msgspec
import structlog

from steerserve.engine.checkpoint.client import CheckpointEngine, Launcher
from steerserve.engine.checkpoint.process import SECRETS
from steerserve.engine.checkpoint.prompts import PromptMaker
from steerserve.engine.ray import messages as m
from steerserve.engine.wire.messages import LENGTH
from steerserve.errors import CannotStart, Refusal
from steerserve.setting_replicas import EXTRA, missing_packages
from steerserve.settings import Settings

log = structlog.get_logger(__name__)

JOIN_SECONDS = 30.0
"""Seconds in which the placer must have connected to the cluster."""

_PLACE = re.compile(r"^\[.*?\] \S+:\d+: ")
"""The time and the place in the code before a line that Ray writes."""

PLACE_SECONDS = 120.0
"""Seconds in which the cluster must have had room for a replica and its engine must have started."""

SURVEY_SECONDS = 60.0
REMOVE_SECONDS = 20.0

CLOSE_SECONDS = 5.0
"""Seconds that the end of the service waits for actors whose engines have just ended."""

Kind = TypeVar("Kind")


class RayCluster:
    """Starts engines on the nodes of a cluster. The actors of one cluster object have a namespace of their own.

    Raises:
        CannotStart: the extra `ray` is not installed.
    """

    def __init__(self, settings: Settings) -> None:
        if missing := missing_packages():
            raise CannotStart(f"the extra `ray` is not installed ({', '.join(missing)}): {EXTRA}")
        # imported here, because a service without the extra has no library for certificates
        self._link = importlib.import_module("steerserve.engine.remote.link")
        self._certificates = importlib.import_module("steerserve.engine.remote.certificates")
        self._settings = settings
        self._launcher = Launcher(settings.log_level, settings.log_format)
        self._placer = PlacerProcess(
            settings.ray_address, f"steerserve-{secrets.token_hex(8)}", self._lose
        )
        self._engines: dict[str, CheckpointEngine] = {}
        self._numbers = itertools.count(1)
        self._removing: set[asyncio.Task[None]] = set()

    @property
    def placer_pid(self) -> int | None:
        """The id of the process of the placer; None while none runs."""
        return self._placer.pid

    async def launch(self, prompts: PromptMaker | None = None) -> CheckpointEngine:
        """An engine without a model, on a node that Ray chooses. `prompts` makes its prompts into tokens; by default it
        has a maker of its own.

        Raises:
            Refusal: ENGINE_UNAVAILABLE when the cluster cannot be reached or has no room, or when the engine cannot be
                reached.
        """
        name = f"replica-{next(self._numbers)}"
        identity = self._certificates.new_identity()
        settings = self._settings
        try:
            placed = await self._placer.ask(
                lambda number: m.PlaceReplica(
                    number,
                    name,
                    identity.certificate,
                    settings.log_level,
                    settings.log_format,
                    settings.engine_cards,
                    settings.engine_resources,
                    settings.engine_placement,
                    PLACE_SECONDS,
                ),
                m.Placed,
                2 * PLACE_SECONDS,
            )
            process, reader, writer = await self._link.connect(placed.contact, identity)
        except BaseException:
            self._remove(name)
            raise
        engine = self._launcher.client(process, reader, writer, prompts)
        engine.node = placed.contact.facts.name
        engine.address = placed.contact.host
        self._engines[name] = engine
        # also an actor that stands still is ended
        engine.ended.add_done_callback(lambda _: self._remove(name))
        log.info("replica_placed", replica=name, node=engine.node, cards=placed.cards)
        return engine

    async def nodes(self, *folders: str) -> list[m.NodeSeen]:
        """The nodes that are alive, with their facts, and the digest of the files in each of these folders there.

        Raises:
            Refusal: ENGINE_UNAVAILABLE when the cluster cannot be reached.
        """
        answer = await self._placer.ask(
            lambda number: m.Survey(number, list(folders)), m.Surveyed, SURVEY_SECONDS
        )
        return answer.nodes

    async def close(self) -> None:
        """End the placer, after the actors of engines that have ended. Engines that still run end with their links."""
        if removing := set(self._removing):
            _, late = await asyncio.wait(removing, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self._placer.close()

    def _lose(self, gone: m.Gone) -> None:
        """End an engine that Ray counts as gone: an actor whose node has lost Ray may run on, unwatched."""
        log.warning("replica_gone", replica=gone.name, reason=gone.reason)
        if (engine := self._engines.get(gone.name)) is not None:
            engine.lose(f"Ray has lost its replica: {gone.reason}")

    def _remove(self, name: str) -> None:
        self._engines.pop(name, None)
        task = asyncio.create_task(self._removed(name), name=f"remove-{name}")
        self._removing.add(task)
        task.add_done_callback(self._removing.discard)

    async def _removed(self, name: str) -> None:
        # where Ray cannot be asked, the actor ends by itself when its engine has lost its link
        with contextlib.suppress(Refusal):
            await self._placer.ask(lambda number: m.Remove(number, name), m.Removed, REMOVE_SECONDS)


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
    ) -> Kind:
        """The answer to a question. A placer that does not run is started first.

        Raises:
            Refusal: ENGINE_UNAVAILABLE with the reason; also when the placer ended, or was silent for so long.
        """
        async with self._starting:
            if self._writer is None:
                if self._is_closed:
                    raise _unavailable("its placer does not run")
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
                raise _unavailable("its placer has ended")
            self._writer.write(m.placer_frame(make(number)))
            async with asyncio.timeout(seconds):
                answer = await answered
        except TimeoutError:
            # the placer itself waits less long, so it stands still
            self._kill()
            raise _unavailable(f"its placer has not answered within {seconds:g} s") from None
        finally:
            self._waiting.pop(number, None)
        if isinstance(answer, m.Unplaced):
            raise _unavailable(answer.reason)
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
        self._reading = asyncio.create_task(self._read(reader, self._writer), name="placer-reader")
        self._listening = asyncio.create_task(self._listen(self._child), name="placer-words")
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
            gone = _unavailable("its placer has ended; perhaps the cluster has lost its head")
            for answered in self._waiting.values():
                if not answered.done():
                    answered.set_exception(gone)

    def _take(self, told: m.Told) -> None:
        if isinstance(told, m.Gone):
            self._on_gone(told)
        elif (answered := self._waiting.get(told.id)) is not None and not answered.done():
            answered.set_result(told)


def environment() -> dict[str, str]:
    """The environment of the placer: that of the service without its secrets. Variables of Ray stay, because Ray reads
    how to connect from them."""
    kept: dict[str, str] = {n: x for n, x in os.environ.items() if n.upper() not in SECRETS}
    # Ray would otherwise copy the environment of a service that was started through `uv run` to every node
    return kept | {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_USAGE_STATS_ENABLED": "0"}


def _unavailable(reason: str) -> Refusal:
    return Refusal("ENGINE_UNAVAILABLE", f"the Ray cluster cannot place a replica: {reason}")
