"""Where an SAE reads and writes, as a name: hook names of every library become a site and a layer.

Conventions: TransformerLens (`blocks.N.hook_resid_post`), Hugging Face module paths (`model.layers.N`),
dictionary_learning (`resid_post_layer_N`), sparsify (`layers.N.mlp`). Layers are counted from 0.
"""

from __future__ import annotations

import re

RESID_PRE = "resid_pre"
RESID_MID = "resid_mid"
RESID_POST = "resid_post"
ATTN_OUT = "attn_out"
MLP_OUT = "mlp_out"
ATTN_RAW = "attn_raw"
MLP_RAW = "mlp_raw"
Z = "hook_z"
MLP_IN = "mlp_in"
MLP_NEURONS = "mlp_neurons"
EMBED = "embed"

SITES = {
    RESID_PRE: "the residual stream before the layer",
    RESID_MID: "the residual stream between attention and MLP",
    RESID_POST: "the residual stream after the layer",
    ATTN_OUT: "what attention adds to the residual stream",
    MLP_OUT: "what the MLP adds to the residual stream",
    ATTN_RAW: "the output of the attention module",
    MLP_RAW: "the output of the MLP module",
    Z: "the heads' outputs before the output projection, concatenated",
    MLP_IN: "the input of the MLP, with the norm's gain",
    MLP_NEURONS: "the neurons of the MLP before its output projection",
    EMBED: "the token embedding",
}

_NAMES = (
    (re.compile(r"blocks\.(\d+)\.hook_resid_post"), RESID_POST),
    (re.compile(r"blocks\.(\d+)\.hook_resid_pre"), RESID_PRE),
    (re.compile(r"(?:model\.)?layers\.(\d+)(?:\.output)?"), RESID_POST),
    (re.compile(r"(?:transformer\.)?h\.(\d+)(?:\.output)?"), RESID_POST),
    (re.compile(r"resid_post_layer_(\d+)"), RESID_POST),
)


def read(name: str | None) -> tuple[str | None, int | None]:
    """The site and the layer that a hook name means, as (site, layer); (None, None) where it means none known."""
    for pattern, site in _NAMES:
        found = pattern.fullmatch(name or "")
        if found:
            return site, int(found[1])
    return None, None
