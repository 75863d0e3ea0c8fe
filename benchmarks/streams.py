"""Requests that stream, over bare sockets: the client takes little of the machine that it shares with the server."""

from __future__ import annotations

import asyncio
import json
import random
import re
import string
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

EVENT = re.compile(rb"data: (.+?)\r?\n\r?\n")
LAST_CHUNK = b"0\r\n\r\n"


class Unanswered(Exception):
    """A server refused a request, or broke an answer off."""


@dataclass(frozen=True, slots=True)
class Request:
    """A streamed completion at a port of this machine."""

    port: int
    path: str
    body: dict[str, Any]

    def encoded(self) -> bytes:
        content = json.dumps(self.body | {"stream": True}).encode()
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Connection: close\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        return head.encode() + content


@dataclass(frozen=True, slots=True)
class Answer:
    """A streamed answer.

    Attributes:
        began: when the request was sent (`time.perf_counter`).
        ended: when the last byte arrived, or when the client left.
        texts: when each piece of text arrived.
        tokens: as the server counts them; of an answer that was cut, its pieces of text.
        is_whole: whether the client stayed to the end.
        text: all pieces together.
    """

    began: float
    ended: float
    texts: tuple[float, ...]
    tokens: int
    is_whole: bool
    text: str

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """(when, seconds since the piece before) of each piece after the first."""
        pairs = zip(self.texts, self.texts[1:], strict=False)
        return [(later, later - earlier) for earlier, later in pairs]


class _Link(asyncio.Protocol):
    """One request on a connection of its own. Bytes are only kept with their times, and read after the run."""

    def __init__(self, content: bytes, first: asyncio.Event) -> None:
        self._content = content
        self._first = first
        self._transport: asyncio.Transport | None = None
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.times: list[float] = []
        self.parts: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._content)

    def data_received(self, data: bytes) -> None:
        self.times.append(time.perf_counter())
        self.parts.append(data)
        if not self._first.is_set() and b"data: " in data:
            self._first.set()
        if data.endswith(LAST_CHUNK):
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def leave(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


async def ask(
    request: Request, leaving: asyncio.Event | None = None, first: asyncio.Event | None = None
) -> Answer:
    """Send a request, and read its answer to the end or until `leaving` is set. The first piece of text sets `first`.

    Raises:
        Unanswered: the answer is a refusal, an error, or has no end.
    """
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    _, link = await loop.create_connection(
        partial(_Link, request.encoded(), first or asyncio.Event()), "127.0.0.1", request.port
    )
    left = asyncio.ensure_future(leaving.wait()) if leaving else None
    try:
        ends: list[asyncio.Future[Any]] = [link.over, *([left] if left else [])]
        await asyncio.wait(ends, return_when="FIRST_COMPLETED")
        is_whole = link.over.done()
    finally:
        link.leave()
        if left:
            left.cancel()
    return _answer(began, link, is_whole)


def _answer(began: float, link: _Link, is_whole: bool) -> Answer:
    whole = b"".join(link.parts)
    ends = list(accumulate(map(len, link.parts)))
    if whole and not whole.startswith(b"HTTP/1.1 200"):
        raise Unanswered(whole[:1000].decode(errors="replace"))
    texts, said, tokens, finished = [], [], None, False
    for event in EVENT.finditer(whole):
        if event[1] == b"[DONE]":
            continue
        body = json.loads(event[1])
        if "error" in body:
            raise Unanswered(str(body["error"]))
        choice: dict[str, Any] = next(iter(body.get("choices") or ()), {})
        text = choice.get("text") or (choice.get("delta") or {}).get("content")
        if text:
            texts.append(link.times[bisect_right(ends, event.end() - 1)])
            said.append(text)
        tokens = (body.get("usage") or {}).get("completion_tokens", tokens)
        finished = finished or bool(choice.get("finish_reason"))
    if is_whole and not finished:
        raise Unanswered(f"the stream has no end: {whole[-300:].decode(errors='replace')}")
    ended = link.times[-1] if is_whole else time.perf_counter()
    counted = len(texts) if tokens is None else tokens
    return Answer(began, ended, tuple(texts), counted, is_whole, "".join(said))


async def at_once(requests: Sequence[Request], seconds: float) -> list[Answer]:
    """Send all requests at once. After these seconds the client leaves those that are not answered."""
    leaving = asyncio.Event()
    timer = asyncio.get_running_loop().call_later(seconds, leaving.set)
    try:
        return await gathered(*(ask(request, leaving) for request in requests))
    finally:
        timer.cancel()


async def gathered(*works: Any) -> list[Any]:
    """What the works return. If one fails, the others are ended before the failure is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def repeated(
    made: Callable[[int], Request], clients: int, leaving: asyncio.Event
) -> list[Answer]:
    """Let so many clients ask again and again until they leave; request number `n` is `made(n)`."""
    numbers = iter(range(1 << 30))
    answers: list[Answer] = []

    async def client() -> None:
        while not leaving.is_set():
            answers.append(await ask(made(next(numbers)), leaving))

    await gathered(*(client() for _ in range(clients)))
    return answers


async def repeated_for(
    made: Callable[[int], Request], clients: int, seconds: float
) -> list[Answer]:
    """`repeated`, where the clients leave after these seconds."""
    leaving = asyncio.Event()
    timer = asyncio.get_running_loop().call_later(seconds, leaving.set)
    try:
        return await repeated(made, clients, leaving)
    finally:
        timer.cancel()


def words(length: int, seed: object) -> str:
    """A prompt of `length` bytes, which are as many tokens for the checkpoints of `models`. No two seeds share a
    beginning."""
    return "".join(random.Random(str(seed)).choices(string.ascii_lowercase, k=length))
