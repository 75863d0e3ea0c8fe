"""Files of directions in the layouts of their tools, as bytes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

import gguf

WIDTH = 8
HUGE = torch.tensor([1e30] * WIDTH, dtype=torch.float64)


def direction(layer: int, width: int = WIDTH) -> torch.Tensor:
    """A direction whose numbers say its layer."""
    return torch.arange(width, dtype=torch.float32) / 4 + layer + 1


def torch_file(value: Any, **options: Any) -> bytes:
    made = io.BytesIO()
    torch.save(value, made, **options)
    return made.getvalue()


def npy_file(value: np.ndarray[Any, Any]) -> bytes:
    made = io.BytesIO()
    np.save(made, value, allow_pickle=True)
    return made.getvalue()


def gguf_file(
    folder: Path, tensors: dict[str, np.ndarray[Any, Any]], keys: dict[str, Any] | None = None
) -> bytes:
    """A control vector as repeng writes it; `keys` has further keys, or None for keys to be left out."""
    path = folder / "vector.gguf"
    writer = gguf.GGUFWriter(path, "controlvector")
    said = {"controlvector.model_hint": "llama", "controlvector.layer_count": len(tensors)}
    for key, value in (said | (keys or {})).items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case str():
                writer.add_string(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def svec_file(directions: dict[str, Any], **more: Any) -> bytes:
    said = {"model_type": "llama", "directions": directions, "explained_variances": {}}
    return json.dumps(said | more).encode()


def neuronpedia_file(hook: str, **more: Any) -> bytes:
    said = {
        "modelId": "gemma-2-2b",
        "layer": "12-x",
        "index": "3",
        "vectorLabel": "calm",
        "vectorDefaultSteerStrength": 10,
        "hookName": hook,
        "vector": direction(4).tolist(),
    }
    return json.dumps(said | more).encode()


def safetensors_file(
    tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None
) -> bytes:
    return save(tensors, metadata)
