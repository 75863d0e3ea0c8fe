"""SAE folders as SAELens writes them, and their maths in numpy, independent of the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from steerserve.engine import messages as m

D_IN, D_SAE, K = 16, 64, 5


def source(path: Path | str, **overrides: Any) -> m.SaeSource:
    """An SAE on disk as the engine is told of it."""
    return m.SaeSource(str(path), str(path), m.Overrides(**overrides))


Arrays = dict[str, np.ndarray]


def arrays(kind: str, seed: int = 0, d_in: int = D_IN, d_sae: int = D_SAE) -> Arrays:
    """Random parameters of an SAE of a kind: standard, topk, jumprelu or gated."""
    draw = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return draw.normal(size=shape).astype(np.float32)

    found = {"W_enc": normal(d_in, d_sae) / 4, "W_dec": normal(d_sae, d_in) / 4}
    found["b_dec"] = normal(d_in)
    if kind == "gated":
        return found | {name: normal(d_sae) / 2 for name in ("b_gate", "b_mag", "r_mag")}
    found["b_enc"] = normal(d_sae)
    if kind == "jumprelu":
        found["threshold"] = np.abs(normal(d_sae))
    return found


def config_v6(kind: str, **fields: Any) -> dict[str, Any]:
    """cfg.json as version 6 writes it. A value of `...` removes the field."""
    whole = {
        "architecture": kind,
        "d_in": D_IN,
        "d_sae": D_SAE,
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": False,
        "normalize_activations": "none",
        "reshape_activations": "none",
        "metadata": {
            "sae_lens_version": "6.5.1",
            "model_name": "llama-tiny",
            "hook_name": "blocks.0.hook_resid_post",
            "prepend_bos": True,
        },
        **({"k": K, "rescale_acts_by_decoder_norm": False} if kind == "topk" else {}),
        **fields,
    }
    return {name: value for name, value in whole.items() if value is not ...}


def config_older(**fields: Any) -> dict[str, Any]:
    """cfg.json as versions before 6 wrote it: flat, other names, most fields optional."""
    whole = {
        "model_name": "gpt2-small",
        "hook_point": "blocks.8.hook_resid_pre",
        "hook_point_layer": 8,
        "d_in": D_IN,
        "d_sae": D_SAE,
        "dtype": "torch.float32",
        "normalize_activations": None,
        **fields,
    }
    return {name: value for name, value in whole.items() if value is not ...}


def write(folder: Path, config: dict[str, Any], tensors: Arrays) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cfg.json").write_text(json.dumps(config))
    save_file(
        {name: torch.from_numpy(array.copy()) for name, array in tensors.items()},
        folder / "sae_weights.safetensors",
    )
    return folder


def reference(
    x: np.ndarray,
    p: Arrays,
    kind: str,
    *,
    normalisation: str = "none",
    subtract: bool = False,
    k: int = K,
    rescale: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Activations [n, d_sae] and reconstruction [n, d_in] of x [n, d_in], in float64."""
    p = {name: array.astype(np.float64) for name, array in p.items()}
    x = x.astype(np.float64)
    mean, factor = 0.0, 1.0
    if normalisation == "layer_norm":
        mean = x.mean(-1, keepdims=True)
        factor = x.std(-1, ddof=1, keepdims=True)
        x = (x - mean) / (factor + 1e-5)
    if normalisation == "constant_norm_rescale":
        factor = np.linalg.norm(x, axis=-1, keepdims=True) / np.sqrt(x.shape[-1])
        x = x / factor
    if subtract:
        x = x - p["b_dec"]
    pre = x @ p["W_enc"]
    norms = np.linalg.norm(p["W_dec"], axis=1)
    if kind == "gated":
        features = ((pre + p["b_gate"]) > 0) * np.maximum(pre * np.exp(p["r_mag"]) + p["b_mag"], 0)
    else:
        pre = pre + p["b_enc"]
        if rescale:
            pre = pre * norms
        features = np.maximum(pre, 0)
        if kind == "topk":
            kept = np.argsort(-pre, axis=-1)[:, :k]
            mask = np.zeros_like(pre)
            np.put_along_axis(mask, kept, 1.0, axis=-1)
            features = features * mask
        if kind == "jumprelu":
            features = features * (pre > p["threshold"])
    decoded = features / norms if rescale else features
    return features, (decoded @ p["W_dec"] + p["b_dec"]) * factor + mean
