"""Finds the list of decoder layers in a model, and replaces what a module computes for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from steerserve.errors import Refusal

_TRUNKS = frozenset({"model", "language_model", "text_model", "transformer", "gpt_neox", "decoder"})
_STACKS = ("layers", "h", "blocks")
_OTHER_TOWERS = ("vision", "visual", "audio", "image", "encoder")


def decoder_layers(model: nn.Module, layers: int) -> tuple[str, nn.ModuleList]:
    """The decoder's list of layers, after its path. The list is searched in the text trunk by its usual names; where it
    is not there, it is the only shallowest list of that length outside the towers for images and sound.

    Raises:
        Refusal: SAE_INCOMPATIBLE when there is no such list, or more than one.
    """
    trunk = [("", model)]
    for path, module in trunk:
        for name, child in module.named_children():
            if name in _STACKS and isinstance(child, nn.ModuleList) and len(child) == layers:
                return path + name, child
            if name in _TRUNKS:
                trunk.append((f"{path}{name}.", child))
    stacks = [
        (path, module)
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList)
        and len(module) == layers
        and not any(tower in path for tower in _OTHER_TOWERS)
    ]
    depth = min((path.count(".") for path, _ in stacks), default=0)
    shallowest = [entry for entry in stacks if entry[0].count(".") == depth]
    if len(shallowest) != 1:
        raise Refusal(
            "SAE_INCOMPATIBLE", f"no list of {layers} decoder layers was found in the model"
        )
    return shallowest[0]


@contextmanager
def replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """While open, `forward` of the module is this function. Afterwards the module has its own `forward` again, or the
    one that accelerate gave it to move values between devices."""
    before = vars(module).get("forward")
    vars(module)["forward"] = forward
    try:
        yield
    finally:
        vars(module).pop("forward")
        if before is not None:
            vars(module)["forward"] = before
