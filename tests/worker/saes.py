"""SAE folders as SAELens writes them, and their maths in numpy, independent of the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from steerserve import messages as m
from tests.worker.sae.reference import How, compute

D_IN, D_SAE, K = 16, 64, 5


def source(path: Path | str, **overrides: Any) -> m.SaeSource:
    """An SAE on disk as the engine is told of it."""
    return m.SaeSource(str(path), str(path), m.Overrides(**overrides))


def attaching(path: Path, layer: int = 0, key: str | None = None) -> m.Step:
    """The change that attaches the SAE at this path, by default under the key `sae@<layer>`."""
    placed = m.PlacedSae(key or f"sae@{layer}", source(path), layer)
    return lambda state: state.attached(placed)


Arrays = dict[str, np.ndarray]


def arrays(kind: str = "standard", seed: int = 0, d_in: int = D_IN, d_sae: int = D_SAE) -> Arrays:
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


def reference(x: np.ndarray, p: Arrays, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Activations [n, d_sae] and reconstruction [n, d_in] of x [n, d_in], in float64."""
    return compute(x, p, How("relu" if kind == "standard" else kind, k=K))
