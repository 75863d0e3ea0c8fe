"""Tokenizes prompts in a process of its own: a long text, or a hostile tokenizer, holds up no forward pass, and has
limits of time and memory.

The process is started with the load of a checkpoint, and again after it had to be ended. It answers one request at a
time. The clients whose requests wait take turns (`rules/inference/fairness.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from multiprocessing import connection

import msgspec

from steerserve import messages as m
from steerserve.engines.checkpoint.process import Child, Started
from steerserve.errors import Refusal
from steerserve.logs import background
from steerserve.messages.prompts import NamedPrompt, too_long
from steerserve.messages.tokenizing import Spelling, TextAnswer, TextQuestion
from steerserve.rules.bounds import ACCOUNTS_KEPT
from steerserve.rules.inference import fairness
from steerserve.rules.inference.fairness import Account, Turn

ENCODE_SECONDS = 30.0
"""Seconds that tokenizing the prompts of one request may take, without the wait for the process and its start."""

LONG_TOKEN = 16
"""A text with this many characters for each token of the context is rarely a prompt that fits."""

PROBE = (
    "The quick brown fox, \u00e9t\u00e9 \u6f22\u5b57 \U0001f600 0123456789 (a+b)*c = d_e/f; \n\t"
    + " x" * 50
)
"""A text that every tokenizer reads at once. It is tried when the tokenizer is opened."""


class Unanswered(Exception):
    """The process has no answer; the text says why, as a clause without its subject."""


class TokenizerProcess:
    """Owns the process. `start` starts one, and reading the tokenizer may take `open_seconds`."""

    def __init__(self, start: Callable[[], Awaitable[Started]], open_seconds: float) -> None:
        self._start = start
        self._open_seconds = open_seconds
        self._folder = ("", False)
        self._child: Child | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._numbers = itertools.count()
        self._waiting: dict[Turn, asyncio.Future[None]] = {}
        self._accounts: dict[str, Account] = {}
        self._exchange: asyncio.Task[TextAnswer] | None = None
        self._is_taken = False
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    async def open(self, path: str, trust_remote_code: bool) -> None:
        """Read the tokenizer of a checkpoint folder, and try it.

        Raises:
            Refusal: MODEL_LOAD_FAILED.
        """
        self._folder = (path, trust_remote_code)
        try:
            await self._ask([m.Text(PROBE)], len(PROBE), self._open_seconds, is_trial=True)
        except Unanswered as error:
            raise Refusal("MODEL_LOAD_FAILED", f"the tokenizer of the model {error}") from None

    async def tokens(
        self,
        texts: Sequence[m.Text],
        context: int,
        max_tokens: int | None,
        field: str,
        client: str,
    ) -> list[m.Tokens]:
        """The tokens of the prompts of one request of a client. `field` names prompts that are no conversations.

        Raises:
            Refusal: CONTEXT_LENGTH_EXCEEDED for a text that is far too long; INVALID_PARAMETER when tokenizing needs
                more time or memory than it may take; SHUTTING_DOWN.
        """
        try:
            answer = await self._ask(texts, context, ENCODE_SECONDS, client=client)
        except Unanswered as error:
            with NamedPrompt(texts[:1], 0, field):
                why = f"the model's tokenizer {error}"
                raise Refusal("INVALID_PARAMETER", why, param="prompt") from None
        prompts = []
        for index, row in enumerate(answer.rows):
            with NamedPrompt(texts, index, field):
                if isinstance(row, int):
                    raise too_long(row, context, max_tokens)
            prompts.append(m.Tokens(row, texts[index].is_chat))
        return prompts

    async def spell(self, text: m.Text, client: str) -> Spelling:
        """A text of a client with its tokens.

        Raises:
            Refusal: INVALID_PARAMETER when tokenizing needs more time or memory than it may take; SHUTTING_DOWN.
        """
        return self._spelling(await self._told([text], client, is_spelled=True))

    async def read_back(self, ids: list[int], client: str) -> Spelling:
        """The text that these tokens stand for.

        Raises:
            Refusal: as `spell`.
        """
        return self._spelling(await self._told([], client, ids=ids))

    async def close(self) -> None:
        """End the process. Requests that wait for it are refused."""
        self._is_closed = True
        if self._child:
            self._child.kill()
        if self._exchange:
            await asyncio.wait([self._exchange])
        await self._end()

    # ------------------------------------------------------------- inside

    async def _told(
        self,
        texts: Sequence[m.Text],
        client: str,
        *,
        is_spelled: bool = False,
        ids: list[int] | None = None,
    ) -> TextAnswer:
        try:
            return await self._ask(
                texts, 0, ENCODE_SECONDS, client=client, is_spelled=is_spelled, ids=ids
            )
        except Unanswered as error:
            why = f"the model's tokenizer {error}"
            raise Refusal("INVALID_PARAMETER", why, param="text") from None

    @staticmethod
    def _spelling(answer: TextAnswer) -> Spelling:
        assert answer.spelling is not None
        return answer.spelling

    async def _ask(
        self,
        texts: Sequence[m.Text],
        context: int,
        seconds: float,
        *,
        client: str = "",
        is_trial: bool = False,
        is_spelled: bool = False,
        ids: list[int] | None = None,
    ) -> TextAnswer:
        """Raises:
        Unanswered: the process has no answer.
        Refusal: SHUTTING_DOWN.
        """
        question = TextQuestion(
            *self._folder,
            [(text.text, text.special) for text in texts],
            context,
            LONG_TOKEN * context,
            seconds,
            is_trial,
            is_spelled,
            ids,
        )
        await self._turn(client, sum(len(text.text) for text in texts) + len(ids or ()))
        # a client that leaves does not end the process, because the next request would wait for its start
        self._exchange = background.start(self._answer(question))
        self._exchange.add_done_callback(partial(self._leave, client, time.monotonic()))
        answer = await asyncio.shield(self._exchange)
        if answer.reason is not None:
            raise Unanswered(answer.reason)
        return answer

    async def _turn(self, client: str, size: int) -> None:
        """Wait until the process is free and no other request is next."""
        if not self._is_taken:
            self._is_taken = True
            return
        turn = Turn(client, next(self._numbers), size)
        free = self._waiting[turn] = asyncio.get_running_loop().create_future()
        try:
            await free
        except asyncio.CancelledError:
            if free.done() and not free.cancelled():
                self._next()
            raise
        finally:
            self._waiting.pop(turn, None)

    def _leave(self, client: str, since: float, done: asyncio.Task[TextAnswer]) -> None:
        if not done.cancelled():
            done.exception()  # read here, because the client may have left
        now = time.monotonic()
        account = self._accounts.get(client, Account())
        self._accounts[client] = account.charged(now - since, now)
        if len(self._accounts) > 2 * ACCOUNTS_KEPT:
            self._accounts = fairness.kept(self._accounts, now)
        self._next()

    def _next(self) -> None:
        """Let the next request use the process."""
        now = time.monotonic()
        waiting = [turn for turn, free in self._waiting.items() if not free.done()]
        used = {
            turn.client: self._accounts.get(turn.client, Account()).lately(now) for turn in waiting
        }
        turn = fairness.next_turn(waiting, (), 1, used)
        if turn is None:
            self._is_taken = False
        else:
            self._waiting.pop(turn).set_result(None)

    async def _answer(self, question: TextQuestion) -> TextAnswer:
        if await self._started() and not question.is_trial:
            # a new process reads the tokenizer first, whose time does not count as that of the request
            opening = TextQuestion(*self._folder, [], 0, 0, self._open_seconds)
            opened = await self._exchanged(opening)
            if opened.reason is not None:
                return opened
        return await self._exchanged(question)

    async def _exchanged(self, question: TextQuestion) -> TextAnswer:
        body = msgspec.msgpack.encode(question)
        reader, writer = self._reader, self._writer
        assert reader is not None
        assert writer is not None
        try:
            async with asyncio.timeout(question.seconds):
                writer.write(m.LENGTH.pack(len(body)) + body)
                await writer.drain()
                (size,) = m.LENGTH.unpack(await reader.readexactly(m.LENGTH.size))
                answer = await reader.readexactly(size)
        except TimeoutError:
            await self._end()
            return TextAnswer(reason=f"takes longer than {question.seconds:g} s")
        except (asyncio.IncompleteReadError, ConnectionError):
            await self._end()
            self._check_open()
            return TextAnswer(reason="ended its process, or needs more memory than it may take")
        return msgspec.msgpack.decode(answer, type=TextAnswer)

    def _check_open(self) -> None:
        """Raises:
        Refusal: SHUTTING_DOWN.
        """
        if self._is_closed:
            raise Refusal("SHUTTING_DOWN", "the service is shutting down")

    async def _started(self) -> bool:
        """Start a process where none runs, and return whether it was started."""
        self._check_open()
        if not self._has_ended():
            return False
        await self._end()
        self._child, self._reader, self._writer = await self._start()
        self._check_open()
        return True

    def _has_ended(self) -> bool:
        """Whether no process runs. A process that ends closes its socket first, and sends nothing between requests."""
        if self._writer is None or self._writer.is_closing():
            return True
        return bool(connection.wait([self._writer.get_extra_info("socket")], 0))

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            await child.wait()
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(ConnectionError):
                await self._writer.wait_closed()
            self._reader = self._writer = None
