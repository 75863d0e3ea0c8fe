"""A Llama (arXiv:2302.13971) in numpy, with the values of all its sites, and other values in the place of some."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from transformers import LlamaConfig

Array = np.ndarray[Any, Any]
Place = tuple[str, int]
"""A site and a layer."""
Write = Callable[[Place, Array], Array]
"""Gives the values [T, width] that a site has instead."""


class NumpyLlama:
    """A checkpoint folder, read in float64."""

    def __init__(self, folder: Path) -> None:
        self._config: Any = LlamaConfig.from_pretrained(folder)
        self._weights: dict[str, Array] = {}
        with safe_open(folder / "model.safetensors", "pt") as file:
            for name in file.keys():  # noqa: SIM118 -- this is no dict
                self._weights[name] = file.get_tensor(name).double().numpy()

    def run(self, ids: list[int], write: Write) -> tuple[dict[Place, Array], dict[Place, Array]]:
        """The values of each site before and after `write`, in one pass over these tokens. A site without a layer is at
        layer 0."""
        before: dict[Place, Array] = {}
        after: dict[Place, Array] = {}

        def at(site: str, layer: int, value: Array) -> Array:
            before[site, layer] = value
            after[site, layer] = write((site, layer), value)
            return after[site, layer]

        x = at("embed", 0, self._weights["model.embed_tokens.weight"][ids])
        for layer in range(self._config.num_hidden_layers):
            x = self._layer(at, layer, x)
        at("logits", 0, self._norm("model.norm", x) @ self._weights["lm_head.weight"].T)
        return before, after

    def _layer(self, at: Callable[[str, int, Array], Array], layer: int, x: Array) -> Array:
        name = f"model.layers.{layer}"
        x = at("resid_pre", layer, x)
        z = at(
            "hook_z", layer, self._attention(at, layer, self._norm(f"{name}.input_layernorm", x))
        )
        raw = at("attn_raw", layer, self._linear(f"{name}.self_attn.o_proj", z))
        x = at("resid_mid", layer, x + at("attn_out", layer, raw))
        mlp = at("mlp_in", layer, self._norm(f"{name}.post_attention_layernorm", x))
        gate = self._linear(f"{name}.mlp.gate_proj", mlp)
        neurons = gate / (1 + np.exp(-gate)) * self._linear(f"{name}.mlp.up_proj", mlp)
        down = self._linear(f"{name}.mlp.down_proj", at("mlp_neurons", layer, neurons))
        return at("resid_post", layer, x + at("mlp_out", layer, at("mlp_raw", layer, down)))

    def _attention(self, at: Callable[[str, int, Array], Array], layer: int, x: Array) -> Array:
        config, name, size = self._config, f"model.layers.{layer}.self_attn", len(x)
        q, k, v = (
            self._linear(f"{name}.{part}_proj", x).reshape(size, -1, config.head_dim)
            for part in "qkv"
        )
        q, k = self._rotated(q), self._rotated(k)
        q, k, v = (
            at(site, layer, value.reshape(size, -1)).reshape(value.shape)
            for site, value in (("q", q), ("k", k), ("v", v))
        )
        shared = q.shape[1] // k.shape[1]
        k, v = (np.repeat(one, shared, axis=1) for one in (k, v))
        scores = np.einsum("qhd,khd->qhk", q, k) / config.head_dim**0.5
        scores += np.triu(np.full((size, size), -np.inf), 1)[:, None]
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        at("pattern", layer, weights.reshape(size, -1))
        return np.einsum("qhk,khd->qhd", weights, v).reshape(size, -1)

    def _rotated(self, x: Array) -> Array:
        """Heads [T, heads, dim] turned by their positions (arXiv:2104.09864)."""
        half = x.shape[-1] // 2
        theta = float(self._config.rope_parameters["rope_theta"])
        angles = np.outer(np.arange(len(x)), theta ** -(np.arange(half) / half))[:, None]
        first, second = x[..., :half], x[..., half:]
        turned = first * np.cos(angles) - second * np.sin(angles)
        return np.concatenate([turned, second * np.cos(angles) + first * np.sin(angles)], axis=-1)

    def _norm(self, name: str, x: Array) -> Array:
        square = (x**2).mean(-1, keepdims=True)
        return x / np.sqrt(square + self._config.rms_norm_eps) * self._weights[f"{name}.weight"]

    def _linear(self, name: str, x: Array) -> Array:
        return np.asarray(x @ self._weights[f"{name}.weight"].T)
