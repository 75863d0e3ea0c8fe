"""Gemma Scope (Lieberum et al. 2024, arXiv:2408.05147) and Gemma Scope 2: JumpReLU SAEs. Layer, site and L0 stand in
the path."""

from __future__ import annotations

from steerserve.rules.saes import sites as sae_sites
from steerserve.worker.sae.files import Tensors
from steerserve.worker.sae.formats.description import CROSS_LAYER, TRANSCODER, Description
from steerserve.worker.sae.formats.sources import SourceFiles

SITES = {"res": "resid_post", "mlp": "mlp_out", "att": "hook_z"}
HOOKS = {
    "resid_post": "blocks.{}.hook_resid_post",
    "mlp_out": "blocks.{}.hook_mlp_out",
    "hook_z": "blocks.{}.attn.hook_z",
}


def describe_scope_1(files: SourceFiles) -> Description | None:
    """Gemma Scope: `params.npz`. Layer and L0 are read from the path, the site from the name of the repository."""
    tensors = files.weights("params.npz")
    if tensors is None:
        return None
    parts = _parts(tensors)
    layer, hook = files.layer, None
    named = files.in_name(r"gemma-scope-\w+-(?:pt|it)-(res|mlp|att)")
    site = SITES[named[1].lower()] if named else None
    scale = 1.0
    if files.in_name(r"(?:^|/)embedding/"):
        site, layer, hook = sae_sites.EMBED, 0, "hook_embed"
        info = tensors.infos.get(parts.get("W_enc", ""))
        scale = min(info.shape) ** 0.5 if info and info.shape else 1.0
    elif site and layer is not None:
        hook = HOOKS[site].format(layer)
    return Description(
        format="gemma-scope",
        tensors=tensors,
        parts=parts,
        architecture="jumprelu",
        activation="jumprelu",
        embedding_scale=scale,
        hook_name=hook,
        site=site,
        layer=layer,
        model_name=_model(files, r"gemma-scope-(\d+b)-(pt|it)", "gemma-2-{}"),
        l0=files.l0,
        reason=TRANSCODER if files.in_name(r"gemma-scope-[\w-]*transcoders") else None,
    )


def describe_scope_2(files: SourceFiles) -> Description | None:
    """Gemma Scope 2: `params.safetensors` with lower-case tensor names. Some folders have no `config.json`."""
    tensors = files.weights("params.safetensors") or files.single()
    if tensors is None or not {"w_enc", "w_dec", "b_enc", "b_dec"} <= set(tensors.infos):
        return None
    config = files.config("config.json")
    match = files.in_name(r"(?:^|/)(resid_post|attn_out|mlp_out|transcoder|clt)(?:_all)?/")
    kind = match[1].lower() if match else None
    hook = config.text("hf_hook_point_in") if config else None
    model = config.text("model_name") if config else None
    if model:
        model = "google/" + model.removeprefix("google/").replace("gemma-v3", "gemma-3")
    site, layer = sae_sites.locate(hook, model or "gemma-3")
    if site is None:
        site = {"attn_out": "hook_z"}.get(kind or "", kind)
        site = site if site in HOOKS else None
    layer = files.layer if layer is None else layer
    if hook is None and site and layer is not None:
        hook = HOOKS[site].format(layer)
    out = config.text("hf_hook_point_out") if config else None
    named = config.text("architecture") if config else None
    is_known = named in (None, "jump_relu", "jumprelu")
    reason = TRANSCODER if kind == "transcoder" or (out and out != hook) else None
    if "affine_skip_connection" in tensors.infos:
        reason = TRANSCODER
    if kind == "clt" or len(tensors.infos["w_dec"].shape) == 3:
        reason = CROSS_LAYER
    return Description(
        format="gemma-scope-2",
        tensors=tensors,
        parts=_parts(tensors),
        architecture="jumprelu" if is_known else str(named),
        activation="jumprelu" if is_known else None,
        hook_name=hook,
        site=site,
        layer=layer,
        model_name=model
        or _model(files, r"gemma-scope-2-(\d+m|\d+b)-(pt|it)", "google/gemma-3-{}"),
        l0=files.l0,
        reason=reason,
        warnings=() if is_known else (f"the architecture {named!r} is not known",),
    )


def _parts(tensors: Tensors) -> dict[str, str]:
    """The tensor of each part. Some files write the names in lower case."""
    names = ("W_enc", "b_enc", "W_dec", "b_dec", "threshold")
    lower = {name.lower(): name for name in tensors.infos}
    return {part: lower[part.lower()] for part in names if part.lower() in lower}


def _model(files: SourceFiles, pattern: str, named: str) -> str | None:
    """The model's name: `named` with the size that the pattern finds in the path, and `-it` for a tuned model."""
    size = files.in_name(pattern)
    if size is None:
        return None
    model = named.format(size[1].lower())
    return model + "-it" if size[2].lower() == "it" else model
