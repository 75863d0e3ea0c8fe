"""Edits as requests have them, each with what an own hook makes of the values of its site."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.real.asking import numbers
from tests.real.reference import Change, SmallSae

Place = tuple[str, int]
Mask = Tensor
"""Whether an edit acts, by position: bool [T]."""

_TARGETS: Mapping[str, Callable[[Tensor, float], Tensor]] = {
    "set": lambda read, value: torch.full_like(read, value),
    "at_least": lambda read, value: read.clamp_min(value),
    "at_most": lambda read, value: read.clamp_max(value),
    "scale": lambda read, value: read * value,
}


@dataclass(frozen=True, slots=True)
class Case:
    """One request: what it sends, and what hooks do to the same end."""

    label: str
    fields: dict[str, Any]
    changes: dict[Place, Change]


def case(label: str, place: Place, change: Change, *edits: dict[str, Any], **fields: Any) -> Case:
    """A request with edits at one place."""
    return Case(label, {"interventions": {"edits": list(edits), **fields}}, {place: change})


def of_feature(sae: SmallSae, index: int, op: str, value: float = 0.0) -> Change:
    """What an edit of a feature does."""
    row = sae.decoder[index]

    def change(values: Tensor) -> Tensor:
        wide = values.float()
        read = sae.encode(wide)[:, index, None]
        if op == "add":
            return (wide + value * row).to(values.dtype)
        aim = torch.zeros_like(read) if op == "ablate" else _TARGETS[op](read, value)
        return (wide + (aim - read) * row).to(values.dtype)

    return change


def of_vector(
    vector: Tensor,
    op: str,
    value: float = 1.0,
    *,
    unit: str = "raw",
    to: Tensor | None = None,
    mask: Mask | None = None,
    keeps_norm: bool = False,
) -> Change:
    """What an edit of a direction does, at all positions or at those of the mask."""
    along = vector / vector.norm()

    def edited(wide: Tensor) -> Tensor:
        read = (wide @ along)[:, None]
        if op == "add":
            size = {"raw": vector.norm(), "unit": 1.0, "residual": wide.norm(dim=-1, keepdim=True)}
            return wide + value * size[unit] * along
        if op == "ablate":
            return wide - value * read * along
        if op == "swap":
            assert to is not None
            return wide + read * (to / to.norm() - along)
        return wide + (_TARGETS[op](read, value) - read) * along

    def change(values: Tensor) -> Tensor:
        wide = values.float()
        made = edited(wide)
        if keeps_norm:
            made = made * (wide.norm(dim=-1, keepdim=True) / made.norm(dim=-1, keepdim=True))
        made = made.to(values.dtype)
        return made if mask is None else torch.where(mask[:, None], made, values)

    return change


def inline(place: Place, vector: Tensor) -> dict[str, Any]:
    """A direction inside a request."""
    return {"site": place[0], "layer": place[1], "data": numbers(vector)}


def write_sae(sae: SmallSae, site: str, folder: Path) -> Path:
    """The SAE in a folder, as SAELens 6 writes it."""
    folder.mkdir(parents=True)
    width, features = sae.encoder.shape
    config = {
        "architecture": "standard",
        "d_in": width,
        "d_sae": features,
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": False,
        "normalize_activations": "none",
        "reshape_activations": "none",
        "metadata": {"sae_lens_version": "6.54.12", "hook_name": site},
    }
    (folder / "cfg.json").write_text(json.dumps(config))
    tensors = {
        "W_enc": sae.encoder,
        "b_enc": sae.bias,
        "W_dec": sae.decoder,
        "b_dec": sae.centre,
    }
    save_file(
        {name: each.contiguous() for name, each in tensors.items()},
        folder / "sae_weights.safetensors",
    )
    return folder
