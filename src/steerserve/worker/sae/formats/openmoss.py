"""OpenMOSS: Llama Scope (He et al. 2024, arXiv:2410.20526), Llama Scope R1-Distill and llamascopium.

The normalisation `dataset-wise` multiplies inputs by c = sqrt(d_model) / average norm at the hook.
"""

from __future__ import annotations

import math

from steerserve.rules.saes import sites as sae_sites
from steerserve.worker.sae.files import Tensors
from steerserve.worker.sae.formats.description import (
    CROSS_LAYER,
    SCALED,
    TRANSCODER,
    Description,
    stored_number,
)
from steerserve.worker.sae.formats.sources import Fields, SourceFiles

LINEAR = {
    "W_enc": "encoder.weight",
    "b_enc": "encoder.bias",
    "W_dec": "decoder.weight",
    "b_dec": "decoder.bias",
    "log_threshold": "log_jumprelu_threshold",
}
LATER = {
    "W_enc": "W_E",
    "b_enc": "b_E",
    "W_dec": "W_D",
    "b_dec": "b_D",
    "log_threshold": "activation_function.log_jumprelu_threshold",
}
NORM = "dataset_average_activation_norm"
NORMALISATIONS = {
    "inference": "none",
    "token-wise": "constant_norm_rescale",
    "dataset-wise": SCALED,
    "batch-wise": SCALED,
}
NO_THRESHOLD = "the batch top-k has no threshold: the k largest features of every token are taken"
KINDS = {"R": "resid_post", "A": "attn_out", "M": "mlp_out"}
REASONS = {
    "clt": CROSS_LAYER,
    "lorsa": "a sparse attention replaces an attention layer: it is no autoencoder of one place",
    "molt": "a mixture of linear transforms replaces an MLP: it is no autoencoder of one place",
    "crosscoder": "a crosscoder reads several places at once: it is no autoencoder of one",
}


def describe(files: SourceFiles) -> Description | None:
    weights = ("sae_weights.safetensors", "sae_weights.pt", "checkpoints/final.safetensors")
    config, is_first = files.config("hyperparams.json"), True
    if config is None:
        config, is_first = files.config("config.json"), False
    if config is None or not (config.has("hook_point_in") or config.has("hook_points_in")):
        return None
    tensors = files.weights(*reversed(weights)) if is_first else files.weights(*weights)
    return None if tensors is None else _describe(files, tensors, config, is_first=is_first)


def _describe(
    files: SourceFiles, tensors: Tensors, config: Fields, *, is_first: bool
) -> Description:
    is_later = "W_E" in tensors.infos
    parts = {part: n for part, n in (LATER if is_later else LINEAR).items() if n in tensors.infos}
    act_fn = (config.text("act_fn") or "relu").lower()
    k = config.index("top_k") or None
    hook = config.text("hook_point_in")
    site, layer = sae_sites.locate(hook)
    named = files.in_name(r"[-_/]L(\d+)([RAM])(?:[-_/.]|$)")
    if site is None and named:
        site = KINDS[named[2].upper()]
    normalisation = NORMALISATIONS.get(config.text("norm_activation") or "inference", "")
    has_threshold = "log_threshold" in parts or config.has("jump_relu_threshold")
    activation = {"relu": "relu", "jumprelu": "jumprelu", "topk": "topk"}.get(act_fn)
    if act_fn == "batchtopk":
        activation = "jumprelu" if "log_threshold" in parts else "topk"
    warnings = (NO_THRESHOLD,) if act_fn == "batchtopk" and activation == "topk" else ()
    include_norm = bool(config.flag("sparsity_include_decoder_norm"))
    return Description(
        format="llama-scope" if is_first else "llamascopium" if is_later else "llama-scope-r1",
        tensors=tensors,
        parts=parts,
        architecture=act_fn,
        activation=activation,
        k=k if activation == "topk" else None,
        threshold=config.number("jump_relu_threshold") if has_threshold else None,
        normalisation=normalisation or str(config.text("norm_activation")),
        norm_factor=_factor(config, tensors, hook) if normalisation == SCALED else None,
        # Llama Scope chose its one threshold on activations that were not scaled
        threshold_is_raw=is_first,
        subtract_b_dec=bool(config.flag("apply_decoder_bias_to_pre_encoder")),
        # the training code of Llama Scope compares with the threshold without the decoder norms
        select_by_decoder_norm=include_norm and not (is_first and activation == "jumprelu"),
        optional=frozenset() if config.flag("use_decoder_bias") else frozenset({"b_dec"}),
        transposed=frozenset() if is_later else frozenset({"W_enc", "W_dec"}),
        hook_name=hook,
        site=site,
        layer=layer if layer is not None else files.layer,
        model_name=_model(files, config),
        l0=float(k) if k else None,
        reason=_reason(config),
        stated_sizes=config.sizes("d_model", "d_sae"),
        warnings=warnings,
    )


def _factor(config: Fields, tensors: Tensors, hook: str | None) -> float | None:
    """The scalar norm c; None where neither the configuration nor the weights have the average norm."""
    size = config.index("d_model")
    norms = config.inner(NORM)
    norm = norms.number("in", hook or "in")
    if norm is None:
        norm = stored_number(tensors, f"{NORM}.{hook}")
    if not size or norm is None or not math.isfinite(norm) or norm <= 0:
        return None
    return math.sqrt(size) / norm


def _model(files: SourceFiles, config: Fields) -> str | None:
    beside = files.config("lm_config.json")
    named = beside.text("model_name") if beside else None
    if named is None:
        named = config.text("model_name")
    is_llama_scope = files.in_name(r"Llama3_1-8B-Base-L")
    return named or ("meta-llama/Llama-3.1-8B" if is_llama_scope else None)


def _reason(config: Fields) -> str | None:
    kind = config.text("sae_type") or "sae"
    if kind != "sae":
        return REASONS.get(kind, f"{kind!r} is no autoencoder of one place")
    if config.flag("use_glu_encoder"):
        return "the encoder is a gated linear unit, which this engine cannot compute"
    out = config.text("hook_point_out")
    if out and out != config.text("hook_point_in"):
        return TRANSCODER
    return None
