"""dictionary_learning: `ae.pt` beside a `config.json`. The class that it names decides tensor names and maths."""

from __future__ import annotations

from dataclasses import replace

from steerserve.rules.saes import sites as sae_sites
from steerserve.worker.sae.files import Tensors
from steerserve.worker.sae.formats.description import (
    TRANSCODER,
    Description,
    parts_by_name,
    stored_k,
    stored_number,
)
from steerserve.worker.sae.formats.sources import Fields, SourceFiles

NAMES = {
    "W_enc": ("W_enc", "encoder.weight"),
    "b_enc": ("b_enc", "encoder.bias"),
    "W_dec": ("W_dec", "decoder.weight"),
    "b_dec": ("b_dec", "bias", "decoder.bias", "decoder_bias"),
    "b_gate": ("gate_bias",),
    "b_mag": ("mag_bias",),
    "r_mag": ("r_mag",),
    "threshold": ("threshold",),
}
CLASSES = {
    "AutoEncoder": ("relu", True),
    "AutoEncoderNew": ("relu", False),
    "GatedAutoEncoder": ("gated", True),
    "JumpReluAutoEncoder": ("jumprelu", False),
    "AutoEncoderTopK": ("topk", True),
    "BatchTopKSAE": ("jumprelu", True),
    "MatryoshkaBatchTopKSAE": ("jumprelu", True),
}
"""Class -> its activation, and whether b_dec is subtracted from the input."""

UNSET = "the batch top-k threshold was never set: the k largest features of every token are taken"


def describe(files: SourceFiles) -> Description | None:
    config = files.config("config.json")
    trainer = config.inner("trainer") if config else None
    if config is None or trainer is None or not trainer.has("dict_class", "trainer_class"):
        return None
    tensors = files.weights("ae.pt")
    return None if tensors is None else _describe(files, tensors, config, trainer)


def _describe(files: SourceFiles, tensors: Tensors, config: Fields, trainer: Fields) -> Description:
    named = trainer.text("dict_class") or "unknown"
    activation, subtract = CLASSES.get(named, (None, None))
    parts = parts_by_name(tensors, NAMES)
    layer = trainer.index("layer")
    hook, site, place_layer = _place(trainer, layer, config.inner("buffer").text("io"))
    k = trainer.index("k") or stored_k(tensors)
    description = Description(
        format="dictionary_learning",
        tensors=tensors,
        parts=parts,
        architecture=named,
        activation=activation,
        k=k if activation == "topk" else None,
        subtract_b_dec=subtract,
        transposed=frozenset(p for p in ("W_enc", "W_dec") if parts.get(p, p) != p),
        hook_name=hook,
        site=site,
        layer=next((n for n in (layer, place_layer, files.layer) if n is not None), None),
        model_name=trainer.text("lm_name"),
        l0=float(k) if k else None,
        reason=TRANSCODER if "Transcoder" in named or _writes_elsewhere(config) else None,
        warnings=() if activation else (f"the class {named!r} is not known",),
        stated_sizes=trainer.sizes("activation_dim", "dict_size"),
    )
    return _per_token(description, k) if _threshold_is_unset(description) else description


def _place(
    trainer: Fields, layer: int | None, io: str | None
) -> tuple[str | None, str | None, int | None]:
    hook = trainer.text("submodule_name")
    if hook is None and layer is not None:
        hook = f"resid_post_layer_{layer}"
    site, place_layer = sae_sites.locate(hook, trainer.text("lm_name"))
    if io == "in":
        at_input, _ = sae_sites.locate(f"{hook}.input", trainer.text("lm_name"))
        site = sae_sites.RESID_PRE if site == sae_sites.RESID_POST else at_input
    return hook, site, place_layer


def _writes_elsewhere(config: Fields) -> bool:
    return config.inner("buffer").text("io") == "in_and_out"


def _threshold_is_unset(description: Description) -> bool:
    if description.architecture not in ("BatchTopKSAE", "MatryoshkaBatchTopKSAE"):
        return False
    threshold = stored_number(description.tensors, "threshold")
    return threshold is not None and threshold < 0


def _per_token(description: Description, k: int | None) -> Description:
    return replace(description, activation="topk", k=k, warnings=(*description.warnings, UNSET))
