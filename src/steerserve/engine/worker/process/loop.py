"""The engine process: take commands, step the batch, send events. All tensor work is on this one main thread."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import structlog
import torch
from transformers.utils import logging as transformers_logging

from steerserve import log as logs
from steerserve.engine.wire import messages as m
from steerserve.engine.worker import memory
from steerserve.engine.worker.attached import attach, explore
from steerserve.engine.worker.attached.hooks import Steering
from steerserve.engine.worker.batch import admission
from steerserve.engine.worker.batch.batch import Batch
from steerserve.engine.worker.batch.passes import Passes
from steerserve.engine.worker.model import budget
from steerserve.engine.worker.model.checkpoint import Checkpoint
from steerserve.engine.worker.model.encoder import Encoder
from steerserve.engine.worker.model.transformer import Report, configuration, told
from steerserve.engine.worker.observing.monitor import special_tokens
from steerserve.engine.worker.process.wire import Wire
from steerserve.engine.worker.rows.constrain import Grammar, Grammars
from steerserve.engine.worker.rows.rows import Row
from steerserve.engine.worker.rows.taps import TapReader
from steerserve.engine.worker.sae import formats, sites
from steerserve.engine.worker.sae.canonical import Sae
from steerserve.errors import Refusal
from steerserve.rules.architecture import is_embedding_only
from steerserve.rules.schema_dialect import JSON_OBJECT
from steerserve.rules.steering import Live
from steerserve.rules.units import MIB

log = structlog.get_logger(__name__)


def main(link: socket.socket, log_level: str, log_format: str) -> None:
    """Run the engine until its socket closes or it is told to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logs.configure(log_level, log_format)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    memory.keep_freed()
    with link, Wire(link) as wire, torch.inference_mode():
        Engine(wire).run()


class Engine:
    """One model at most, its batch, its SAEs."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._model: Checkpoint | None = None
        self._encoder: Encoder | None = None
        self._steering: Steering | None = None
        self._batch: Batch | Passes | None = None
        self._grammars: Grammars | None = None
        self._compiling: list[tuple[m.Generate, Future[Grammar]]] = []
        self._context = 0
        self._kv_tokens = 0
        self._working = 0
        self._release_after: float | None = None
        self._may_release = False
        self._is_stopped = False

    def run(self) -> None:
        while not (self._is_stopped or self._wire.is_closed):
            idle = self._batch is None or self._batch.is_idle
            wait = self._release_after if self._may_release else None
            has_come = False
            try:
                for command in self._wire.receive(wait=idle, seconds=wait):
                    has_come = True
                    self._answer(command, partial(self._obey, command))
                self._admit_compiled()
                if self._batch is not None and not self._batch.is_idle:
                    self._step(self._batch)
                    self._may_release = self._release_after is not None
                elif idle and self._may_release and not has_come:
                    memory.give_back()
                    self._may_release = False
            except (BrokenPipeError, ConnectionResetError):
                return

    def _step(self, batch: Batch | Passes) -> None:
        outcomes = batch.step()
        monitor = self._steering.monitor if self._steering else None
        for record in monitor.records() if monitor else ():
            # before the end of its choice: who has the answer finds the record
            self._wire.send(record)
        told = [o for o in outcomes if isinstance(o, m.Outcome) and _says_something(o)]
        if told:
            self._wire.send(m.Stepped(told, self._steering.applied if self._steering else {}))
        for refused in outcomes:
            if isinstance(refused, m.Refused):
                self._wire.send(refused)
        if monitor:
            monitor.work()

    def _answer(self, command: m.Command, work: Callable[[], m.Event | None]) -> None:
        """Do the work of a command and send what it answers, or why it is refused."""
        answer: m.Event | None
        try:
            answer = work()
        except Refusal as refusal:
            answer = m.Refused(
                command.id, refusal.code, refusal.message, refusal.param, refusal.details
            )
        except (BrokenPipeError, ConnectionResetError):
            raise  # nobody is there any more
        except Exception as error:
            # whatever a command raises is its own failure; the engine serves on
            log.exception("command_failed", command=type(command).__name__)
            answer = self._failed(command, error)
            memory.recover(error)
        if answer is not None:
            self._wire.send(answer)

    def _failed(self, command: m.Command, error: Exception) -> m.Refused:
        if memory.is_exhausted(error):
            usual = self._model.device if self._model else memory.device()
            where = memory.described(memory.exhausted(error, usual))
            why = f"{where['device']} ran out of memory"
            return m.Refused(command.id, "INSUFFICIENT_MEMORY", why, None, dict(where))
        code = _CODE_OF_FAILURE.get(type(command), "INTERNAL_ERROR")
        return m.Refused(command.id, code, f"the engine failed: {told(error)}")

    def _obey(self, command: m.Command) -> m.Event | None:
        match command:
            case m.Load():
                return self._load(command)
            case m.Measure():
                model = self._encoder or self._model
                return m.Measured(command.id, memory.measured(model.devices if model else []))
            case m.Inspect():
                return m.Inspected(command.id, formats.inspect(command.source))
            case m.Attach():
                return attach.attach(command, self._loaded(), self._hooks(), self._check_room)
            case m.Detach():
                self._hooks().detach(command.key)
                memory.give_back()
                return m.Done(command.id)
            case m.Monitor():
                if command.key is not None or self._steering is not None:
                    self._hooks().watch(command.key, command.features, command.top_k)
                return m.Done(command.id)
            case m.ReadStatistics():
                return self._hooks().monitor.read(command)
            case m.ResetStatistics():
                self._hooks().monitor.reset()
                return m.Done(command.id)
            case m.Explore():
                return explore.explore(command, self._explored(command))
            case m.Steer():
                if self._encoder is None:  # an encoder has nothing to steer
                    self._hooks().set_live(Live(command.epoch, command.enabled, command.values))
                return m.Done(command.id)
            case m.Generate():
                return self._generate(command)
            case m.Score():
                rows = admission.scoring_rows(
                    command, self._loaded(), self._context, open_tap=self._open_tap
                )
                return self._begin(rows, admission.shortest_first(rows))
            case m.Embed():
                model = self._encoder or self._loaded()
                rows = admission.pooling_rows(command, model, self._context)
                return self._begin(rows, admission.shortest_first(rows))
            case m.Cancel():
                self._compiling = [c for c in self._compiling if c[0].id != command.id]
                if self._batch is not None:
                    self._batch.cancel(command.id)
                return None
            case m.Stop():
                self._is_stopped = True
                return None
        raise AssertionError(command)

    def _load(self, command: m.Load) -> m.Loaded:
        torch.set_num_threads(command.threads or _cores())
        self._working = command.working_mb * MIB
        if command.idle_cache_release_s >= 0:
            self._release_after = command.idle_cache_release_s
        path = Path(command.path)

        def report(stage: str, percent: float) -> None:
            self._wire.send(m.Progress(command.id, stage, percent))

        config = configuration(path, command.trust_remote_code)
        if is_embedding_only((config.architectures or [None])[0]):
            return self._load_encoder(command, path, report)
        model = Checkpoint(
            path,
            quantization=command.quantization,
            trust_remote_code=command.trust_remote_code,
            report=report,
            devices=command.devices,
        )
        least = min(command.min_context, model.model_max_context)
        self._kv_tokens = budget.kv_tokens(model, command.kv_cache_mb * MIB, least, self._working)
        self._context = min(model.model_max_context, self._kv_tokens)
        prefixes = budget.prefix_tokens(model, self._kv_tokens, command.prefix_cache_mb)
        self._model = model
        special = special_tokens(model.tokenizer, model.end_tokens)
        self._steering = Steering(model.dtype, special, self._check_room)
        self._batch = Batch(model, self._steering, self._kv_tokens, prefixes)
        self._grammars = Grammars(
            model.tokenizer, model.vocabulary, model.end_tokens, command.grammar_cache
        )
        return self._facts(
            command,
            model,
            kv_tokens=self._kv_tokens,
            kv_bytes_per_token=model.kv_bytes_per_token,
            has_chat_template=model.has_chat_template,
            site_widths=sites.widths(model.model, model.layers),
        )

    def _load_encoder(self, command: m.Load, path: Path, report: Report) -> m.Loaded:
        encoder = Encoder(
            path,
            quantization=command.quantization,
            trust_remote_code=command.trust_remote_code,
            report=report,
            devices=command.devices,
        )
        self._encoder = encoder
        self._context = encoder.model_max_context
        self._batch = Passes(encoder)
        return self._facts(
            command,
            encoder,
            kv_tokens=0,
            kv_bytes_per_token=0,
            has_chat_template=False,
            is_embedding_only=True,
        )

    def _facts(self, command: m.Load, model: Checkpoint | Encoder, **more: Any) -> m.Loaded:
        memory.give_back()  # what loading took for a moment is not the model's
        by_device = {str(d): memory.held(d) // MIB for d in model.devices}
        return m.Loaded(
            id=command.id,
            architecture=(model.config.architectures or [type(model.model).__name__])[0],
            parameters=model.parameters,
            dtype=str(model.dtype).removeprefix("torch."),
            device=", ".join(by_device),
            memory_mb=sum(by_device.values()),
            memory_by_device_mb=by_device,
            gpu_indices=[d.index or 0 for d in model.devices if d.type == "cuda"],
            quantization=model.held.name,
            context_length=self._context,
            layers=model.layers,
            hidden_size=model.hidden_size,
            vocabulary=model.vocabulary,
            **more,
        )

    def _check_room(self, device: torch.device, size: int) -> None:
        """Raises:
        Refusal: INSUFFICIENT_MEMORY.
        """
        held = self._batch.kv_held if isinstance(self._batch, Batch) else 0
        model = self._loaded()
        budget.check_attach(model, device, size, self._kv_tokens, self._working, held)

    def _explored(self, command: m.Explore) -> Sae:
        """The SAE that is asked about."""
        if command.key is not None:
            return self._hooks().held(command.key)
        assert command.source is not None
        return explore.load(command.source, command.features)

    def _generate(self, command: m.Generate) -> m.Started | None:
        self._loaded()
        if command.constraint is None:
            return self._write(command, None)
        assert self._grammars is not None
        compiled = self._grammars.compile(command.constraint.schema or JSON_OBJECT)
        self._compiling.append((command, compiled))
        compiled.add_done_callback(lambda _: self._wire.wake())
        return None

    def _admit_compiled(self) -> None:
        """Let in the requests whose grammar is there by now."""
        for command, compiled in [c for c in self._compiling if c[1].done()]:
            self._compiling.remove((command, compiled))
            self._answer(command, partial(self._write_compiled, command, compiled))

    def _write_compiled(self, command: m.Generate, compiled: Future[Grammar]) -> m.Started:
        return self._write(command, compiled.result())

    def _write(self, command: m.Generate, grammar: Grammar | None) -> m.Started:
        rows = admission.rows_of(
            command,
            self._loaded(),
            self._context,
            self._kv_tokens,
            constrain=grammar.constraint if grammar else None,
            open_tap=self._open_tap,
        )
        seeded = command.sampling.seed is not None
        return self._begin(rows[:: command.n], rows, is_seeded=seeded)

    def _begin(self, prompts: list[Row], rows: list[Row], *, is_seeded: bool = False) -> m.Started:
        """Let rows in; `prompts` has the first row of each prompt."""
        assert self._batch is not None
        self._batch.add(rows, is_seeded=is_seeded)
        return m.Started(rows[0].request, [len(row.prompt) for row in prompts])

    def _open_tap(self, tap: m.Tap, prompt_tokens: int) -> TapReader:
        return TapReader(tap, self._hooks().sae(tap.key), prompt_tokens)

    def _loaded(self) -> Checkpoint:
        if self._model is None:
            raise Refusal("MODEL_NOT_LOADED", "this engine holds no language model")
        return self._model

    def _hooks(self) -> Steering:
        self._loaded()
        assert self._steering is not None
        return self._steering


_CODE_OF_FAILURE = {
    m.Load: "MODEL_LOAD_FAILED",
    m.Attach: "SAE_LOAD_FAILED",
    m.Inspect: "SAE_LOAD_FAILED",
    m.Explore: "SAE_LOAD_FAILED",
}


def _cores() -> int:
    """Physical cores that this process may use."""
    has_affinity = hasattr(os, "sched_getaffinity")  # not every system lets a process be pinned
    allowed = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def _says_something(outcome: m.Outcome) -> bool:
    return not isinstance(outcome, m.Piece) or bool(outcome.text or outcome.finish)
