"""The engine process: take commands, step the batch, send events. All tensor work is on this one main thread."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import structlog
import torch
from transformers.utils import logging as transformers_logging

from steerserve import log as logs
from steerserve.engine import messages as m
from steerserve.engine.worker import memory
from steerserve.engine.worker.admission import rows_of
from steerserve.engine.worker.batch import Batch
from steerserve.engine.worker.checkpoint import LENGTH_STEP, Checkpoint
from steerserve.engine.worker.hooks import Steering
from steerserve.engine.worker.sae import formats, selfcheck, sites
from steerserve.errors import Refusal
from steerserve.rules.steering import Live

log = structlog.get_logger(__name__)
KV_SHARE = 3
"""Without a setting, one part in this many of the free memory is given to the KV cache."""

MIB = 1 << 20


def main(link: socket.socket, log_level: str, log_format: str) -> None:
    """Run the engine until its socket closes or it is told to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logs.configure(log_level, log_format)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    memory.keep_freed()
    with link, torch.inference_mode():
        Engine(Wire(link)).run()


class Wire:
    """Frames over the socket. Sending blocks; receiving blocks only when asked to."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._buffer = bytearray()
        self.is_closed = False

    def receive(self, *, wait: bool) -> Iterator[m.Command]:
        """Every whole command that is there; with `wait`, not before there is something."""
        while select.select([self._link], [], [], None if wait else 0)[0]:
            chunk = self._link.recv(1 << 16)
            if not chunk:
                self.is_closed = True
                break
            self._buffer += chunk
            wait = False
        while len(self._buffer) >= m.LENGTH.size:
            end = m.LENGTH.size + m.LENGTH.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                break
            body = bytes(self._buffer[m.LENGTH.size : end])
            del self._buffer[:end]
            yield m.decode_command(body)

    def send(self, event: m.Event) -> None:
        self._link.sendall(m.frame(event))


class Engine:
    """One model at most, its batch, its SAEs."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._model: Checkpoint | None = None
        self._steering: Steering | None = None
        self._batch: Batch | None = None
        self._context = 0
        self._kv_tokens = 0
        self._is_stopped = False

    def run(self) -> None:
        while not (self._is_stopped or self._wire.is_closed):
            idle = self._batch is None or self._batch.is_idle
            try:
                for command in self._wire.receive(wait=idle):
                    self._obey(command)
                if self._batch is not None and not self._batch.is_idle:
                    self._step(self._batch)
            except (BrokenPipeError, ConnectionResetError):
                return

    def _step(self, batch: Batch) -> None:
        outcomes = batch.step()
        pieces = [o for o in outcomes if isinstance(o, m.Piece) and (o.text or o.finish)]
        if pieces:
            assert self._steering is not None
            self._wire.send(m.Stepped(pieces, self._steering.applied))
        for refused in outcomes:
            if isinstance(refused, m.Refused):
                self._wire.send(refused)

    def _obey(self, command: m.Command) -> None:
        try:
            answer = self._answer(command)
        except Refusal as refusal:
            answer = m.Refused(
                command.id, refusal.code, refusal.message, refusal.param, refusal.details
            )
        except Exception as error:
            log.exception("command_failed", command=type(command).__name__)
            code = _CODE_OF_FAILURE.get(type(command), "INTERNAL_ERROR")
            answer = m.Refused(command.id, code, f"the engine failed: {type(error).__name__}")
        if answer is not None:
            self._wire.send(answer)

    def _answer(self, command: m.Command) -> m.Event | None:
        match command:
            case m.Load():
                return self._load(command)
            case m.Inspect():
                return m.Inspected(command.id, formats.inspect(Path(command.path)))
            case m.Attach():
                return self._attach(command)
            case m.Detach():
                self._hooks().detach(command.key)
                return m.Done(command.id)
            case m.Steer():
                self._hooks().set_live(Live(command.epoch, command.enabled, command.values))
                return m.Done(command.id)
            case m.Generate():
                return self._generate(command)
            case m.Cancel():
                if self._batch is not None:
                    self._batch.cancel(command.id)
                return None
            case m.Stop():
                self._is_stopped = True
                return None

    def _load(self, command: m.Load) -> m.Loaded:
        torch.set_num_threads(command.threads or _cores())
        model = Checkpoint(
            Path(command.path),
            quantization=command.quantization,
            trust_remote_code=command.trust_remote_code,
            report=lambda stage, percent: self._wire.send(m.Progress(command.id, stage, percent)),
        )
        self._kv_tokens = _kv_tokens(model, command.kv_cache_mb)
        self._context = min(model.model_max_context, self._kv_tokens)
        least = min(command.min_context, model.model_max_context)
        if self._context < least:
            raise Refusal(
                "INSUFFICIENT_MEMORY",
                f"the KV cache holds {self._kv_tokens} tokens here; at least {least} are needed",
                min_context_tokens=least,
                model_max_context_tokens=model.model_max_context,
            )
        self._model = model
        self._steering = Steering(model.dtype, model.device)
        self._batch = Batch(model, self._steering, self._kv_tokens)
        return m.Loaded(
            id=command.id,
            architecture=(model.config.architectures or [type(model.model).__name__])[0],
            parameters=model.parameters,
            dtype=str(model.dtype).removeprefix("torch."),
            device=str(model.device),
            memory_mb=memory.held(model.device) // MIB,
            context_length=self._context,
            layers=model.layers,
            hidden_size=model.hidden_size,
            vocabulary=model.vocabulary,
            kv_tokens=self._kv_tokens,
            kv_bytes_per_token=model.kv_bytes_per_token,
            has_chat_template=model.has_chat_template,
        )

    def _attach(self, command: m.Attach) -> m.Attached:
        model, steering = self._loaded(), self._hooks()
        folder = Path(command.path)
        claims, sae = formats.inspect(folder), formats.load(folder)
        site = sites.find(model.model, model.layers, claims.site or sites.RESID_POST, command.layer)
        check = selfcheck.run(model, sae, site) if command.check else {}
        steering.attach(command.key, sae, site)
        return m.Attached(
            id=command.id,
            layer_module_path=site.path,
            memory_mb=max(1, round(sae.size_bytes / MIB)),
            d_in=sae.d_in,
            d_sae=sae.d_sae,
            warnings=selfcheck.warnings(check, claims.l0) if check else [],
            check=check,
        )

    def _generate(self, command: m.Generate) -> m.Started:
        rows = rows_of(command, self._loaded(), self._context, self._kv_tokens)
        assert self._batch is not None
        self._batch.add(rows, is_seeded=command.sampling.seed is not None)
        return m.Started(command.id, [len(row.prompt) for row in rows[:: command.n]])

    def _loaded(self) -> Checkpoint:
        if self._model is None:
            raise Refusal("MODEL_NOT_LOADED", "this engine holds no model")
        return self._model

    def _hooks(self) -> Steering:
        self._loaded()
        assert self._steering is not None
        return self._steering


_CODE_OF_FAILURE = {
    m.Load: "MODEL_LOAD_FAILED",
    m.Attach: "SAE_LOAD_FAILED",
    m.Inspect: "SAE_LOAD_FAILED",
}


def _cores() -> int:
    """Physical cores that this process may use."""
    has_affinity = hasattr(os, "sched_getaffinity")  # not every system lets a process be pinned
    allowed = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def _kv_tokens(model: Checkpoint, kv_cache_mb: int) -> int:
    """Tokens that the KV cache may hold, in whole length steps."""
    given = kv_cache_mb * MIB if kv_cache_mb else memory.free(model.device) // KV_SHARE
    return int(given // max(1, model.kv_bytes_per_token)) // LENGTH_STEP * LENGTH_STEP
