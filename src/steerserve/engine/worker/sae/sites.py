"""Where an SAE reads and writes: a hook name and a model become a module and its input or output.

Sites so far: the residual stream before (`resid_pre`) and after (`resid_post`) a decoder layer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from steerserve.errors import Refusal

RESID_POST = "resid_post"
RESID_PRE = "resid_pre"

_NAMES = (
    (re.compile(r"blocks\.(\d+)\.hook_resid_post"), RESID_POST),
    (re.compile(r"blocks\.(\d+)\.hook_resid_pre"), RESID_PRE),
    (re.compile(r"(?:model\.)?layers\.(\d+)(?:\.output)?"), RESID_POST),
    (re.compile(r"(?:transformer\.)?h\.(\d+)(?:\.output)?"), RESID_POST),
    (re.compile(r"resid_post_layer_(\d+)"), RESID_POST),
)
_OTHER_TOWERS = ("vision", "visual", "audio", "image", "encoder")

Edit = Callable[[Tensor], Tensor | None]


def read_hook_name(name: str | None) -> tuple[str | None, int | None]:
    """The site and layer that a hook name means.

    Names: TransformerLens (`blocks.N.hook_resid_post`), Hugging Face module paths (`model.layers.N`),
    dictionary_learning (`resid_post_layer_N`). (None, None) when there is no name.

    Raises:
        Refusal: SAE_INCOMPATIBLE for a place this engine has no hook for.
    """
    if not name:
        return None, None
    for pattern, site in _NAMES:
        found = pattern.fullmatch(name)
        if found:
            return site, int(found[1])
    raise Refusal(
        "SAE_INCOMPATIBLE",
        f"the SAE reads at {name!r}; this engine hooks the residual stream before and after a layer",
        hook_name=name,
    )


@dataclass(frozen=True, slots=True)
class Site:
    """One side of one module. `path` names the module as the model does."""

    module: nn.Module
    path: str
    is_input: bool

    @property
    def device(self) -> torch.device:
        """Where the module lies."""
        return next(self.module.parameters()).device

    def hook(self, edit: Edit) -> RemovableHandle:
        """Hook the site: `edit` gets the hidden states [rows, T, hidden] and returns new ones, or None to leave
        them; it must not change them in place, because the stream is shared."""
        if self.is_input:
            return self.module.register_forward_pre_hook(
                lambda _, args, kwargs: _edit_input(edit, args, kwargs), with_kwargs=True
            )
        return self.module.register_forward_hook(lambda _, __, output: _edit_output(edit, output))


def find(model: nn.Module, layers: int, site: str, layer: int) -> Site:
    """The module of a site at a decoder layer."""
    path, stack = decoder_layers(model, layers)
    return Site(stack[layer], f"{path}.{layer}", is_input=site == RESID_PRE)


def decoder_layers(model: nn.Module, layers: int) -> tuple[str, nn.ModuleList]:
    """The decoder's list of layers and its path: the shallowest list of that length outside other towers.

    Raises:
        Refusal: SAE_INCOMPATIBLE when there is none.
    """
    found = [
        (path, module)
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList)
        and len(module) == layers
        and not any(tower in path for tower in _OTHER_TOWERS)
    ]
    if not found:
        raise Refusal(
            "SAE_INCOMPATIBLE", f"no list of {layers} decoder layers was found in the model"
        )
    return min(found, key=lambda entry: entry[0].count("."))


def _edit_input(edit: Edit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if args:
        edited = edit(args[0])
        return None if edited is None else ((edited, *args[1:]), kwargs)
    edited = edit(kwargs["hidden_states"])
    return None if edited is None else (args, {**kwargs, "hidden_states": edited})


def _edit_output(edit: Edit, output: Any) -> Any:
    if isinstance(output, tuple):
        edited = edit(output[0])
        return None if edited is None else (edited, *output[1:])
    return edit(output)
