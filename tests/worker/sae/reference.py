"""The maths of SAEs in numpy and float64, written from the papers and independent of the engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class How:
    """How the parameters compute. `c` scales the input, `threshold` stands for a tensor of them."""

    activation: str = "relu"
    k: int = 5
    subtract: bool = False
    normalisation: str = "none"
    c: float = 1.0
    is_centred: bool = False
    scale_by_norm: bool = False
    select_by_norm: bool = False
    threshold: float | None = None


def compute(x: np.ndarray, arrays: Arrays, how: How) -> tuple[np.ndarray, np.ndarray]:
    """Activations [n, d_sae] and reconstruction [n, d_in] of x [n, d_in]."""
    p = {name: array.astype(np.float64) for name, array in arrays.items()}
    x = x.astype(np.float64)
    shift, scale = np.zeros(1), np.ones(1)
    if how.is_centred:
        shift = x.mean(-1, keepdims=True)
        x = x - shift
    if how.normalisation == "layer_norm":
        mean, scale = x.mean(-1, keepdims=True), x.std(-1, ddof=1, keepdims=True)
        shift, x = shift + mean, (x - mean) / (scale + 1e-5)
    if how.normalisation == "constant_norm_rescale":
        scale = np.linalg.norm(x, axis=-1, keepdims=True) / np.sqrt(x.shape[-1])
        x = x / scale
    x, scale = x * how.c, scale / how.c
    if how.subtract:
        x = x - p["b_dec"]
    norms = np.linalg.norm(p["W_dec"], axis=1)
    features = _activate(x @ p["W_enc"], p, how, norms)
    decoded = features / norms if how.scale_by_norm else features
    return features, (decoded @ p["W_dec"] + p["b_dec"]) * scale + shift


def _activate(pre: np.ndarray, p: Arrays, how: How, norms: np.ndarray) -> np.ndarray:
    if how.activation == "gated":
        magnitude = np.maximum(pre * np.exp(p["r_mag"]) + p["b_mag"], 0)
        return np.where(pre + p["b_gate"] > 0, magnitude, 0)
    pre = pre + p["b_enc"]
    if how.scale_by_norm:
        pre = pre * norms
    chosen = pre * norms if how.select_by_norm else pre
    match how.activation:
        case "relu":
            return np.maximum(pre, 0)
        case "jumprelu":
            threshold = p["threshold"] if how.threshold is None else how.threshold
            return np.where(chosen > threshold, np.maximum(pre, 0), 0)
        case "topk":
            return np.maximum(_largest(pre, chosen, how.k), 0)
        case "abstopk":
            return _largest(pre, np.abs(chosen), how.k)
        case "groupmax":
            rows, width = pre.shape
            grouped = pre.reshape(rows, how.k, width // how.k)
            best = grouped == grouped.max(-1, keepdims=True)
            return np.where(best, np.maximum(grouped, 0), 0).reshape(rows, width)
    raise AssertionError(how.activation)


def _largest(values: np.ndarray, ranked: np.ndarray, k: int) -> np.ndarray:
    kept = np.argsort(-ranked, axis=-1)[:, :k]
    mask = np.zeros_like(values)
    np.put_along_axis(mask, kept, 1.0, axis=-1)
    return values * mask
