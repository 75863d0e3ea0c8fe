"""Runs a downloader process: its environment, its events, its end. Turns failures of the process into refusals."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import msgspec
from pydantic import SecretStr

from steerserve.errors import Refusal
from steerserve.hub.wire import Begun, DownloaderTask, Event, Failed, Kind, Trouble

START_SECONDS = 30.0
"""The longest time in seconds that the process may take for its imports."""

LINE_BYTES = 16 << 20
SHORT_BYTES = 1 << 16
"""Longer lines are decoded beside the event loop."""

TOKEN = re.compile(r"[\x21-\x7e]{1,500}")

_KEPT = (
    "PATH",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
)
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_EVENT: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)

_ANSWERS = {
    Kind.NO_REPO: (
        "REPO_NOT_FOUND",
        "the hub has no repository {repo}, or shows it only to those who may see it",
    ),
    Kind.NO_REVISION: ("REPO_NOT_FOUND", "{repo} has no such revision"),
    Kind.NO_FILE: ("DOWNLOAD_FAILED", "{repo} no longer has a file that it listed"),
    Kind.GATED: ("GATED_MODEL_NO_TOKEN", "{repo} is gated: it needs a hub token with access to it"),
    Kind.BAD_TOKEN: ("INVALID_HUB_TOKEN", "the hub rejects the token"),
    Kind.NO_ACCESS: (
        "INVALID_HUB_TOKEN",
        "the hub token has no access to {repo}: ask for it on the hub",
    ),
    Kind.DISK_FULL: ("INSUFFICIENT_DISK", "the disk has no room for the download"),
}


def environment(home: Path) -> dict[str, str]:
    """The environment of a downloader, with only a few variables of the service. The hub's library keeps its files
    below `home`."""
    kept = [*_KEPT, *_PROXIES, *(name.lower() for name in _PROXIES)]
    return {name: os.environ[name] for name in kept if name in os.environ} | {
        "HF_HOME": str(home / ".hub"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    }


@contextlib.asynccontextmanager
async def running(
    ask: DownloaderTask, home: Path, patience: float
) -> AsyncGenerator[AsyncIterator[Event], None]:
    """Start a downloader, and give its events. When the block ends, for whatever reason, the process is ended too. The
    last event is `DownloadDone` or the answer to the question. The process may be silent for `patience` seconds.

    Raises:
        Trouble: the failure that the process reported, or UNREACHABLE when it was silent for too long.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "steerserve.hub.fetch",
        stdin=PIPE,
        stdout=PIPE,
        # the libraries of the process write addresses to stderr, so it is not kept
        stderr=DEVNULL,
        env=environment(home),
        limit=LINE_BYTES,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        # the input is not closed, because the downloader ends when its input closes
        process.stdin.write(msgspec.json.encode(ask) + b"\n")
        with contextlib.suppress(ConnectionError):
            await process.stdin.drain()
        yield _Events(process.stdout, patience)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


class _Events:
    """Reads the events of a downloader line by line. Raises `Trouble` as described at `running`."""

    def __init__(self, source: asyncio.StreamReader, patience: float) -> None:
        self._source = source
        self._patience = patience
        self._has_begun = False

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        event = await self._next(self._patience if self._has_begun else START_SECONDS)
        if isinstance(event, Begun):
            self._has_begun = True
            return await self._next(self._patience)
        return event

    async def _next(self, limit: float) -> Event:
        try:
            async with asyncio.timeout(limit):
                line = await self._source.readline()
        except TimeoutError:
            raise Trouble(Kind.UNREACHABLE, "the hub sends nothing") from None
        except ValueError:
            raise Trouble(Kind.FAILED, "the hub's answer is too large") from None
        is_short = len(line) <= SHORT_BYTES
        event = _decoded(line) if is_short else await asyncio.to_thread(_decoded, line)
        if isinstance(event, Failed):
            raise Trouble(event.kind, event.reason, event.wait_seconds)
        return event


def _decoded(line: bytes) -> Event:
    try:
        return _EVENT.decode(line)
    except (msgspec.DecodeError, RecursionError):
        # the last line is incomplete: the process was killed, most likely because it used too much memory
        raise Trouble(Kind.FAILED, "the downloader ended early") from None


def usable(token: str | None, default: SecretStr | None) -> str | None:
    """The token to send to the hub: the client's token, or else the operator's.

    Raises:
        Refusal: INVALID_HUB_TOKEN for a token with characters that a header cannot carry.
    """
    if not token and default is not None:
        token = default.get_secret_value()
    if not token:
        return None
    if not TOKEN.fullmatch(token):
        raise Refusal("INVALID_HUB_TOKEN", "the hub token has characters that no token has")
    return token


def refusal(trouble: Trouble, repo_id: str) -> Refusal:
    """The refusal for a failure that is not tried again."""
    code, sentence = _ANSWERS.get(
        trouble.kind, ("DOWNLOAD_FAILED", "the download failed: {reason}")
    )
    message = sentence.format(repo=repo_id, reason=trouble.reason)
    return Refusal(code, message, repo_id=repo_id)
