"""The heartbeats of a llama.cpp server: what the server was asked to do, and when it went on.

The server answers `/health` and `/tokenize` also while its decode loop stands still, so these answers are signs only
while the loop has no work. Otherwise a sign is an event of the work: progress of a prompt, a token, or a vector. The
server gives no event within a pass, so the number of tokens in a pass says how long the pass may take.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from steerserve.engines.gguf.server import Chunk
from steerserve.rules.residency.heartbeat import Activity, Pace, Sign


@dataclass(slots=True, eq=False)
class Work:
    """A prompt, or a text to embed, that the server works on. `unread` is the number of tokens still to read; 0 once
    the server writes."""

    unread: int


class LlamaLife:
    """`pass_tokens` is the most tokens that the server reads in one pass; 0 while the server loads the model. `is_warm`
    says whether the server has completed a pass: the first pass may read the whole model from the disk."""

    def __init__(self, pass_tokens: int = 0, *, is_warm: bool = False) -> None:
        self._pass_tokens = pass_tokens
        self._is_warm = is_warm
        self._works: set[Work] = set()
        self._texts = 0
        self._count = 0
        self._pace = Pace()

    def sign(self, *, is_stopped: bool) -> Sign:
        """The last sign, and what the server is doing."""
        unread = sum(work.unread for work in self._works)
        extra = self._pace.seconds(min(unread, self._pass_tokens))
        return Sign(self._activity(unread), self._count, is_stopped, extra)

    def answered(self) -> None:
        """The server answered that it is alive."""
        if not self._texts:
            self._hear()

    @contextmanager
    def tokenizing(self) -> Iterator[None]:
        """While open, the server makes the tokens of a text."""
        self._texts += 1
        try:
            yield
        finally:
            self._texts -= 1
            self._hear()

    @contextmanager
    def working(self, tokens: int) -> Iterator[Work]:
        """While open, the server works on a prompt, or a text to embed, of so many tokens."""
        work = Work(tokens)
        self._works.add(work)
        try:
            yield work
        finally:
            self._works.remove(work)
            self._count += 1

    def progressed(self, work: Work, chunk: Chunk) -> None:
        """The server went on with a prompt."""
        self._count += 1
        if chunk.count:
            work.unread = 0
        elif chunk.progress is not None:
            read = chunk.progress
            work.unread = max(1, read.total - read.processed)
            self._pace = self._pace.measured(read.processed - read.cache, read.time_ms / 1000)
            self._is_warm = self._is_warm or read.processed > read.cache
        self._is_warm = self._is_warm or bool(chunk.count)

    def _hear(self) -> None:
        """Note an answer that does not come from the decode loop."""
        if not self._works:
            self._count += 1

    def _activity(self, unread: int) -> Activity:
        if not self._pass_tokens or (self._works and not self._is_warm):
            return Activity.LOAD
        if unread:
            return Activity.PREFILL
        if self._works:
            return Activity.DECODE
        return Activity.COMMAND if self._texts else Activity.IDLE
