"""The host's part in bringing files to its node: it looks for them, and has the downloader fetch what is missing.

The downloader is a program of its own (`hub/node_fetch.py`), which gets its task, and the hub token in it, on its
standard input. It ends with the connection to the service.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import structlog

from steerserve.engines.remote import words
from steerserve.engines.remote.channel import Channel, PartKind
from steerserve.engines.remote.words import Bring, Brought, Joiner
from steerserve.rules.models.fetching import FetchSign, FetchTask, PresentFile, lacking

log = structlog.get_logger(__name__)

FETCHER = "steerserve.hub.node_fetch"

HUB_SECONDS = 15.0
"""Seconds in which the hub must have answered a node that only asks whether it can be reached."""

_KEPT = (
    "PATH",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "HOME",
    "TMPDIR",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
)
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_decode_sign = msgspec.json.Decoder(FetchSign).decode


class NodeFiles:
    """Answers a service that asks for files of this node."""

    def __init__(self) -> None:
        self._joiner = Joiner()
        self._asked: asyncio.Queue[Bring] = asyncio.Queue()
        self._answering: set[asyncio.Task[None]] = set()
        self._fetchers = Fetchers()

    def take_payload(self, payload: bytes) -> None:
        """Take a part of a question.

        Raises:
            ValueError: the other end sent what no service sends.
        """
        if (body := self._joiner.add(payload)) is not None:
            self._asked.put_nowait(words.decode_bring(body))

    async def run(self, channel: Channel) -> None:
        """Answer until this call is cancelled."""
        while True:
            bring = await self._asked.get()
            task = asyncio.create_task(self._answer(bring, channel), name="bring-files")
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def close(self) -> None:
        """End the downloaders that still run."""
        self._fetchers.close()
        if self._answering:
            await asyncio.wait(self._answering)

    async def _answer(self, bring: Bring, channel: Channel) -> None:
        try:
            if bring.task is not None and await _missing(bring):
                async with aclosing(self._fetchers.fetched(bring.task)) as signs:
                    async for sign in signs:
                        _say(channel, Brought(bring.id, sign))
                        if sign.code is not None:
                            return
            _say(channel, Brought(bring.id, lacking=tuple(await _missing(bring))))
        except Exception as error:
            # border of a task of the host: the service is told that it gets no files
            log.exception("files_not_brought")
            why = f"the host failed ({type(error).__name__})"
            _say(channel, Brought(bring.id, FetchSign(0.0, "DOWNLOAD_FAILED", why)))


class Fetchers:
    """Owner of the downloaders that run. Those that are ended tell it as any other failure, so nobody is cancelled who
    waits for their end."""

    def __init__(self) -> None:
        self._running: set[Process] = set()
        self._is_closed = False

    async def fetched(self, task: FetchTask) -> AsyncGenerator[FetchSign, None]:
        """Run the downloader, and yield its signs. The last sign has a percentage of 100, or a code."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", FETCHER, stdin=PIPE, stdout=PIPE, env=environment(), limit=1 << 20
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._running.add(process)
        sign = FetchSign(0.0)
        try:
            if self._is_closed:
                return
            with suppress(ConnectionError):
                process.stdin.write(msgspec.json.encode(task) + b"\n")
                await process.stdin.drain()
            while (line := await process.stdout.readline()).endswith(b"\n"):
                yield (sign := _decode_sign(line))
            if sign.code is None and sign.percent < 100:
                yield FetchSign(sign.percent, "DOWNLOAD_FAILED", "the downloader ended early")
        finally:
            _kill(process)
            process.stdin.close()
            # reads to the end, so that the pipes are closed too
            await process.communicate()
            self._running.discard(process)

    def close(self) -> None:
        """End all downloaders, and start none any more. Does not wait."""
        self._is_closed = True
        for process in self._running:
            _kill(process)


def _kill(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()


async def hub_fault(endpoint: str) -> str | None:
    """Why this node cannot reach the hub; None if it can. No token is sent."""
    with TemporaryDirectory(prefix="steerserve-") as cache:
        task = FetchTask("", "", cache, (), endpoint, None, 1, HUB_SECONDS, 0)
        try:
            async with asyncio.timeout(HUB_SECONDS), aclosing(Fetchers().fetched(task)) as signs:
                async for sign in signs:
                    if sign.code == "HUB_UNAVAILABLE":
                        return sign.message
        except TimeoutError:
            return f"the hub has not answered within {HUB_SECONDS:g} s"
    return None


def environment() -> dict[str, str]:
    """The environment of the downloader: a few variables of the node, and none of its settings."""
    kept = [*_KEPT, *_PROXIES, *(name.lower() for name in _PROXIES)]
    return {name: os.environ[name] for name in kept if name in os.environ}


async def _missing(bring: Bring) -> list[str]:
    sizes = await asyncio.to_thread(sizes_of, bring.folder, bring.files)
    return lacking(bring.files, sizes)


def sizes_of(folder: str, files: Sequence[PresentFile]) -> dict[str, int]:
    """The sizes of those of the files that are below the folder. Links are followed."""
    sizes = {}
    for file in files:
        place = Path(folder, file.path)
        with suppress(OSError, ValueError):
            if place.is_file():
                sizes[file.path] = place.stat().st_size
    return sizes


def _say(channel: Channel, message: Brought) -> None:
    for part in words.parts(words.encode(message)):
        channel.say(PartKind.ANSWER, part)
