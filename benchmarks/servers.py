"""The servers that are measured side by side: ours, `transformers serve` and llama.cpp. Each is a process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx2
import psutil

from benchmarks import gguf_files, llama_peer, models, service
from benchmarks.environments import SHARED, environment
from benchmarks.streams import Request, at_once

ROWS = 64
"""The most requests at once."""
LLAMA_CONTEXT = 512
"""Tokens of each row of llama.cpp: a short prompt and its answer."""
PAGED = ("--cb-num-blocks", "192", "--cb-block-size", "64", "--cb-max-batch-tokens", "1024")
"""Pages of `transformers serve` for 64 short requests; by default it would take most of the memory."""
START_SECONDS, STOP_SECONDS, WARM_SECONDS = 180.0, 10.0, 120.0
COMPLETIONS = "/v1/completions"
LIBRARIES = ("transformers[serving]", "xllamacpp")
OURS = "steerserve"


class NotStarted(Exception):
    """A server ended before it listened, or did not listen in time."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server, and the fields that its requests need."""

    name: str
    port: int
    process: psutil.Process
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def request(self, prompt: str, tokens: int, **fields: Any) -> Request:
        """A text completion of exactly so many tokens: no model here ends a text by itself."""
        body = {"prompt": prompt, "max_tokens": tokens, **self.fields, **fields}
        return Request(self.port, COMPLETIONS, body)

    async def warm(self) -> None:
        """Send a few requests. They also wait until what was asked before has ended."""
        for rows in (1, 2):
            await at_once([self.request("warm", 4, temperature=0)] * rows, WARM_SECONDS)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While open, no process of the server runs, so that an idle server takes nothing from the others."""
        family = _family(self.process)
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        try:
            yield
        finally:
            for process in reversed(family):
                with suppress(psutil.NoSuchProcess):
                    process.resume()


# ---------------------------------------------------------------- ours


@asynccontextmanager
async def ours(
    home: Path, folder: Path, precision: str = "FP16", rows: int = ROWS, **settings: str
) -> AsyncIterator[Server]:
    """The service with one model at this precision. Its settings are the defaults except for the number of requests at
    once."""
    limits = {"MAX_CONCURRENT_REQUESTS": str(rows), "MAX_PENDING_REQUESTS": str(2 * rows)}
    async with service.running(home, **limits | settings) as client:
        await service.load(client, folder, folder.name, quantization=precision)
        yield served(client, folder.name)


def served(client: httpx2.AsyncClient, model: str) -> Server:
    """A service that runs already."""
    port = client.base_url.port
    assert port is not None
    return Server(OURS, port, child_at(port), {"model": model, **SAMPLED, **COUNTED})


SAMPLED = {"temperature": 0.8, "top_p": 0.9}
COUNTED = {"stream_options": {"include_usage": True}}


# ---------------------------------------------------------------- peers


@dataclass(frozen=True, slots=True)
class Peers:
    """The other servers, and the folder of their environment and their files."""

    folder: Path

    def prepare(self) -> Path:
        """The interpreter of the environment."""
        return environment(self.folder / "environment", LIBRARIES)

    def start(
        self, name: str, python: Path, size: str, log: Path
    ) -> AbstractAsyncContextManager[Server]:
        checkpoint = models.sized(size, self.folder / size)
        if name in GGUF_LABELS:
            label = GGUF_LABELS[name]
            file = gguf_files.written(checkpoint, label, self.folder / f"{size}-{label}.gguf")
            return llama(name, python, file, log)
        return transformers(name, python, checkpoint, log)


BF16, Q8_0 = "llama.cpp BF16", "llama.cpp Q8_0"
GGUF_LABELS = {BF16: "BF16", Q8_0: "Q8_0"}
PLAIN, CONTINUOUS = "transformers serve", "transformers serve, continuous batching"
PEERS = (PLAIN, CONTINUOUS, *GGUF_LABELS)


def described(name: str, rows: int = ROWS, flags: Sequence[str] = ()) -> dict[str, Any]:
    """How a peer is run, for the JSON."""
    library = "xllamacpp" if name in GGUF_LABELS else "transformers"
    options = f"{rows} rows" if name in GGUF_LABELS else " ".join((*_flags(name), *flags))
    return {
        "library": f"{library} {version(library)}",
        "options": options,
        "sampling": "greedy",
        "environment": SHARED,
    }


def _flags(name: str) -> tuple[str, ...]:
    return ("--continuous-batching", *PAGED) if name == CONTINUOUS else ()


@asynccontextmanager
async def transformers(
    name: str, python: Path, checkpoint: Path, log: Path, flags: Sequence[str] = ()
) -> AsyncIterator[Server]:
    """`transformers serve`, with continuous batching where the name says so, and with further flags."""
    port = service.free_port()
    options = ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    command = [str(python), "-m", "transformers.cli.transformers", "serve", str(checkpoint)]
    async with _process([*command, *options, *_flags(name), *flags], log, None) as process:
        await _until_healthy(process, port, log)
        # the model's name is its path, and every request is greedy whatever it asks for
        yield Server(name, port, psutil.Process(process.pid), {"model": str(checkpoint)})


@asynccontextmanager
async def llama(
    name: str, python: Path, file: Path, log: Path, rows: int = ROWS
) -> AsyncIterator[Server]:
    """llama.cpp's own server with a GGUF file."""
    threads = psutil.cpu_count(logical=False) or 1
    command = [python, llama_peer.__file__, file, rows, LLAMA_CONTEXT, threads]
    words = [str(part) for part in command]
    async with _process(words, log, asyncio.subprocess.PIPE) as process:
        assert process.stdout is not None
        async with _in_time(process, log):
            address = (await process.stdout.readline()).decode().strip()
        if not address:
            raise NotStarted(_tail(log))
        port = int(address.rpartition(":")[2])
        fields = {"temperature": 0, "ignore_eos": True, "cache_prompt": False, **COUNTED}
        yield Server(name, port, psutil.Process(process.pid), fields)


@asynccontextmanager
async def _process(
    command: Sequence[str], log: Path, stdout: int | None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process with a session of its own, of which nothing is left after the block."""
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with log.open("wb") as written:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=stdout or written,
            stderr=written,
            env=os.environ | offline,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        await ended(process, lambda sent: os.killpg(process.pid, sent))


async def ended(process: asyncio.subprocess.Process, send: Callable[[int], None]) -> None:
    """Ask the process to end; kill it if it stays."""
    for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
        with suppress(ProcessLookupError):
            send(signal.SIGCONT)
            send(number)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), seconds)
            return


@asynccontextmanager
async def _in_time(process: asyncio.subprocess.Process, log: Path) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(START_SECONDS):
            yield
    except TimeoutError:
        raise NotStarted(f"not after {START_SECONDS:.0f} s: {_tail(log)}") from None


async def _until_healthy(process: asyncio.subprocess.Process, port: int, log: Path) -> None:
    async with _in_time(process, log), httpx2.AsyncClient(timeout=5) as client:
        while True:
            if process.returncode is not None:
                raise NotStarted(_tail(log))
            with suppress(httpx2.TransportError):
                if (await client.get(f"http://127.0.0.1:{port}/health")).status_code == 200:
                    return
            await asyncio.sleep(0.2)


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-1500:]


def _family(process: psutil.Process) -> list[psutil.Process]:
    """The processes of a server; none if it has ended."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def child_at(port: int) -> psutil.Process:
    """The child of this process that was started for the port."""
    return next(one for one in psutil.Process().children() if str(port) in one.cmdline())
