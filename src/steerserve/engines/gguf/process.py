"""The llama.cpp process, seen from the control plane: starts the process with few environment variables, asks it,
watches it and ends it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from typing import TypeVar

import msgspec
import psutil

from steerserve.engines.gguf.messages import (
    MODULE,
    Hello,
    LlamaCard,
    LlamaCards,
    Serve,
    ServeAnswer,
    line,
)
from steerserve.errors import Refusal
from steerserve.logs import background
from steerserve.messages import endings
from steerserve.rules.units import MIB

START_SECONDS = 60.0
"""Seconds in which the process must start and list the cards."""

STOP_SECONDS = 5.0
"""Seconds after which a process whose input was closed is killed."""

LOOK_SECONDS = 1.0
"""Seconds between two looks whether a process has ended whose pipes are still open."""

OUTPUT_SECONDS = 2.0
"""Seconds in which the last output of an ended process must have been read. A process that the engine left behind may
keep the pipe open."""

LINES_KEPT = 200
LINE_BYTES = 1000
REASON_CHARACTERS = 300
_KEPT = (
    "PATH HOME PYTHONPATH LD_LIBRARY_PATH CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES "
    "NVIDIA_DRIVER_CAPABILITIES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES"
).split()
# the threads of an idle model must not take the processors by spinning; a crash must not start a debugger; the engine
# numbers the cards as the driver does
_ADDED = (
    ("OMP_WAIT_POLICY", "passive"),
    ("GGML_NO_BACKTRACE", "1"),
    ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
)

_TROUBLE = re.compile(
    r"error|fail|invalid|unknown|out of memory|unable|cannot|assert", re.IGNORECASE
)
_PREFIX = re.compile(r"^(?:[\d.]+ )?(?:[EWIF] )?(?:\w+ +)?[\w:~]+: +")
_LOADING = re.compile(r"^(?:error loading model\w*: +)+")
_PATH = re.compile(r"(?:/[^\s'\":,]+)+/")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_URL = re.compile(r"http://127\.0\.0\.1:[1-9]\d{0,4}/?")

Answer = TypeVar("Answer", LlamaCards, ServeAnswer)


class LlamaProcess:
    """One process, which serves one model at most. `ended` is done when the process is gone, with the reason."""

    def __init__(self, child: Process) -> None:
        self._child = child
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._is_library = True
        self._is_loading = False
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._watching = background.start(self._watch(), name="llama-watcher")

    @property
    def pid(self) -> int:
        return self._child.pid

    async def cards(self, server_bin: str | None) -> list[LlamaCard]:
        """The cards that the engine sees.

        Raises:
            Refusal: MODEL_LOAD_FAILED when the engine does not start.
        """
        self._is_library = server_bin is None
        try:
            async with asyncio.timeout(START_SECONDS):
                answer = await self._ask(Hello(server_bin), LlamaCards)
        except TimeoutError:
            raise Refusal("MODEL_LOAD_FAILED", "the GGUF engine does not start") from None
        if answer is None or answer.error is not None:
            why = _cleaned(answer.error or "") if answer else await self._last_words()
            raise Refusal("MODEL_LOAD_FAILED", f"the GGUF engine does not start: {why}")
        return answer.cards

    async def serve(self, wanted: Serve) -> str:
        """Load a model, and return the address at which it is served.

        Raises:
            Refusal: MODEL_LOAD_FAILED, with the engine's own reason.
        """
        self._is_loading = True
        answer = await self._ask(wanted, ServeAnswer)
        self._is_loading = False
        if answer is not None and answer.url is not None and not _URL.fullmatch(answer.url):
            self._misbehaves()
            answer = None
        if answer is None or answer.url is None:
            raise Refusal(
                "MODEL_LOAD_FAILED",
                f"the GGUF engine refuses the model: {await self._last_words()}",
            )
        return answer.url

    async def trouble(self) -> str:
        """End the process, and return the reason of its failure in the engine's own words: the first line of its log
        that names a trouble."""
        await self.stop()
        for text in self._lines:
            if _TROUBLE.search(text):
                return _cleaned(text)
        return self.ended.result()

    async def _last_words(self) -> str:
        """The trouble of a process that ends by itself. A process that is asked to end would not write all of its
        lines, so this waits first."""
        await asyncio.wait([self.ended], timeout=STOP_SECONDS)
        return await self.trouble()

    def memory_mb(self) -> int:
        """Resident memory of the process and of the processes that it started, in MiB; 0 when the process is gone."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self._child.pid)
            processes = [process, *process.children(recursive=True)]
            return int(sum(each.memory_info().rss for each in processes)) // MIB
        return 0

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._child.kill()

    async def stop(self) -> None:
        """End the process: politely, so that it can end the program that it started, then by force."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        if self._is_library and self._is_loading:
            self.kill()  # the library does not notice while it loads a model that its input closes
        await asyncio.wait([self.ended], timeout=STOP_SECONDS)
        if not self.ended.done():
            self.kill()
        await asyncio.shield(self.ended)

    async def _ask(self, message: Hello | Serve, kind: type[Answer]) -> Answer | None:
        """Send the message, and return the answer; None when the process ended instead."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with contextlib.suppress(ConnectionError):
            self._child.stdin.write(line(message))
            await self._child.stdin.drain()
        try:
            answer = await self._child.stdout.readline()
            return msgspec.json.decode(answer, type=kind) if answer.endswith(b"\n") else None
        except (ValueError, msgspec.DecodeError):  # too long a line, or no message
            self._misbehaves()
            return None

    def _misbehaves(self) -> None:
        """End a process whose answer is not one of the messages."""
        self._lines.appendleft("invalid answer of the engine process")
        self.kill()

    async def _watch(self) -> None:
        reading = asyncio.create_task(self._read_lines(), name="llama-lines")
        exiting = asyncio.create_task(self._child.wait(), name="llama-exit")
        waited = {reading, exiting}
        # `wait` returns when the pipes are closed too, so the exit code is looked at
        while self._child.returncode is None:
            _, waited = await asyncio.wait(
                waited, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        await asyncio.wait([reading], timeout=OUTPUT_SECONDS)
        for task in (reading, exiting):
            task.cancel()
        self.ended.set_result(endings.reason(self._child.returncode))

    async def _read_lines(self) -> None:
        assert self._child.stderr is not None
        rest = b""
        while chunk := await self._child.stderr.read(1 << 14):
            *whole, rest = (rest + chunk).split(b"\n")
            rest = rest[:LINE_BYTES]
            self._note(whole)
        self._note([rest])

    def _note(self, lines: list[bytes]) -> None:
        texts = (part[:LINE_BYTES].decode("utf-8", "replace").strip() for part in lines)
        self._lines.extend(text for text in texts if text)


async def start() -> LlamaProcess:
    """Start a process, which then waits for its first message."""
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        MODULE,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env={**environment, **dict(_ADDED)},
    )
    return LlamaProcess(child)


def _cleaned(text: str) -> str:
    """The reason in a line of the engine's log, without the words before it, and without folders and addresses."""
    text = _LOADING.sub("", _PREFIX.sub("", text.strip(), count=1))
    return _ADDRESS.sub("an address", _PATH.sub("", text))[:REASON_CHARACTERS] or "unknown"
