"""Loads the model, and makes the parts around the model that an engine needs to serve it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from steerserve import messages as m
from steerserve.rules.inference import stepping
from steerserve.rules.models.architecture import is_embedding_only
from steerserve.rules.units import MIB
from steerserve.worker import memory
from steerserve.worker.batch.batch import Batch
from steerserve.worker.batch.graphs import decode_graphs
from steerserve.worker.batch.passes import Passes
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.live.monitor import FeatureMonitor
from steerserve.worker.live.readers import LiveReaders
from steerserve.worker.live.sensing import Sensing
from steerserve.worker.model import budget, chats, forwards, invariance
from steerserve.worker.model.budget import SaeRoom
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.model.encoder import Encoder
from steerserve.worker.model.transformer import LoadOptions, Report, configuration
from steerserve.worker.model.unembedding import Unembedding
from steerserve.worker.rows.constrain import Grammars
from steerserve.worker.sae import sites


class LoadedModel:
    """A language model with its attached SAEs, what reads its rows, its batch and its grammars."""

    def __init__(self, model: Checkpoint, command: m.Load) -> None:
        """Raises:
        Refusal: INSUFFICIENT_MEMORY when the KV cache cannot hold the least context.
        """
        self.model = model
        self._working = command.working_mb * MIB
        least = min(command.min_context, model.model_max_context) + model.row_tokens
        self.kv_tokens = budget.kv_tokens(model, command.kv_cache_mb * MIB, least, self._working)
        self.context = min(model.model_max_context, self.kv_tokens - model.row_tokens)
        self.monitor = FeatureMonitor(model.special_tokens)
        self.sensing = Sensing(model.decode, lambda: self.monitor.whole)
        self.readers = LiveReaders([self.monitor, self.sensing])
        self.saes = HookedSaes(
            model.dtype,
            self._check_room,
            self.readers.detached,
            partial(sites.find, model.model, model.layers),
        )
        prefixes = budget.prefix_tokens(model, self.kv_tokens, command.prefix_cache_mb)
        on_card = any(device.type != "cpu" for device in model.devices)
        self.seeded_rows = stepping.seeded_rows(
            command.seeded_rows,
            model.varies,
            is_on_card=on_card,
            are_batched=model.row_steps.are_batched,
        )
        self.cuda_graphs = stepping.cuda_graphs(
            command.cuda_graphs,
            devices=[str(device) for device in model.devices],
            are_batched=model.row_steps.are_batched,
            attends_by_library=model.attention is not None,
        )
        self.graphs = decode_graphs(self.cuda_graphs, model, self.saes)
        self.batch = Batch(
            model,
            self.saes,
            self.readers,
            self.kv_tokens,
            prefixes,
            shares_seeded=self.seeded_rows.are_shared,
            step_seconds=command.max_step_ms / 1000,
            graphs=self.graphs,
        )
        self.grammars = Grammars(
            model.tokenizer, model.vocabulary, model.end_tokens, command.grammar_cache
        )

    @cached_property
    def unembedding(self) -> Unembedding:
        """The way from the residual stream to the logits.

        Raises:
            Refusal: SAE_INCOMPATIBLE for an architecture where it is not known.
        """
        return Unembedding(self.model)

    @property
    def room(self) -> SaeRoom:
        """The memory for SAEs beside the model, as it is now."""
        return SaeRoom.beside(self.model, self.kv_tokens, self.batch.kv_held, self._working)

    def memory_parts(self) -> list[m.DeviceMemory]:
        """The memory of the model on its devices and on the host, measured now."""
        return _measured(self.model, self.batch.cache_tensors(), self.saes.held_memory())

    def _check_room(self, device: torch.device, size: int) -> None:
        self.room.check_free(device, size)

    def facts(self, command: m.Load) -> m.Loaded:
        """The facts that the control plane gets about the model."""
        model = self.model
        return _facts(
            command,
            model,
            context_length=self.context,
            kv_tokens=self.kv_tokens,
            kv_bytes_per_token=model.kv_bytes_per_token,
            chat_template=chats.template_of(model.tokenizer),
            sites=sites.listed(model.model, model.layers),
            row_steps=model.row_steps,
            seeded_rows=self.seeded_rows,
            probe=self._probe(),
            cuda_graphs=self.cuda_graphs,
            compiled_functions=forwards.compiled(model.model, model.functions),
            exactness=model.exactness,
            generation_config=model.generation_config,
        )

    def _probe(self) -> str:
        model = self.model
        passes = model if model.batched_context else model.alone
        return invariance.probe(passes) if self.context > invariance.PROMPT else ""


class LoadedEncoder:
    """An embedding-only model with its queue of texts. It has no SAEs, and nothing reads its rows."""

    def __init__(self, model: Encoder) -> None:
        self.model = model
        self.context = model.model_max_context
        self.batch = Passes(model)

    def memory_parts(self) -> list[m.DeviceMemory]:
        """The memory of the model on its devices and on the host, measured now."""
        return _measured(self.model, (), ())

    def facts(self, command: m.Load) -> m.Loaded:
        """The facts that the control plane gets about the model."""
        return _facts(
            command,
            self.model,
            context_length=self.context,
            kv_tokens=0,
            kv_bytes_per_token=0,
            is_embedding_only=True,
        )


def load(command: m.Load, report: Report) -> LoadedModel | LoadedEncoder:
    """Load the checkpoint folder of the command; its configuration says which of the two kinds it is.

    Raises:
        Refusal: UNSUPPORTED_QUANTIZATION, MODEL_LOAD_FAILED, INSUFFICIENT_MEMORY.
    """
    path = Path(command.path)
    config = configuration(path, command.trust_remote_code)
    options: LoadOptions = {
        "quantization": command.quantization,
        "trust_remote_code": command.trust_remote_code,
        "report": report,
        "devices": command.devices,
    }
    if is_embedding_only(next(iter(config.architectures or ()), None)):
        return LoadedEncoder(Encoder(path, **options))
    return LoadedModel(Checkpoint(path, **options), command)


def _measured(
    model: Checkpoint | Encoder, cache: Iterable[Tensor], saes: Iterable[memory.Held]
) -> list[m.DeviceMemory]:
    cached, attached = memory.bytes_by_device(cache), memory.bytes_by_device(saes)
    return [
        m.DeviceMemory(
            str(device),
            model.weights.get(device, 0),
            cached.get(device, 0),
            attached.get(device, 0),
            memory.held(device),
        )
        for device in dict.fromkeys([*model.devices, torch.device("cpu")])
    ]


def _facts(command: m.Load, model: Checkpoint | Encoder, **more: Any) -> m.Loaded:
    memory.give_back()  # memory that only the load needed must not count as memory of the model
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
        warnings=model.warnings,
        layers=model.layers,
        hidden_size=model.hidden_size,
        vocabulary=model.vocabulary,
        **more,
    )
