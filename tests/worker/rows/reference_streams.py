"""The way from the residual stream to the logits in float64, by the library's model and the formulas of the
architectures, without the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.worker import models

LAYERS_AND_NORM = {
    "llama": ("model.layers", "model.norm"),
    "llama_tied": ("model.layers", "model.norm"),
    "qwen3": ("model.layers", "model.norm"),
    "gemma2": ("model.layers", "model.norm"),
    "gemma3": ("model.layers", "model.norm"),
    "granite": ("model.layers", "model.norm"),
    "cohere": ("model.layers", "model.norm"),
    "gpt2": ("transformer.h", "transformer.ln_f"),
    "gpt2_tied": ("transformer.h", "transformer.ln_f"),
    "gptj": ("transformer.h", "transformer.ln_f"),
    "phi": ("model.layers", "model.final_layernorm"),
    "opt": ("model.decoder.layers", "model.decoder.final_layer_norm"),
    "gpt_neox": ("gpt_neox.layers", "gpt_neox.final_layer_norm"),
    "bloom": ("transformer.h", "transformer.ln_f"),
    "mamba": ("backbone.layers", "backbone.norm_f"),
    "falcon_h1": ("model.layers", "model.final_layernorm"),
    "openai_gpt": ("transformer.h", None),
}
"""Where an architecture has its layers and its final norm."""

CENTRED = ("cohere", "gpt2", "gpt2_tied", "gptj", "phi", "opt", "gpt_neox", "bloom")
"""Variants whose final norm subtracts the mean."""

ONE_MORE = ("gemma2", "gemma3")
"""Variants whose norms multiply by 1 + weight."""


def save(variant: str, folder: Path) -> Path:
    """A tiny checkpoint whose norms have random weights and biases, because fresh models have ones and zeros."""
    is_tied = variant.endswith("_tied")
    more: dict[str, Any] = {"tie_word_embeddings": True} if is_tied else {}
    if variant == "gemma2":
        more = {
            "final_logit_softcapping": 3.0
        }  # low, so that it bends the small logits of a tiny model
    models.save(variant.removesuffix("_tied"), folder, **more)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    draw = torch.Generator().manual_seed(5)
    for name, parameter in model.named_parameters():
        if "norm" in name or "ln_" in name:
            parameter.data += 0.5 * torch.randn(parameter.shape, generator=draw)
    model.save_pretrained(folder)
    return folder


@dataclass
class Reference:
    """A checkpoint in float64, and what it makes of a text."""

    variant: str
    model: Any

    @property
    def layers(self) -> Any:
        return self.model.get_submodule(LAYERS_AND_NORM[self.variant][0])

    @property
    def norm(self) -> Any:
        path = LAYERS_AND_NORM[self.variant][1]
        return None if path is None else self.model.get_submodule(path)

    @property
    def head(self) -> Any:
        return self.model.get_output_embeddings()

    def streams(self, ids: list[int]) -> tuple[list[Tensor], Tensor]:
        """The stream [T, hidden] after each layer, and the logits [T, vocabulary]."""
        kept: list[Tensor] = []

        def keep(_: Any, __: Any, output: Any) -> None:
            kept.append((output[0] if isinstance(output, tuple | list) else output)[0].clone())

        handles = [layer.register_forward_hook(keep) for layer in self.layers]
        try:
            logits = self.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        finally:
            for handle in handles:
                handle.remove()
        return kept, logits

    @property
    def scale(self) -> float:
        config = self.model.config
        named: dict[str, Callable[[], float]] = {
            "cohere": lambda: config.logit_scale,
            "granite": lambda: 1 / config.logits_scaling,
            "falcon_h1": lambda: config.lm_head_multiplier,
        }
        return named.get(self.variant, lambda: 1.0)()

    def uncapped(self, stream: Tensor) -> Tensor:
        hidden = stream if self.norm is None else self.norm(stream)
        logits: Tensor = self.head(hidden) * self.scale
        return logits

    def logits(self, stream: Tensor) -> Tensor:
        logits = self.uncapped(stream)
        softcap = getattr(self.model.config, "final_logit_softcapping", None)
        return logits if softcap is None else softcap * torch.tanh(logits / softcap)

    def through_norm(self, directions: Tensor, stream: Tensor) -> Tensor:
        """Directions [n, hidden] through the final norm at a stream [hidden], its scale held, without its bias."""
        if self.norm is None:
            return directions
        eps = next(
            getattr(self.norm, name)
            for name in ("eps", "variance_epsilon")
            if hasattr(self.norm, name)
        )
        gain = self.norm.weight + (1.0 if self.variant in ONE_MORE else 0.0)
        if self.variant in CENTRED:
            length = (stream.var(unbiased=False) + eps).sqrt()
            return (directions - directions.mean(-1, keepdim=True)) / length * gain
        return directions / (stream.square().mean() + eps).sqrt() * gain


def reference(variant: str, folder: Path) -> Reference:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    return Reference(variant, model.eval().requires_grad_(False))
