"""SAE checkpoints as people publish them: sniff a folder, read its claims, load it into the canonical form.

`FORMATS` is the one table: a format is recognised by its files, tells what it claims from headers alone, and maps its
tensors. Adding a format is adding a row.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from steerserve.engine.messages import Claims
from steerserve.engine.worker.sae import sites
from steerserve.engine.worker.sae.canonical import Gate, Sae
from steerserve.errors import Refusal

Result = TypeVar("Result")

CONFIG_MAXIMUM = 1_000_000
"""Largest configuration file in bytes."""


@dataclass(frozen=True, slots=True)
class Format:
    """One row of the table. `config` and `weights` are file names in the folder."""

    name: str
    config: str
    weights: str
    fits: Callable[[dict[str, Any]], bool]
    claims: Callable[[dict[str, Any], Path], Claims]
    load: Callable[[dict[str, Any], Path], Sae]


def inspect(folder: Path) -> Claims:
    """What the checkpoint in `folder` claims.

    Raises:
        Refusal: SAE_LOAD_FAILED when no format fits, naming the files found; or the file is damaged.
    """
    form, config = _sniff(folder)
    return _reading(folder, lambda: form.claims(config, folder / form.weights))


def load(folder: Path) -> Sae:
    """The checkpoint in `folder` in canonical form.

    Raises:
        Refusal: SAE_LOAD_FAILED for a missing, misshapen or non-finite tensor, or an unknown activation.
    """
    form, config = _sniff(folder)
    sae = _reading(folder, lambda: form.load(config, folder / form.weights))
    _check_shapes(sae)
    return sae


def _sniff(folder: Path) -> tuple[Format, dict[str, Any]]:
    for form in FORMATS:
        if (folder / form.config).is_file() and (folder / form.weights).is_file():
            config = _config(folder / form.config)
            if form.fits(config):
                return form, config
    files = sorted(p.name for p in folder.iterdir())[:20] if folder.is_dir() else []
    raise Refusal(
        "SAE_LOAD_FAILED",
        f"no SAE format fits the files {files or '(none)'}; known: {', '.join(f.name for f in FORMATS)}",
        files=files,
    )


def _config(path: Path) -> dict[str, Any]:
    if path.stat().st_size > CONFIG_MAXIMUM:
        raise Refusal("SAE_LOAD_FAILED", f"{path.name} is larger than {CONFIG_MAXIMUM} bytes")
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise Refusal("SAE_LOAD_FAILED", f"{path.name} is not valid JSON") from error
    if not isinstance(config, dict):
        raise Refusal("SAE_LOAD_FAILED", f"{path.name} is not a JSON object")
    return config


def _reading(folder: Path, read: Callable[[], Result]) -> Result:
    """Run a reader; what a damaged file makes it raise becomes a refusal that names the fault."""
    try:
        return read()
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        reason = f"missing {error}" if isinstance(error, KeyError) else str(error)
        reason = reason.replace(str(folder), "").splitlines()[0][:300] if reason else "unreadable"
        raise Refusal("SAE_LOAD_FAILED", f"the checkpoint cannot be read: {reason}") from error


def _check_shapes(sae: Sae) -> None:
    if sae.W_dec.ndim != 2:
        raise Refusal(
            "SAE_LOAD_FAILED", f"W_dec has shape {list(sae.W_dec.shape)}, expected two axes"
        )
    wide, narrow = (sae.d_sae,), (sae.d_in,)
    expected: dict[str, tuple[Tensor | None, tuple[int, ...]]] = {
        "W_dec": (sae.W_dec, (sae.d_sae, sae.d_in)),
        "W_enc": (sae.W_enc, (sae.d_in, sae.d_sae)),
        "b_dec": (sae.b_dec, narrow),
        "b_enc": (sae.b_enc, wide),
        "threshold": (sae.threshold, wide),
    }
    if sae.gate is not None:
        expected |= {
            "b_gate": (sae.gate.b_gate, wide),
            "b_mag": (sae.gate.b_mag, wide),
            "r_mag": (sae.gate.r_mag, wide),
        }
    for name, (tensor, shape) in expected.items():
        if tensor is None:
            continue
        if tuple(tensor.shape) != shape:
            raise Refusal(
                "SAE_LOAD_FAILED", f"{name} has shape {list(tensor.shape)}, expected {list(shape)}"
            )
        if not torch.isfinite(tensor).all():
            raise Refusal("SAE_LOAD_FAILED", f"{name} holds NaN or infinite values")


# ---------------------------------------------------------------- SAELens, 6 and older (cfg.json)


def _is_saelens(config: dict[str, Any]) -> bool:
    names = ("architecture", "activation_fn", "activation_fn_str", "hook_name", "hook_point")
    return "d_in" in config and any(name in config for name in names)


def _saelens_field(config: dict[str, Any], *names: str) -> Any:
    """A field of the configuration, which version 6 moved into `metadata`."""
    inner = config.get("metadata")
    metadata: dict[str, Any] = inner if isinstance(inner, dict) else {}
    for name in names:
        for place in (config, metadata):
            if place.get(name) is not None:
                return place[name]
    return None


def _saelens_is_v6(config: dict[str, Any]) -> bool:
    version = str(_saelens_field(config, "sae_lens_version") or "0")
    major = version.split(".")[0]
    return major.isdigit() and int(major) >= 6


def _saelens_activation(config: dict[str, Any]) -> str:
    architecture = str(config.get("architecture") or "standard")
    named = str(_saelens_field(config, "activation_fn", "activation_fn_str") or "relu")
    if architecture in ("topk", "jumprelu", "gated"):
        return architecture
    if architecture != "standard":
        raise Refusal(
            "SAE_LOAD_FAILED",
            f"the architecture {architecture!r} cannot be read",
            found=architecture,
        )
    if named in ("relu", "topk"):
        return named
    raise Refusal("SAE_LOAD_FAILED", f"the activation {named!r} cannot be read", found=named)


def _saelens_normalisation(config: dict[str, Any]) -> str:
    value = config.get("normalize_activations")
    if value in (None, False, "none"):
        return "none"
    if value in ("layer_norm", "constant_norm_rescale"):
        return str(value)
    raise Refusal(
        "SAE_LOAD_FAILED",
        f"normalize_activations {value!r} needs a factor that is not in the checkpoint",
        found=str(value),
    )


def _saelens_claims(config: dict[str, Any], weights: Path) -> Claims:
    hook_name = _saelens_field(config, "hook_name", "hook_point")
    site, layer = sites.read_hook_name(hook_name)
    with safe_open(weights, framework="pt") as file:
        rows, columns = file.get_slice("W_dec").get_shape()
        dtype = str(file.get_slice("W_dec").get_dtype()).lower()
    model = _saelens_field(config, "model_name")
    return Claims(
        format="saelens",
        architecture=_saelens_activation(config),
        d_in=columns,
        d_sae=rows,
        dtype=dtype,
        hook_name=hook_name,
        site=site,
        layer=layer if layer is not None else _saelens_layer(config),
        model_name=str(model) if model is not None else None,
        l0=_saelens_k(config),
        size_bytes=weights.stat().st_size,
    )


def _saelens_layer(config: dict[str, Any]) -> int | None:
    """The layer field, where the hook name does not say it."""
    layer = _saelens_field(config, "hook_layer", "hook_point_layer")
    return layer if type(layer) is int and layer >= 0 else None


def _saelens_k(config: dict[str, Any]) -> float | None:
    """k of a top-k SAE; None for others.

    Raises:
        Refusal: SAE_LOAD_FAILED when a top-k SAE has no k of at least 1.
    """
    if _saelens_activation(config) != "topk":
        return None
    arguments = config.get("activation_fn_kwargs")
    k = config.get("k")
    if k is None and isinstance(arguments, dict):
        k = arguments.get("k")
    if type(k) is not int or k < 1:
        raise Refusal("SAE_LOAD_FAILED", f"a topk SAE needs k of at least 1, found {k!r}")
    return float(k)


def _saelens_load(config: dict[str, Any], weights: Path) -> Sae:
    activation = _saelens_activation(config)
    subtract = config.get("apply_b_dec_to_input")
    k = _saelens_k(config)
    with safe_open(weights, framework="pt") as file:
        names = set(file.keys())
        tensor: Callable[[str], Tensor] = file.get_tensor
        if "scaling_factor" in names and not torch.allclose(
            tensor("scaling_factor"), torch.tensor(1.0)
        ):
            raise Refusal("SAE_LOAD_FAILED", "a fine-tuned scaling_factor cannot be applied")
        decoder, bias = tensor("W_dec"), tensor("b_dec")
        gated = activation == "gated"
        return Sae(
            W_enc=tensor("W_enc"),
            b_enc=torch.zeros(decoder.shape[0]) if gated else tensor("b_enc"),
            W_dec=decoder,
            b_dec=bias,
            activation=activation,
            normalisation=_saelens_normalisation(config),
            # before version 6 the subtraction was the default
            subtract_b_dec=bool(not _saelens_is_v6(config) if subtract is None else subtract),
            threshold=tensor("threshold") if activation == "jumprelu" else None,
            gate=Gate(tensor("b_gate"), tensor("b_mag"), tensor("r_mag")) if gated else None,
            k=int(k) if k else None,
            scale_by_decoder_norm=bool(config.get("rescale_acts_by_decoder_norm", False)),
        )


FORMATS: tuple[Format, ...] = (
    Format(
        "SAELens",
        "cfg.json",
        "sae_weights.safetensors",
        _is_saelens,
        _saelens_claims,
        _saelens_load,
    ),
)
