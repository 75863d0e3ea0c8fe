"""Decides which module of a model goes to which device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.auto_factory import _BaseAutoModelClass

from steerserve.errors import Refusal
from steerserve.worker.model.layers import decoder_layers


def device_map(
    kind: type[_BaseAutoModelClass],
    config: PreTrainedConfig,
    devices: Sequence[str],
    first: torch.device,
    trust_remote_code: bool,
) -> dict[str, str]:
    """Module path -> device; the empty path is the whole model.

    `devices` is empty (everything on `first`), one device for everything, or the device of each decoder layer.

    Raises:
        Refusal: MODEL_LOAD_FAILED when the list of layers is not found or has another length.
    """
    if len(set(devices)) > 1:
        with torch.device("meta"):
            model = kind.from_config(config, trust_remote_code=trust_remote_code)
        return spread(model, devices)
    return {"": str(first)}


def spread(model: PreTrainedModel, devices: Sequence[str]) -> dict[str, str]:
    """The device of each module, by path. Each layer is on its own device. The norm after the layers, and an output
    head that shares no weights with the embedding, go to the last device, where the hidden states arrive. All other
    modules outside the layers go to the first device.
    """
    try:
        path, _ = decoder_layers(model, len(devices))
    except Refusal as refusal:
        raise Refusal(
            "MODEL_LOAD_FAILED", f"the model cannot be split: {refusal.message}"
        ) from None
    head = model.get_output_embeddings()
    is_tied = head is None or head.weight is model.get_input_embeddings().weight
    places = {f"{path}.{i}": device for i, device in enumerate(devices)}
    for name, module in _outside(model, "", path):
        is_behind = "norm" in name.rpartition(".")[2].lower() or (module is head and not is_tied)
        places[name] = devices[-1] if is_behind else devices[0]
    return places


def _outside(module: nn.Module, prefix: str, layers: str) -> Iterator[tuple[str, object]]:
    """The paths of the largest modules outside the layers, each with its module, and of parameters and buffers that
    belong directly to a module around the layers, each with None."""
    for name, _ in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
        yield prefix + name, None
    for name, child in module.named_children():
        path = prefix + name
        if layers.startswith(f"{path}."):
            yield from _outside(child, f"{path}.", layers)
        elif path != layers:
            yield path, child
