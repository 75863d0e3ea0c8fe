"""The loop of the engine process: take commands, step the batch, send events. All tensor work is on its main thread."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TypeVar

import structlog
import torch
from transformers.utils import logging as transformers_logging

from steerserve import messages as m
from steerserve.errors import Refusal
from steerserve.logs import setup as logs
from steerserve.rules import clients
from steerserve.rules.residency.heartbeat import Activity
from steerserve.worker import memory
from steerserve.worker.batch.batch import Batch
from steerserve.worker.batch.passes import Passes
from steerserve.worker.heartbeat import Pulse, Word
from steerserve.worker.model.transformer import described_error
from steerserve.worker.process.commands import Commands, Work
from steerserve.worker.process.loading import LoadedModel
from steerserve.worker.process.turns import Turns
from steerserve.worker.process.wire import Wire

log = structlog.get_logger(__name__)
Seen = TypeVar("Seen")

_CODE_OF_FAILURE = {Activity.LOAD: "MODEL_LOAD_FAILED", Activity.SAE: "SAE_LOAD_FAILED"}
"""The code of an unexpected error in a command, by what the engine was doing; else INTERNAL_ERROR."""


def main(link: socket.socket, log_level: str, log_format: str, word: Word) -> None:
    """Run the engine until its socket closes or it is told to stop. Its heartbeats are written into `word`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logs.configure(log_level, log_format)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    memory.keep_freed()
    with link, Wire(link) as wire, torch.inference_mode():
        Worker(wire, Pulse(word)).run()


class Worker:
    """Answers commands and steps the batch of the loaded model, in turns."""

    def __init__(self, wire: Wire, pulse: Pulse | None = None) -> None:
        self._wire = wire
        self._pulse = pulse or Pulse()
        wire.beat = self._pulse.beat
        self._turns = Turns(wire.send)
        self.commands = Commands(wire.send, wire.wake, self._pulse, self._live_waits)
        self._may_release = False

    def run(self) -> None:
        """Take turns until the socket closes at either end, or a command says stop."""
        try:
            while not (self.commands.is_stopped or self._wire.is_closed):
                self._turn()
        except (BrokenPipeError, ConnectionResetError):
            return

    def _turn(self) -> None:
        """Carry out the commands that came, then take one step of the batch. Without work, wait for a command, and give
        kept memory back once the wait was longer than `release_after`."""
        commands, batch = self.commands, self.commands.batch
        is_sliced = commands.beside.has_slices
        idle = (batch is None or batch.is_idle) and not is_sliced
        wait = commands.release_after if self._may_release else None
        rest = 0.0 if batch is None else batch.rest_seconds
        if rest:
            wait = rest
        rests = rest > 0 and not is_sliced
        if idle or rests:
            self._pulse.doing(Activity.IDLE)
            commands.threads.rested()
        arrived = list(self._wire.receive(wait=idle or rests, seconds=wait))
        taken_back = {command.id for command in arrived if isinstance(command, m.Cancel)}
        for command in arrived:
            self._pulse.doing(commands.activity(command))
            is_wanted = command.id not in taken_back or isinstance(command, m.Cancel)
            with self._timed(command):
                self.answer(command, partial(commands.obey, command) if is_wanted else _refuse)
        for command, work in commands.beside.finished():
            self._pulse.doing(Activity.COMMAND)
            with self._timed(command):
                self.answer(command, work)
        if taken_back:
            self._tell_observed()
        batch = commands.batch
        if batch is not None and not batch.is_idle and not batch.rest_seconds:
            begun = time.monotonic()
            self._step(batch)
            self._slice(time.monotonic() - begun)
            self._may_release = commands.release_after is not None
        elif is_sliced:
            self._slice(0.0)
        elif idle and self._may_release and not arrived:
            memory.give_back()
            self._may_release = False

    def _slice(self, seconds: float) -> None:
        """Work on commands that are done in slices for about as long as a step took, so that requests beside them take
        at most twice as long."""
        for command, work in self.commands.beside.slices(seconds):
            self._pulse.doing(Activity.COMMAND)
            with self._timed(command):
                self.answer(command, work)

    def _live_waits(self) -> bool:
        """Whether a request has come that does not yield."""
        return any(
            isinstance(command, m.Request) and not clients.is_in_background(command.client)
            for command in self._wire.pending()
        )

    def _timed(self, command: m.Command) -> AbstractContextManager[None]:
        """The time of a command is a turn. Nobody is served during a load."""
        if isinstance(command, m.Load):
            return nullcontext()
        named = command.goal if isinstance(command, m.Request) else command
        return self._turns.timed(type(named).__name__)

    def _step(self, batch: Batch | Passes) -> None:
        self._pulse.doing(Activity.DECODE)
        try:
            with self._turns.timed("step"):
                outcomes = batch.step()
        except Exception as error:
            # an error of a step ends the requests of the batch; the engine goes on
            log.exception("step_failed")
            outcomes = batch.fail(error)
            memory.recover(error)
        # events are sent before the end of the choice, so that a client with the whole answer finds its record
        with self._turns.timed("step: events"):
            model = self._tell_observed()
        sent = [o for o in outcomes if isinstance(o, m.Outcome) and _says_something(o)]
        if sent:
            self._wire.send(m.Stepped(sent, model.saes.applied if model is not None else {}))
        for refused in outcomes:
            if isinstance(refused, m.Refused):
                self._wire.send(refused)
        if model is not None:
            with self._turns.timed("step: readers"):
                self._observe(model.readers.work)
        self.commands.threads.stepped()

    def _tell_observed(self) -> LoadedModel | None:
        """Send the events of monitoring and sensing, and return the model."""
        loaded = self.commands.loaded
        if not isinstance(loaded, LoadedModel):
            return None
        for event in self._observe(lambda: list(loaded.readers.events())) or ():
            self._wire.send(event)
        return loaded

    def _observe(self, work: Callable[[], Seen]) -> Seen | None:
        """Do work of monitoring and sensing. An error of theirs loses what they saw in this step, and nothing else."""
        try:
            return work()
        except Exception:
            log.exception("readers_failed")
            return None

    def answer(self, command: m.Command, work: Work) -> None:
        """Do the work of a command and send its answer, or the reason for which it is refused."""
        answer: m.Event | None
        try:
            answer = work()
        except Refusal as refusal:
            answer = m.Refused(
                command.id, refusal.code, refusal.message, refusal.param, refusal.details
            )
        except (BrokenPipeError, ConnectionResetError):
            raise  # the other end of the socket is closed
        except Exception as error:
            # an error of one command refuses this command; the engine goes on
            log.exception("command_failed", command=type(command).__name__)
            answer = self._failed(command, error)
            memory.recover(error)
        if answer is not None:
            self._wire.send(answer)

    def _failed(self, command: m.Command, error: Exception) -> m.Refused:
        if memory.is_exhausted(error):
            loaded = self.commands.loaded
            usual = loaded.model.device if loaded is not None else memory.device()
            where = memory.described(memory.exhausted(error, usual))
            why = f"{where['device']} ran out of memory"
            return m.Refused(command.id, "INSUFFICIENT_MEMORY", why, None, dict(where))
        code = _CODE_OF_FAILURE.get(self.commands.activity(command), "INTERNAL_ERROR")
        return m.Refused(command.id, code, f"the engine failed: {described_error(error)}")


def _refuse() -> None:
    """The answer to a command that its sender took back before it was read."""
    raise Refusal("ENGINE_UNAVAILABLE", "the command was taken back")


def _says_something(outcome: m.Outcome) -> bool:
    return not isinstance(outcome, m.Piece) or bool(outcome.text or outcome.finish or outcome.parts)
