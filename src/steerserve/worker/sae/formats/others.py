"""Formats of one file: Goodfire, qresearch, Qwen Scope and the attention SAEs of GPT-2.

Also recognised here, to be refused: transcoders, cross-layer transcoders and temporal SAEs.
"""

from __future__ import annotations

import re

from steerserve.rules.saes import sites as sae_sites
from steerserve.worker.sae.files import Tensors
from steerserve.worker.sae.formats.description import CROSS_LAYER, TEMPORAL, TRANSCODER, Description
from steerserve.worker.sae.formats.sources import SourceFiles

BOTH = frozenset({"W_enc", "W_dec"})
RESID_POST = "blocks.{}.hook_resid_post"


def describe_qwen_scope(files: SourceFiles) -> Description | None:
    """Qwen Scope: `layerN.sae.pt`. Model, width and k are read from the repository's name. Both matrices are stored as
    `nn.Linear` stores them, although they are named W_enc and W_dec."""
    tensors = files.single()
    layer = (
        re.fullmatch(r"layer(\d+)\.sae\.pt", tensors.path.name, re.IGNORECASE) if tensors else None
    )
    if tensors is None or layer is None:
        return None
    named = files.in_name(r"SAE-Res-([^/]+)-W\d+K-L0_(\d+)")
    k = int(named[2]) if named else None
    return Description(
        format="qwen-scope",
        tensors=tensors,
        parts={
            name: name for name in ("W_enc", "b_enc", "W_dec", "b_dec") if name in tensors.infos
        },
        architecture="topk",
        activation="topk",
        k=k or None,
        transposed=BOTH,
        hook_name=RESID_POST.format(layer[1]),
        site=sae_sites.RESID_POST,
        layer=int(layer[1]),
        model_name=f"Qwen/{named[1]}" if named else None,
        l0=float(k) if k else None,
    )


def describe_goodfire(files: SourceFiles) -> Description | None:
    """Goodfire: one file with `encoder_linear` and `decoder_linear`."""
    tensors = files.single()
    if tensors is None or "encoder_linear.weight" not in tensors.infos:
        return None
    return _linear(files, "goodfire", "encoder_linear", "decoder_linear")


def describe_qresearch(files: SourceFiles) -> Description | None:
    """qresearch: one file whose name ends in the layer, with an `nn.Linear` for encoder and decoder."""
    tensors = files.single()
    keys = {"encoder.weight", "encoder.bias", "decoder.weight", "decoder.bias"}
    if tensors is None or not keys <= set(tensors.infos):
        return None
    if not re.search(r"[-_]l\d+\.pth?$", tensors.path.name, re.IGNORECASE):
        return None
    return _linear(files, "qresearch", "encoder", "decoder")


def _linear(files: SourceFiles, form: str, encoder: str, decoder: str) -> Description:
    tensors = files.single()
    assert tensors is not None
    parts = {"W_enc": f"{encoder}.weight", "b_enc": f"{encoder}.bias"}
    parts |= {"W_dec": f"{decoder}.weight", "b_dec": f"{decoder}.bias"}
    file = re.search(r"^(.*)-SAE[-_]l(\d+)\.\w+$", tensors.path.name, re.IGNORECASE)
    layer = int(file[2]) if file else files.number_in_name(r"[-_]l(\d+)\.\w+$")
    return Description(
        format=form,
        tensors=tensors,
        parts=parts,
        architecture="relu",
        activation="relu",
        transposed=BOTH,
        hook_name=None if layer is None else RESID_POST.format(layer),
        site=sae_sites.RESID_POST,
        layer=layer,
        model_name=file[1] if file else None,
    )


def describe_attention(files: SourceFiles) -> Description | None:
    """The attention SAEs of GPT-2 small (Kissane et al. 2024, arXiv:2406.17759): `X.pt` and `X_cfg.json`."""
    tensors = files.single()
    config = files.config(f"{tensors.path.stem}_cfg.json") if tensors else None
    if tensors is None or config is None or not config.has("act_name"):
        return None
    hook = config.text("act_name")
    site, layer = sae_sites.locate(hook)
    return Description(
        format="attention-sae",
        tensors=tensors,
        parts={
            name: name for name in ("W_enc", "b_enc", "W_dec", "b_dec") if name in tensors.infos
        },
        architecture="relu",
        activation="relu",
        subtract_b_dec=True,
        hook_name=hook,
        site=site,
        layer=layer if layer is not None else config.index("layer"),
        model_name=config.text("model_name") or "gpt2-small",
        stated_sizes=config.sizes("act_size", "dict_size"),
    )


def describe_cross_layer(files: SourceFiles) -> Description | None:
    """A cross-layer transcoder: `W_enc_N.safetensors` and `W_dec_N.safetensors` for every layer. It is refused."""
    names = [
        name
        for name in files.candidates()
        if re.fullmatch(r"W_enc_\d+\.safetensors", name, re.IGNORECASE)
    ]
    tensors = files.weights(*names[:1]) if names else None
    return _refused("clt", tensors, files, CROSS_LAYER) if tensors else None


def describe_mwhanna(files: SourceFiles) -> Description | None:
    """Transcoders of circuit-tracer: `layer_N.safetensors` beside a YAML configuration. They are refused."""
    names = [
        name
        for name in files.candidates()
        if re.fullmatch(r"layer_\d+\.safetensors", name, re.IGNORECASE)
    ]
    is_configured = files.has("wandb-config.yaml", "wanb-config.yaml")
    is_named = files.in_name(r"-transcoders(?:-\w+)?(?:/|$)") is not None
    chosen = files.only if files.only in names else next(iter(names), None)
    tensors = files.weights(chosen) if chosen and (is_configured or is_named) else None
    return _refused("mwhanna-transcoder", tensors, files, TRANSCODER) if tensors else None


def describe_temporal(files: SourceFiles) -> Description | None:
    """A temporal SAE (arXiv:2511.01836): `conf.yaml` beside `latest_ckpt.safetensors`."""
    tensors = files.weights("latest_ckpt.safetensors")
    is_temporal = tensors is not None and (files.has("conf.yaml") or "D" in tensors.infos)
    return _refused("temporal", tensors, files, TEMPORAL) if tensors and is_temporal else None


def _refused(form: str, tensors: Tensors, files: SourceFiles, reason: str) -> Description:
    starts = {"W_enc": ("W_enc", "E"), "W_dec": ("W_dec", "D"), "b_enc": ("b_enc",)}
    parts = {
        part: name
        for part, heads in starts.items()
        for name in tensors.infos
        if any(re.fullmatch(rf"{head}(_\d+)?", name) for head in heads)
    }
    return Description(
        format=form,
        tensors=tensors,
        parts=parts,
        architecture=form,
        activation=None,
        layer=files.layer,
        reason=reason,
    )
