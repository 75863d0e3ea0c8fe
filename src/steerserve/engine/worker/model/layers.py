"""Where the list of decoder layers lies in a model."""

from __future__ import annotations

from torch import nn

from steerserve.errors import Refusal

_TRUNKS = frozenset({"model", "language_model", "text_model", "transformer", "gpt_neox", "decoder"})
_STACKS = ("layers", "h", "blocks")
_OTHER_TOWERS = ("vision", "visual", "audio", "image", "encoder")


def decoder_layers(model: nn.Module, layers: int) -> tuple[str, nn.ModuleList]:
    """The decoder's list of layers and its path: down the text trunk by the names it goes by, else the one shallowest
    list of that length outside other towers.

    Raises:
        Refusal: SAE_INCOMPATIBLE when there is none, or more than one.
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
