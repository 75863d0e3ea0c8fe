"""Loads a checkpoint at a precision: the form that the rules choose for this machine, and the library's options for
that form.

The package bitsandbytes quantizes to 8 and 4 bits, on cards and on hosts; it is imported only when it is needed.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Sequence

import torch
from torch import nn
from transformers import BitsAndBytesConfig, PreTrainedConfig
from transformers.models.auto.auto_factory import _BaseAutoModelClass
from transformers.pytorch_utils import Conv1D

from steerserve.errors import Refusal
from steerserve.rules.models import precision
from steerserve.rules.models.precision import Held, Machine, Scheme
from steerserve.worker.model import native


def held(quantization: str, config: PreTrainedConfig, devices: Sequence[torch.device]) -> Held:
    """The form in which a checkpoint of this configuration is held on these devices.

    Raises:
        Refusal: UNSUPPORTED_QUANTIZATION.
    """
    text = config.get_text_config(decoder=True)
    stored = getattr(text, "dtype", None) or config.dtype
    quantized = precision.quantization_config(config.to_dict())
    chosen = precision.choose(
        quantization,
        str(stored).removeprefix("torch.") if stored is not None else None,
        quantized,
        machine(devices),
    )
    if chosen.name in precision.CODED:
        _silence()
    return chosen


def machine(devices: Sequence[torch.device]) -> Machine:
    """The abilities of these devices and of the installed packages."""
    cards = {device for device in devices if device.type == "cuda"}
    return Machine(
        has_card=bool(cards),
        capability=min(map(torch.cuda.get_device_capability, cards), default=None),
        packages=frozenset(p for p in precision.PACKAGES if importlib.util.find_spec(p)),
        has_compiler=not cards and native.kernels() is not None,
    )


def load_options(
    held: Held,
    kind: type[_BaseAutoModelClass],
    config: PreTrainedConfig,
    *,
    trust_remote_code: bool,
) -> dict[str, object]:
    """The arguments of `from_pretrained` other than the dtype.

    Raises:
        Refusal: UNSUPPORTED_QUANTIZATION when no module of the architecture can be quantized.
    """
    if held.scheme is Scheme.EXPANDED:
        # threads that read ahead would fill the device with packed weights while other weights are turned into plain
        # ones
        os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
    if not held.quantizes:
        return {}
    with torch.device("meta"):
        left_plain = _left_plain(
            kind.from_config(config, trust_remote_code=trust_remote_code), held
        )
    if held.scheme is Scheme.INT8:
        chosen = BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=left_plain)
    else:
        chosen = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=getattr(torch, held.dtype),
            llm_int8_skip_modules=left_plain,
        )
    return {"quantization_config": chosen}


def _left_plain(model: nn.Module, held: Held) -> list[str]:
    """Paths of the linear modules that are not quantized: those outside the layers, and those whose shape is not a
    whole number of 4-bit blocks."""
    paths: list[str] = []
    total = 0
    for path, module in model.named_modules():
        if type(module) is not nn.Linear and not isinstance(module, Conv1D):
            continue
        total += 1
        rows, columns = module.weight.shape
        if isinstance(module, Conv1D):
            rows, columns = columns, rows
        fits = held.scheme is Scheme.INT8 or precision.fits_blocks(rows, columns)
        if not precision.is_in_layer(path) or not fits:
            paths.append(path)
    if len(paths) == total:
        raise Refusal(
            "UNSUPPORTED_QUANTIZATION",
            f"no weight of {type(model).__name__} can be held as {held.name}; register the model as FP16",
        )
    return paths


def let_go_of_files(model: nn.Module) -> None:
    """Copy the tensors that still lie in the mapped files of the checkpoint. One such tensor, for example an embedding,
    would keep its whole file mapped, with the pages of every weight of that file that was quantized or packed. Packed
    weights lie in no file."""
    for parameter in model.parameters():
        is_plain = type(parameter) is nn.Parameter and parameter.layout == torch.strided
        if parameter.device.type == "cpu" and is_plain:
            parameter.data = parameter.data.clone()


def _silence() -> None:
    """Silence bitsandbytes, which logs a line per layer and call when it computes in another dtype than float16."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
