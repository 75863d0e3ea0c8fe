"""SAELens, version 6 and older, and miStudio's community format: `cfg.json` beside `sae_weights.safetensors`."""

from __future__ import annotations

from steerserve.rules.saes import sites as sae_sites
from steerserve.worker.sae.canonical import NEEDS_K
from steerserve.worker.sae.files import Tensors
from steerserve.worker.sae.formats.description import GATED, SCALED, TEMPORAL, Description, whole_k
from steerserve.worker.sae.formats.sources import Fields, SourceFiles

MARKS = ("architecture", "activation_fn", "activation_fn_str", "hook_name", "hook_point")
NAMES = ("W_enc", "b_enc", "W_dec", "b_dec", "threshold", *GATED, "scaling_factor")
THRESHOLDED = ("batchtopk", "matryoshka_batchtopk")
"""Architectures whose training uses k, and which are saved with one threshold for use."""

REASONS = {
    "temporal": TEMPORAL,
    "matching_pursuit": "a matching-pursuit SAE has no encoder: its activations are found by a search",
}


def describe(files: SourceFiles) -> Description | None:
    config = files.config("cfg.json")
    if config is None or not _fits(config):
        return None
    tensors = files.weights("sae_weights.safetensors")
    return None if tensors is None else describe_tensors(files, tensors, config)


def describe_tensors(files: SourceFiles, tensors: Tensors, config: Fields) -> Description:
    """The description of weights whose configuration has SAELens's fields."""
    metadata = config.inner("metadata")
    is_older = not _is_version_6(config, metadata)
    is_mistudio = config.has("mistudio_training_id", "extra_metadata")
    architecture = config.text("architecture") or "standard"
    has_threshold = "threshold" in tensors.infos
    activation = _activation(config, architecture, has_threshold)
    subtract = config.flag("apply_b_dec_to_input")
    k = _k(config)
    hook, site, layer = _place(config, metadata)
    if layer is None:
        layer = _either(config, metadata).index("hook_layer", "hook_point_layer")
    is_topk = activation in NEEDS_K
    parts = {name: name for name in NAMES if name in tensors.infos}
    if _scaling_is_ones(tensors):
        parts.pop("scaling_factor")
    reason = _reason(architecture, config, metadata)
    if "scaling_factor" in parts and not config.flag("finetuning_scaling_factor"):
        reason = (
            reason
            or "the checkpoint has a scaling_factor, and its configuration does not set finetuning_scaling_factor"
        )
    return Description(
        format="mistudio" if is_mistudio else "saelens",
        tensors=tensors,
        parts=parts,
        architecture=activation if activation and architecture == "standard" else architecture,
        activation=activation,
        k=k if is_topk else None,
        normalisation=_normalisation(config),
        norm_factor=config.number("activation_normalization_factor"),
        # before version 6 the subtraction was the default
        subtract_b_dec=(is_older and not is_mistudio) if subtract is None else subtract,
        scale_by_decoder_norm=is_topk and bool(config.flag("rescale_acts_by_decoder_norm")),
        hook_name=hook,
        site=site,
        layer=layer,
        model_name=_either(config, metadata).text("model_name"),
        l0=float(k) if is_topk and k else files.l0,
        is_centred=_is_centred(config, metadata),
        reason=reason,
        stated_sizes=config.sizes("d_in", "d_sae"),
        warnings=() if activation else (_unknown(config, architecture),),
    )


def _fits(config: Fields) -> bool:
    return config.has(*MARKS) or config.inner("metadata").has("hook_name")


def _either(config: Fields, metadata: Fields) -> Fields:
    """The fields of both places: version 6 moved some into `metadata`."""
    kept = {name: value for name, value in config.values.items() if value is not None}
    return Fields(config.file, metadata.values | kept)


def _is_version_6(config: Fields, metadata: Fields) -> bool:
    version = _either(config, metadata).values.get("sae_lens_version")
    major = str(version or "0").split(".")[0]
    return major.isdigit() and int(major) >= 6


def _activation(config: Fields, architecture: str, has_threshold: bool) -> str | None:
    named = config.text("activation_fn", "activation_fn_str") or "relu"
    if architecture in ("topk", "abstopk", "jumprelu", "gated"):
        return architecture
    if architecture in THRESHOLDED:
        return "jumprelu" if has_threshold else None
    if architecture == "standard" and named in ("relu", "topk", "jumprelu"):
        return named
    return None


def _unknown(config: Fields, architecture: str) -> str:
    named = config.text("activation_fn", "activation_fn_str")
    return (
        f"the architecture {architecture!r} with the activation {named!r} is not known"
        if named
        else f"the architecture {architecture!r} is not known"
    )


def _k(config: Fields) -> int | None:
    """k of a top-k SAE, from the place where this version stores it; None where there is none."""
    places = (config, config.inner("activation_fn_kwargs"), config.inner("extra_metadata"))
    for place, name in zip(places, ("k", "k", "top_k_sparsity"), strict=True):
        k = whole_k(place.values.get(name))
        if k is not None:
            return k
    return None


def _normalisation(config: Fields) -> str:
    value = config.values.get("normalize_activations")
    if value is None or value is False:
        return "none"
    if value is True:
        return SCALED
    named = config.text("normalize_activations") or "none"
    return SCALED if named == "constant_scalar_rescale" else named


def _place(config: Fields, metadata: Fields) -> tuple[str | None, str | None, int | None]:
    """Hook name, site and layer. The name of TransformerLens comes first; where it gives no site, the one of Hugging
    Face."""
    both = _either(config, metadata)
    named = both.text("hook_name", "hook_point")
    model = both.text("model_name")
    site, layer = sae_sites.locate(named, model)
    if site is None:
        other = both.text("hf_hook_name")
        site, layer = sae_sites.locate(other, model)
        named = other if site else named or other
    return named, site, layer


def _is_centred(config: Fields, metadata: Fields) -> bool | None:
    return (
        _either(config, metadata)
        .inner("model_from_pretrained_kwargs")
        .flag("center_writing_weights")
    )


def _reason(architecture: str, config: Fields, metadata: Fields) -> str | None:
    if "transcoder" in architecture:
        kind = architecture.replace("_", " ")
        return f"a {kind} reads one place and writes another: it is no autoencoder of one place"
    head = _either(config, metadata).index("hook_head_index", "hook_point_head_index")
    if head is not None:
        return f"the SAE reads only attention head {head}, not all heads"
    return REASONS.get(architecture)


def _scaling_is_ones(tensors: Tensors) -> bool:
    """Whether there is a scaling_factor and all its values are 1."""
    info = tensors.infos.get("scaling_factor")
    if info is None or len(info.shape) != 1:
        return False
    factor = tensors.read("scaling_factor").float()
    return bool(((factor - 1).abs() <= 1e-5).all())
