"""Turns the prompts of a request into tokens: conversations are rendered, and texts are tokenized, each in processes of
their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from msgspec import structs

from steerserve import messages as m
from steerserve.engines.checkpoint.tokenizer import TokenizerProcess
from steerserve.engines.sandbox.templates import Templates
from steerserve.errors import Refusal
from steerserve.messages.engine import Report
from steerserve.messages.prompts import check_ids, check_spelled
from steerserve.messages.spelling import ReadBack, Spell
from steerserve.messages.tokenizing import Spelling, place_contents

OPENING_PERCENT = 95.0
"""How far a load is when only the tokenizer is still read."""


class PromptMaker(Protocol):
    """Makes the prompts of requests into tokens."""

    def opening(
        self, path: str, trust_remote_code: bool, report: Report
    ) -> AbstractAsyncContextManager[None]: ...

    def serve(self, facts: m.Loaded) -> None: ...

    async def tokens(
        self, prompts: Sequence[Any], max_tokens: int | None, field: str, client: str
    ) -> list[m.Tokens]: ...

    async def spell(self, question: Spell | ReadBack) -> Spelling: ...

    async def close(self) -> None: ...


async def make_tokens(
    prompts: PromptMaker, request: m.Request, steering: Callable[[], m.Steering]
) -> list[m.Tokens]:
    """The tokens of a request. Where its conversations are in tokens already when an operator sets live edits that name
    roles, they are made into tokens again with the places of their messages.

    Raises:
        Refusal: as `PromptMaker.tokens`.
    """
    given = request.prompts
    while True:
        goal = request.goal
        made = await prompts.tokens(given, goal.max_tokens, goal.field, request.client)
        follows = goal.writes and isinstance(request.plan, m.Follow)
        if not follows or not any(edit.positions.roles for edit in steering().edits):
            return made
        located = [
            structs.replace(one, is_located=True) if isinstance(one, m.Chat) else one
            for one in given
        ]
        if located == list(given):
            return made
        given = located


class TokensGiven:
    """Stands in an engine whose prompts come as tokens, because somebody makes the prompts for several engines that
    hold the same model. Nothing here waits, so a request reaches such an engine in the step in which it begins."""

    @asynccontextmanager
    async def opening(
        self, _path: str, _trust_remote_code: bool, _report: Report
    ) -> AsyncIterator[None]:
        yield

    def serve(self, facts: m.Loaded) -> None:
        """Every prompt was checked before."""

    async def tokens(
        self, prompts: Sequence[Any], _max_tokens: int | None, _field: str, _client: str
    ) -> list[m.Tokens]:
        """The prompts as they are."""
        return list(prompts)

    async def spell(self, _question: Spell | ReadBack) -> Spelling:
        raise Refusal("MODEL_NOT_LOADED", "this engine has no tokenizer")

    async def close(self) -> None:
        """Nothing was opened."""


class Prompts:
    """Owns the renderers of the chat template and the tokenizer of one engine."""

    def __init__(self, tokenizer: TokenizerProcess) -> None:
        self._templates = Templates()
        self._tokenizer = tokenizer
        self._facts: m.Loaded | None = None

    @asynccontextmanager
    async def opening(
        self, path: str, trust_remote_code: bool, report: Report
    ) -> AsyncIterator[None]:
        """Read the tokenizer of a checkpoint folder while the block runs, and report where that takes longer.

        Raises:
            Refusal: MODEL_LOAD_FAILED when the tokenizer needs more time or memory than it may take, or fails.
        """
        opening = asyncio.create_task(self._tokenizer.open(path, trust_remote_code))
        # the block may fail first, and then nobody waits for the task
        opening.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            yield
            if not opening.done():
                report(m.Progress(0, m.LOADING_TOKENIZER, OPENING_PERCENT))
            await opening
        finally:
            opening.cancel()

    def serve(self, facts: m.Loaded) -> None:
        """Take the context and the chat template of the loaded model."""
        self._facts = facts

    async def tokens(
        self, prompts: Sequence[m.Prompt], max_tokens: int | None, field: str, client: str
    ) -> list[m.Tokens]:
        """The tokens of the prompts of a client, in their order. Prompts that are tokens already stay as they are: a
        client has sent tokens, or a fleet has made them. `field` names prompts that are no conversations; `max_tokens`
        is the number that the request names.

        Raises:
            Refusal: MODEL_NOT_LOADED, NO_CHAT_TEMPLATE, CONTEXT_LENGTH_EXCEEDED; INVALID_PARAMETER when the template or
                the tokenizer refuses the prompts; SHUTTING_DOWN after `close`.
        """
        made = [prompt for prompt in prompts if isinstance(prompt, m.Tokens)]
        if made:
            return made
        if self._facts is None:
            raise Refusal("MODEL_NOT_LOADED", "this engine holds no model")
        written = [prompt for prompt in prompts if not isinstance(prompt, m.Tokens)]
        texts = await self._templates.texts(written, self._facts.chat_template)
        context = self._facts.context_length
        tokens = await self._tokenizer.tokens(texts, context, max_tokens, field, client)
        return [
            await self._located(one, text, client) if text.contents or text.unused else one
            for one, text in zip(tokens, texts, strict=True)
        ]

    async def _located(self, tokens: m.Tokens, text: m.Text, client: str) -> m.Tokens:
        """The tokens of a conversation with what is known of its text: the places of its messages' contents, and the
        variables that are not used."""
        tokens = structs.replace(tokens, unused=text.unused)
        if not text.contents:
            return tokens
        spelling = await self._tokenizer.spell(text, client)
        return structs.replace(tokens, spans=place_contents(spelling, text.contents))

    async def spell(self, question: Spell | ReadBack) -> Spelling:
        """Raises:
        Refusal: the refusals of the question; MODEL_NOT_LOADED, SHUTTING_DOWN after `close`.
        """
        if isinstance(question, ReadBack):
            if self._facts is not None:
                tokens = m.Tokens(question.ids, place="ids")
                check_ids(tokens, self._facts.vocabulary, "INVALID_PARAMETER")
            return await self._tokenizer.read_back(question.ids, question.client)
        if self._facts is None:
            raise Refusal("MODEL_NOT_LOADED", "this engine holds no model")
        (text,) = await self._templates.texts([question.prompt], self._facts.chat_template)
        check_spelled(text, question.longest)
        spelling = await self._tokenizer.spell(text, question.client)
        if not text.contents:
            return spelling
        return structs.replace(spelling, spans=place_contents(spelling, text.contents))

    async def close(self) -> None:
        """End the processes. Requests that wait for them are refused."""
        await self._templates.close()
        await self._tokenizer.close()
