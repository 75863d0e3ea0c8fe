"""The checkpoint engine seen from the control plane: its process, commands, answers, and one stream per request.

The engine gets prompts as tokens; `prompts.py` makes them in other processes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

import msgspec
import structlog
from msgspec import structs

from steerserve import messages as m
from steerserve.engines.checkpoint import preparation, process
from steerserve.engines.checkpoint.asks import Asks, refusal, refused
from steerserve.engines.checkpoint.process import EngineProcess, FrameReader, FrameWriter
from steerserve.engines.checkpoint.prompts import PromptMaker, Prompts, make_tokens
from steerserve.engines.checkpoint.tokenizer import TokenizerProcess
from steerserve.errors import Refusal
from steerserve.logs import background
from steerserve.messages import endings
from steerserve.messages.engine import Answer, Answers, Engine, Heartbeat, Report
from steerserve.messages.mailbox import Mailbox
from steerserve.messages.spelling import ReadBack, Spell

log = structlog.get_logger(__name__)
Kind = TypeVar("Kind")
STOP_PATIENCE = 5.0
"""Seconds after which an engine that was told to stop is killed."""


class Launcher:
    """Starts engines; owns the fork server and the log settings of the engines. Reading a tokenizer may take
    `load_timeout` seconds."""

    def __init__(self, log_level: str, log_format: str, load_timeout: float = 1800.0) -> None:
        self._server = process.ForkServer()
        self._load_timeout = load_timeout
        self._log = (log_level, log_format)

    def prompts(self) -> Prompts:
        """Makes the prompts of an engine, or of several engines that hold the same model."""
        start = partial(self._server.start, process.TOKENIZER)
        return Prompts(TokenizerProcess(start, self._load_timeout))

    async def launch(self, prompts: PromptMaker | None = None) -> CheckpointEngine:
        started = await self._server.start_engine(*self._log)
        return CheckpointEngine(*started, prompts or self.prompts())


class CheckpointEngine(Engine):
    """One running engine process. It holds at most one model; the end of the process gives all its memory back."""

    def __init__(
        self,
        engine: EngineProcess,
        reader: FrameReader,
        writer: FrameWriter,
        prompts: PromptMaker,
    ) -> None:
        self._asks = Asks(self._write)
        super().__init__(Heartbeat(engine.sign, self._asks.stall))
        self.pid = engine.pid
        self._process = engine
        self._reader = reader
        self._writer = writer
        self._ids = itertools.count(1)
        self._streams: dict[int, Mailbox[m.Started | m.Refused | m.Outcome]] = {}
        self._prompts = prompts
        self._is_loading = False
        self._reason: str | None = None
        self._reading = background.start(self._read(), name="engine-reader")

    # ------------------------------------------------------------- commands

    async def load(self, report: Report, *_: object, **fields: Any) -> m.Loaded:
        """Raises:
        Refusal: the refusal of the engine, or ENGINE_UNAVAILABLE when the engine ended.
        """
        self._is_loading = True

        def ask(watched: Report) -> Awaitable[m.Event]:
            return self._ask(lambda i: m.Load(id=i, **fields), watched)

        async with self._prompts.opening(fields["path"], fields["trust_remote_code"], report):
            answer = await preparation.bounded(ask, report, self._process.kill)
        self._is_loading = False
        assert isinstance(answer, m.Loaded)
        self._prompts.serve(answer)
        return answer

    async def ask(self, question: m.Question[Answer]) -> Answer:
        """The answer of the tokenizer, or of the engine process after the forward pass that runs now."""
        if isinstance(question, Spell | ReadBack):
            return cast("Answer", await self._prepared(lambda: self._prompts.spell(question)))

        def numbered(number: int) -> m.Command:
            return cast("m.Command", structs.replace(question, id=number))

        return cast("Answer", await self._ask(numbered))

    async def _apply(self, state: m.State) -> Mapping[str, m.Attached]:
        answer = await self._ask(lambda i: m.Apply(i, state))
        assert isinstance(answer, m.Applied)
        return answer.facts

    async def run(self, request: m.Request) -> Answers:
        """Make the tokens of the request, then yield its events until each choice has ended.

        Closing the iterator early cancels the request in the engine.

        Raises:
            Refusal: the refusal of the chat template or of the engine; MODEL_NOT_LOADED when the engine had ended
                before the request, ENGINE_UNAVAILABLE when the engine ended during the request.
        """
        tokens = await self._prepared(
            lambda: make_tokens(self._prompts, request, lambda: self.state.steering)
        )
        number = next(self._ids)
        events = self._streams[number] = Mailbox[m.Started | m.Refused | m.Outcome]()
        unfinished = len(tokens) * request.goal.rows
        told = self._reported(tokens) if request.goal.writes else None
        try:
            await self._send(structs.replace(request, id=number, prompts=tokens, reported=told))
            while unfinished:
                event = await events.next_item()
                if isinstance(event, m.Refused):
                    unfinished = 0
                    raise refusal(event)
                if isinstance(event, m.Started):
                    event = structs.replace(event, unused=tokens[0].unused if tokens else ())
                elif m.is_last(event):
                    unfinished -= 1
                yield event
        finally:
            self._streams.pop(number, None)
            if unfinished:
                self._write(m.Cancel(number))

    async def stop(self, parting: Refusal | None = None) -> None:
        """End the process: politely, then by force. One that loads a model, or is stalled, reads no command, so it is
        ended by force at once. Requests that are still in flight are refused with `parting`.
        """
        self._parting = parting
        if not (self._writer.is_closing() or self._is_loading or self.heartbeat.stalled):
            self._writer.write(m.frame(m.Stop()))
            await asyncio.wait([self.ended], timeout=STOP_PATIENCE)
        if not self.ended.done():
            self._process.kill()
        await self.ended

    def lose(self, reason: str) -> None:
        if not self.ended.done():
            self._reason = self._reason or (reason if self._process.exitcode is None else None)
            self._process.kill()

    # ------------------------------------------------------------- inside

    async def _prepared(self, work: Callable[[], Awaitable[Kind]]) -> Kind:
        """The result of work of the processes that make tokens.

        Raises:
            Refusal: a refusal of the work; MODEL_NOT_LOADED, ENGINE_UNAVAILABLE.
        """
        try:
            self.must_run()
            return await work()
        except Refusal as error:
            if error.code != "SHUTTING_DOWN":
                raise
            # these processes were closed because the engine ended
            raise self._parting or endings.engine_gone(await self.ended) from None

    def _reported(self, prompts: Sequence[m.Tokens]) -> m.Reported | None:
        """What sensing has reported of these prompts already; None while it has reported nothing."""
        history = self.history
        if not history.number:
            return None
        return m.Reported(history.number, [history.skip(prompt.ids) for prompt in prompts])

    async def _ask(self, make: Callable[[int], m.Command], report: Report | None = None) -> m.Event:
        if self._writer.is_closing():
            raise await self._gone()
        self.heartbeat.check_not_stalled()
        return await self._asks.ask(make(next(self._ids)), report)

    def _write(self, command: m.Command) -> None:
        if not self._writer.is_closing():
            self._writer.write(m.frame(command))

    async def _send(self, command: m.Command) -> None:
        if not self._writer.is_closing():
            with suppress(ConnectionError):
                self._write(command)
                return await self._writer.drain()
        raise await self._gone()

    async def _gone(self) -> Refusal:
        """The refusal after the process closed its socket. The process is about to end."""
        reason = await self.ended
        return self._parting or endings.engine_gone(reason)

    async def _read(self) -> None:
        try:
            while True:
                header = await self._reader.readexactly(m.LENGTH.size)
                body = await self._reader.readexactly(m.LENGTH.unpack(header)[0])
                self._dispatch(m.decode_event(body))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except msgspec.ValidationError:
            log.exception("engine_event_unreadable")
        finally:
            self._writer.close()
            try:
                # a process with a closed socket is ending or stuck, and is of no use any more
                await self._process.wait(STOP_PATIENCE)
                self._process.kill()
                await self._process.wait()
                await self._prompts.close()
            finally:
                # whoever waits for the end must not wait for ever if the event loop cancels this task
                self._process.kill()
                self._end(self._reason or self._process.reason())

    def _dispatch(self, event: m.Event) -> None:
        match event:
            case m.Stepped():
                self._set_applied(
                    {k: event.applied.get(k, n) for k, n in self.passes.applied.items()}
                )
                for outcome in event.outcomes:
                    if (events := self._streams.get(outcome.id)) is not None:
                        events.put(outcome)
            case m.Recorded():
                self.on_record(event)
            case m.SensedSpans():
                self.history.remember(event.history, event.reported)
                self.on_spans(event)
            case m.SensedEdges():
                self.on_edges(event)
            case m.ThreadsChanged():
                self._passes = replace(self._passes, threads=event)
            case m.GraphsChanged():
                self._passes = replace(self._passes, graphs=event)
            case m.TurnsChanged():
                self._passes = replace(self._passes, turns=event.longest)
            case m.Started() | m.Refused() if event.id in self._streams:
                self._streams[event.id].put(event)
            case _ if not self._asks.deliver_event(event):
                self.lose("the engine carried out an edit that had been given up")

    def _end(self, reason: str) -> None:
        self.ended.set_result(reason)
        gone = self._parting or endings.engine_gone(reason)
        self._asks.end(gone)
        for number, events in self._streams.items():
            events.put(refused(number, gone))
