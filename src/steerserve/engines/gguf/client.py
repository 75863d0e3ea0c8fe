"""A GGUF model served by llama.cpp in a process of its own, with the same methods as the checkpoint engine.

`GgufEngine` owns the process, its HTTP client, the renderer of the chat template, and the gate before the slots of the
server. Prompts are tokenized by the server and sent as token ids, so that counts are exact; every request is streamed,
because the server notices that a client has left only when it writes to that client.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import cast

from steerserve import messages as m
from steerserve.engines.gguf import loading as llama_loading
from steerserve.engines.gguf import process as llama_process
from steerserve.engines.gguf.gate import Gate
from steerserve.engines.gguf.life import LlamaLife
from steerserve.engines.gguf.loading import Model, Opened, Options
from steerserve.engines.gguf.process import LlamaProcess
from steerserve.engines.gguf.rows import (
    Events,
    LlamaRow,
    not_honoured,
    piece_of,
    refuse_unhonoured,
    until_finished,
)
from steerserve.engines.gguf.server import LlamaServer, Lost, sampling_fields
from steerserve.engines.sandbox.templates import Templates
from steerserve.errors import Refusal
from steerserve.logs import background
from steerserve.messages import endings
from steerserve.messages.engine import (
    Answer,
    Answers,
    Engine,
    Heartbeat,
    Report,
    is_stopped,
    no_layers,
)
from steerserve.messages.prompts import (
    NamedPrompt,
    check_ids,
    check_length,
    check_spelled,
    max_tokens,
)
from steerserve.messages.spelling import ReadBack, Spell
from steerserve.messages.stops import StopStrings
from steerserve.messages.tokenizing import Spelling
from steerserve.rules import clients
from steerserve.rules.models.gguf_header import Header
from steerserve.rules.residency.heartbeat import SIGN_SECONDS
from steerserve.rules.text_offsets import BROKEN, place_tokens

__all__ = ["GgufEngine", "Options"]

Work = Callable[[], Coroutine[object, object, None]]


class GgufEngine(Engine):
    """One GGUF model. `ended` is done when its process is gone, with the reason as a clause."""

    def __init__(self, options: Options) -> None:
        super().__init__(Heartbeat(lambda: self._life.sign(is_stopped=is_stopped(self.pid))))
        self._options = options
        self._ids = itertools.count(1)
        self._templates = Templates()
        self._tasks: set[asyncio.Task[None]] = set()
        self._process: LlamaProcess | None = None
        self._opened: Opened | None = None
        self._gate = Gate(0, 0)
        self._is_stopped = False
        self._reason: str | None = None
        self._ending: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._life = LlamaLife()

    @property
    def is_idle(self) -> bool:
        """Whether no request runs or waits. A cancelled request counts until the server has stopped working on it."""
        return self._gate.is_idle

    # ------------------------------------------------------------- commands

    async def load(
        self,
        report: Report,
        *_: object,
        path: str,
        header: Header,
        split: Sequence[float] | None = None,
    ) -> m.Loaded:
        """Load the model whose first file is `path`; `split` has proportions over the cards, in place of the
        proportions of the setting.

        Raises:
            Refusal: MODEL_LOAD_FAILED, INVALID_GGUF_TENSOR_SPLIT, INSUFFICIENT_MEMORY.
        """
        model = Model(path, header, split)
        try:
            opened = await llama_loading.opened(self._options, report, model, self._keep)
        except BaseException as error:
            await self._end("the engine process ended")
            if self._is_stopped and isinstance(error, Refusal):
                raise self._gone() from None
            raise
        self._gate = Gate(opened.room.pool, opened.slots)
        self._life = LlamaLife(opened.batch, is_warm=bool(opened.embed_context))
        self._opened = opened
        self._ending = background.start(self._end_with(opened.process))
        self._listening = background.start(self._listen(opened.server), name="llama-listener")
        return llama_loading.facts(opened, self._options.cache_type)

    async def stop(self, parting: Refusal | None = None) -> None:
        """End the process, by force if it is stalled. A process that has ended already is left alone.

        Requests that are still in flight are refused with `parting`.
        """
        self._parting = self._parting or parting
        self._is_stopped = True
        if self._process is not None:
            if self.heartbeat.stalled is not None:
                self._process.kill()
            await self._process.stop()
        if self._ending is not None:
            await asyncio.shield(self._ending)
        else:
            await self._end("the engine process ended")

    async def ask(self, question: m.Question[Answer]) -> Answer:
        """Only the tokenizer, and the memory of the process, can be asked for."""
        answer: object
        match question:
            case Spell(prompt=prompt, longest=longest):
                answer = await self._spell(prompt, longest)
            case ReadBack(ids=ids):
                answer = await self._read_back(ids)
            case m.Measure() if self._opened is not None:
                answer = await asyncio.to_thread(llama_loading.measured, self._opened)
            case m.Measure():
                answer = m.Measured(0)
            case _:
                raise no_layers()
        return cast("Answer", answer)

    # ------------------------------------------------------------- heartbeats

    def lose(self, reason: str) -> None:
        if self._process is not None and not self.ended.done():
            self._reason = self._reason or reason
            self._process.kill()

    async def _listen(self, server: LlamaServer) -> None:
        """Ask the server every SIGN_SECONDS whether it is alive."""
        while True:
            with suppress(Lost, Refusal):
                await server.alive()
                self._life.answered()
            await asyncio.sleep(SIGN_SECONDS)

    # ------------------------------------------------------------- requests

    async def run(self, request: m.Request) -> Answers:
        """`client` says only whether the request yields, because llama.cpp serves other rows in the order of their
        arrival; `label` and `plans` have no effect, because they are about SAEs."""
        match request.goal:
            case m.Generate():
                events = self._generate(request, request.goal)
            case m.Embed():
                events = self._embed(request)
            case m.Score():
                not_honoured("logprobs")
            case _:
                raise no_layers()
        async with aclosing(events):
            async for event in events:
                yield event

    async def _generate(self, request: m.Request, goal: m.Generate) -> Answers:
        """Raises:
        Refusal: CONTEXT_LENGTH_EXCEEDED, NO_CHAT_TEMPLATE, INVALID_PARAMETER (an empty prompt, messages that the
            template refuses), FIELD_NOT_HONOURED; MODEL_NOT_LOADED when the engine had ended before the request,
            ENGINE_UNAVAILABLE when the engine ended during the request.
        """
        opened = self._serving()
        if opened.header.is_embedding_only:
            raise Refusal("INVALID_PARAMETER", "an embedding model only embeds", param="model")
        refuse_unhonoured(request, goal)
        sampling = goal.sampling
        rows = await self._rows(opened, request, opened.room.context, sampling)
        fields = sampling_fields(sampling, opened.room.context)
        for row in rows:
            row.yields = clients.is_in_background(request.client)
        number, events = next(self._ids), Events()
        try:
            yield m.Started(number, [len(row.tokens) for row in rows])
            for row in rows:
                row.task = self._spawn(
                    partial(self._write, opened, row, number, fields, events), events
                )
            async for event in until_finished(events, len(rows)):
                yield event
        finally:
            for row in rows:
                row.drop()

    async def _embed(self, request: m.Request) -> Answers:
        """Yield Started, then Embedded for each text, in order.

        Raises:
            Refusal: CONTEXT_LENGTH_EXCEEDED, INVALID_PARAMETER (a text without tokens, or a model loaded without
                embeddings), and the refusals of an ended engine as in `_generate`.
        """
        opened = self._serving()
        if not opened.embed_context:
            why = "the model was loaded without embeddings"
            raise Refusal("INVALID_PARAMETER", why, param="model")
        wanted = m.Sampling(max_tokens=0)
        rows = await self._rows(opened, request, opened.embed_context, wanted)
        number, events = next(self._ids), Events()
        try:
            yield m.Started(number, [len(row.tokens) for row in rows])
            task = self._spawn(partial(self._pool, opened.server, rows, number, events), events)
            for row in rows:
                row.task = task
            async for event in until_finished(events, len(rows)):
                yield event
        finally:
            for row in rows:
                row.drop()

    async def _spell(self, prompt: m.Text | m.Chat, longest: int) -> Spelling:
        opened = self._serving()
        try:
            (text,) = await self._made(opened.header, [prompt])
            assert isinstance(text, m.Text)
            check_spelled(text, longest)
            with self._life.tokenizing():
                named = await opened.server.pieces(text.text, special=text.special)
        except Lost:
            raise await self._lost() from None
        pieces = [piece for _, piece in named]
        ids = [token for token, _ in named]
        ends = opened.header.bos_id, opened.header.eos_id
        return Spelling(text.text, ids, *place_tokens(text.text, pieces), *ends)

    async def _read_back(self, ids: list[int]) -> Spelling:
        opened = self._serving()
        check_ids(m.Tokens(ids, place="ids"), opened.header.vocabulary, "INVALID_PARAMETER")
        try:
            with self._life.tokenizing():
                text = await opened.server.text(ids)
                distinct = list(dict.fromkeys(ids))
                by_id = dict(zip(distinct, await opened.server.texts(distinct), strict=True))
        except Lost:
            raise await self._lost() from None
        pieces = [by_id[token] for token in ids]
        ends = opened.header.bos_id, opened.header.eos_id
        return Spelling(text, ids, *place_tokens(text, pieces), *ends)

    # ------------------------------------------------------------- inside

    def _keep(self, process: LlamaProcess) -> None:
        if self._is_stopped:
            raise self._gone()
        self._process, self.pid = process, process.pid

    async def _end_with(self, process: LlamaProcess) -> None:
        await self._end(await asyncio.shield(process.ended))

    async def _end(self, reason: str) -> None:
        """Announce that the process is gone, and end everything that depends on it."""
        if self._listening is not None:
            self._listening.cancel()
        if not self.ended.done():
            self.ended.set_result(self._reason or reason)
        await self._templates.close()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._opened is not None:
            await self._opened.server.close()

    def _gone(self) -> Refusal:
        why = self.ended.result() if self.ended.done() else "the engine process ended"
        return self._parting or endings.engine_gone(why)

    async def _lost(self) -> Refusal:
        """The refusal of a request whose connection broke. An engine that has not ended by then is killed."""
        await asyncio.wait([self.ended], timeout=llama_process.STOP_SECONDS)
        if not self.ended.done():
            assert self._process is not None
            self._process.kill()
        await asyncio.wait([self.ended])
        return self._gone()

    def _serving(self) -> Opened:
        self.must_run()
        assert self._opened is not None
        return self._opened

    async def _rows(
        self,
        opened: Opened,
        request: m.Request,
        context: int,
        sampling: m.Sampling,
    ) -> list[LlamaRow]:
        """A row for each prompt, with its tokens."""
        rows = []
        try:
            stop_tokens = await self._texts_of_tokens(opened, sampling.stops)
            for index, made in enumerate(await self._made(opened.header, request.prompts)):
                check_ids(made, opened.header.vocabulary, "INVALID_PARAMETER")
                with NamedPrompt(request.prompts, index, request.goal.field):
                    tokens = await self._tokens(opened, made, context, sampling.max_tokens)
                    if not tokens:
                        why = "the prompt has no tokens"
                        raise Refusal("INVALID_PARAMETER", why, param="prompt")
                    limit = max_tokens(sampling, len(tokens), context)
                rows.append(LlamaRow(index, tokens, limit, sampling.stops, stop_tokens))
        except Lost:
            raise await self._lost() from None
        except Refusal:
            if self.ended.done():  # the renderer of templates was closed because the engine ended
                raise self._gone() from None
            raise
        return rows

    async def _tokens(
        self, opened: Opened, prompt: m.Text | m.Tokens, context: int, wanted: int | None
    ) -> list[int]:
        if isinstance(prompt, m.Tokens):
            return prompt.ids
        check_length(prompt, opened.header.longest_token, context, wanted)
        with self._life.tokenizing():
            return await opened.server.tokenize(prompt.text, special=prompt.special)

    async def _texts_of_tokens(self, opened: Opened, texts: Sequence[str]) -> dict[int, str]:
        """The tokens of these texts with their own texts, without those that have only a part of a character."""
        found: dict[int, str] = {}
        for text in texts:
            with self._life.tokenizing():
                found.update(await opened.server.pieces(text, special=False))
        return {token: piece for token, piece in found.items() if BROKEN not in piece}

    async def _made(
        self, header: Header, prompts: Sequence[m.Prompt]
    ) -> Sequence[m.Text | m.Tokens]:
        """The prompts with conversations as texts. This engine renders conversations without the variables of the
        client."""
        given = [prompt for prompt in prompts if isinstance(prompt, m.Tokens)]
        if given:
            return given
        bare = [
            m.Chat(p.messages, client=p.client) if isinstance(p, m.Chat) else p
            for p in prompts
            if not isinstance(p, m.Tokens)
        ]
        return await self._templates.texts(bare, llama_loading.chat_template(header))

    def _spawn(self, work: Work, events: Events) -> asyncio.Task[None]:
        """Run the work of a request in a task. Its errors are raised where the events of the request are read."""

        async def guarded() -> None:
            try:
                await work()
            except Lost:
                events.put_nowait(await self._lost())
            except Exception as error:
                # the reader of the events handles the error
                events.put_nowait(error)

        task = asyncio.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _write(
        self, opened: Opened, row: LlamaRow, number: int, fields: dict[str, object], events: Events
    ) -> None:
        """Complete one prompt. The row keeps its slot until the server has stopped working on it."""
        need = len(row.tokens) + row.max_tokens
        place = await self._gate.enter(row.tokens, need, yields=row.yields)
        row.is_sent = True
        stops, cached, is_over = StopStrings(row.stops), list(row.tokens), False
        completion = opened.server.complete(row.tokens, row.max_tokens, place.number, fields)
        try:
            with self._life.working(len(row.tokens)) as work:
                async with aclosing(completion) as chunks:
                    async for chunk in chunks:
                        self._life.progressed(work, chunk)
                        cached += chunk.tokens
                        is_over = chunk.finish is not None
                        piece = piece_of(stops, chunk, number, row)
                        if piece.text or piece.finish:
                            events.put_nowait(piece)
                        if piece.finish or not row.is_wanted:
                            break
                if not is_over:
                    await opened.server.until_idle(place.number)
        finally:
            place.tokens = cached
            self._gate.leave(place)

    async def _pool(
        self, server: LlamaServer, rows: list[LlamaRow], number: int, events: Events
    ) -> None:
        """Embed the texts one after the other, while no other request uses the server."""
        async with self._gate.alone():
            for row in rows:
                row.is_sent = True
            for row in rows:
                if not row.is_wanted:
                    return
                with self._life.working(len(row.tokens)):
                    vector = await server.embed(row.tokens)
                events.put_nowait(m.Embedded(number, row.choice, vector))
