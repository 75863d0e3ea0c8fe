"""Runs downloader processes: their fork server, their events, their ends. Turns failures of a process into refusals."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import msgspec
from pydantic import SecretStr

from steerserve.errors import Refusal
from steerserve.hub.wire import Begun, DownloaderTask, Event, Failed, Kind, Trouble

START_SECONDS = 30.0
"""The longest time in seconds that the fork server may take for its imports."""

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


class Downloaders:
    """Owns the fork server of the downloaders, `forking.py`. The fork server starts with the first downloader, and
    again when it has died. The hub's library keeps its files below `home`."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._is_closed = False

    def start(self) -> tuple[socket.socket, socket.socket]:
        """Start a downloader. Returns our ends of its link and of its leash.

        Raises:
            Refusal: SHUTTING_DOWN
        """
        if self._is_closed:
            raise Refusal("SHUTTING_DOWN", "the service is shutting down")
        (link, its_link), (leash, its_leash) = socket.socketpair(), socket.socketpair()
        with its_link, its_leash:
            self._hand_over(its_link.fileno(), its_leash.fileno())
        link.setblocking(False)
        leash.setblocking(False)
        return link, leash

    async def close(self) -> None:
        """End the fork server, and the downloaders that still run."""
        self._is_closed = True
        await asyncio.to_thread(self._end_server)

    def _hand_over(self, *descriptors: int) -> None:
        if self._control is not None:
            try:
                socket.send_fds(self._control, [b"\0"], descriptors)
                return
            except ConnectionError:  # the fork server has died
                self._end_server()
        socket.send_fds(self._start_server(), [b"\0"], descriptors)

    def _start_server(self) -> socket.socket:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "steerserve.hub.forking"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                # the libraries of the process write addresses to stderr, so it is not kept
                stderr=subprocess.DEVNULL,
                env=environment(self._home),
            )
        return self._control

    def _end_server(self) -> None:
        if self._control is not None and self._server is not None:
            self._control.close()
            self._server.wait()
        self._control = self._server = None


@contextlib.asynccontextmanager
async def running(
    downloaders: Downloaders, ask: DownloaderTask, patience: float
) -> AsyncGenerator[AsyncIterator[Event], None]:
    """Start a downloader, and give its events. When the block ends, for whatever reason, the process is ended too. The
    last event is `DownloadDone` or the answer to the question. The process may be silent for `patience` seconds.

    Raises:
        Trouble: the failure that the process reported, or UNREACHABLE when it was silent for too long.
        Refusal: SHUTTING_DOWN
    """
    link, leash = downloaders.start()
    with leash:
        source, sink = await asyncio.open_connection(sock=link, limit=LINE_BYTES)
        try:
            # our end of the link stays open, because the downloader ends when it closes
            sink.write(msgspec.json.encode(ask) + b"\n")
            with contextlib.suppress(ConnectionError):
                await sink.drain()
            yield _Events(source, patience)
        finally:
            leash.shutdown(socket.SHUT_WR)
            sink.transport.abort()
            with contextlib.suppress(ConnectionError):
                # the fork server closes its end when the process has ended
                await asyncio.get_running_loop().sock_recv(leash, 1)
                await sink.wait_closed()


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
        except ConnectionError:
            line = b""
        is_short = len(line) <= SHORT_BYTES
        event = _decoded(line) if is_short else await asyncio.to_thread(_decoded, line)
        if isinstance(event, Failed):
            raise Trouble(event.kind, event.reason, event.wait_seconds, event.cause)
        return event


def _decoded(line: bytes) -> Event:
    try:
        return _EVENT.decode(line)
    except (msgspec.DecodeError, RecursionError):
        # the last line is incomplete: the process ended early, most likely because it used too much memory
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
