"""The places where an SAE reads and writes: hook names of all libraries become a site and a layer.

Conventions: TransformerLens (`blocks.N.hook_resid_post`), Hugging Face module paths with an optional side
(`model.layers.N.self_attn.o_proj.input`), dictionary_learning (`resid_post_layer_N`), sparsify (`layers.N.mlp`,
`h.N.attn`), OpenMOSS (`L15R`), and the bare name of a site. Layers are counted from 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from steerserve.rules.form import Form

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
Q = "q"
K = "k"
V = "v"
PATTERN = "pattern"
ROUTER_LOGITS = "router_logits"
LOGITS = "logits"

SITES = {
    RESID_PRE: "the residual stream before the layer",
    RESID_MID: "the residual stream between attention and MLP",
    RESID_POST: "the residual stream after the layer",
    ATTN_OUT: "the output of attention that is added to the residual stream",
    MLP_OUT: "the output of the MLP that is added to the residual stream",
    ATTN_RAW: "the output of the attention module",
    MLP_RAW: "the output of the MLP module",
    Z: "the concatenated outputs of the heads before the output projection",
    MLP_IN: "the input of the MLP, with the norm's gain",
    MLP_NEURONS: "the neurons of the MLP before its output projection",
    EMBED: "the token embedding as it enters the residual stream",
}

OPERAND_SITES = {
    Q: "the queries of each head as attention multiplies them, after norms and rotation",
    K: "the keys of each head as attention multiplies them, after norms and rotation",
    V: "the values of each head as attention multiplies them",
}
"""The sites inside attention at which edits act. No SAE is there."""

EDITABLE = {**SITES, **OPERAND_SITES}
"""The sites at which edits act, with what their values are."""

READ_ONLY = {
    PATTERN: "the attention probabilities of each head, computed in the plain way",
    ROUTER_LOGITS: "the logits of the experts, before the router chooses some of them",
    LOGITS: "the logits after a token, as the model gives them",
}
"""The sites whose values are read and never changed. No SAE and no direction is there."""

READABLE = {**EDITABLE, **READ_ONLY}
"""All sites, with what their values are."""

STREAM_SITES = frozenset({RESID_PRE, RESID_MID, RESID_POST, ATTN_OUT, MLP_OUT, EMBED})
"""The sites whose values are the residual stream, or are added to it as they are."""

ORDER = (
    EMBED,
    RESID_PRE,
    K,
    V,
    Q,
    Z,
    ATTN_RAW,
    ATTN_OUT,
    RESID_MID,
    MLP_IN,
    MLP_NEURONS,
    MLP_RAW,
    MLP_OUT,
    RESID_POST,
)
"""The sites of one layer, in the order in which a forward pass comes to them."""


class ModelSite(Form, frozen=True):
    """A site of a model at the layers that have it in one form. `layers` is null for the logits, which belong to none.
    `width` is null for the pattern, whose rows grow with the text, and `heads` is null where the values are not divided
    into heads. In `module_path`, `{layer}` stands for the number of a layer. `can_write` says whether edits act
    there."""

    site: str
    layers: tuple[int, ...] | None
    width: int | None
    heads: int | None
    module_path: str
    can_write: bool


def widths(sites: Iterable[ModelSite]) -> dict[str, int]:
    """The sites at which edits act, each with its width at the first layer that has it."""
    found: dict[str, int] = {}
    for one in sites:
        if one.can_write and one.width is not None:
            found.setdefault(one.site, one.width)
    return found


def heads(sites: Iterable[ModelSite]) -> dict[str, int]:
    """The sites at which edits act and that are divided into heads, each with their number."""
    return {one.site: one.heads for one in sites if one.can_write and one.heads}


def layers_of(sites: Iterable[ModelSite]) -> dict[str, tuple[int, ...]]:
    """The layers of each site; none for the logits."""
    found: dict[str, tuple[int, ...]] = {}
    for one in sites:
        found[one.site] = tuple(sorted({*found.get(one.site, ()), *(one.layers or ())}))
    return found


_N = r"([0-9]{1,5})"
_TRUNK = r"(?:(?:model|language_model|text_model|transformer|gpt_neox|decoder)\.)*"

_LENS = re.compile(rf"blocks\.{_N}\.([a-z0-9_.]+)")
# `hook_mlp_in` is missing on purpose: it is the stream before the norm in HookedTransformer and after it in
# TransformerBridge
_LENS_SITES = {
    "hook_resid_pre": RESID_PRE,
    "hook_in": RESID_PRE,
    "hook_resid_mid": RESID_MID,
    "hook_resid_post": RESID_POST,
    "hook_out": RESID_POST,
    "hook_attn_out": ATTN_OUT,
    "hook_mlp_out": MLP_OUT,
    "attn.hook_out": ATTN_RAW,
    "mlp.hook_out": MLP_RAW,
    "attn.hook_z": Z,
    "attn.o.hook_in": Z,
    "mlp.hook_in": MLP_IN,
    "mlp.hook_post": MLP_NEURONS,
}

_NORMALISED = re.compile(rf"(?:blocks\.{_N}\.ln[12](?:_post)?|ln_final)\.hook_normalized")

_MODULE = re.compile(
    rf"{_TRUNK}(?:layers|h|blocks)[._]{_N}((?:\.[a-z0-9_]+)*?)(?:\.(input|output))?"
)
_ATTENTIONS = ("self_attn", "attn", "attention", "self_attention", "attn.attention")
_PROJECTIONS = (
    "self_attn.o_proj",
    "self_attn.dense",
    "self_attn.out_proj",
    "attn.c_proj",
    "attn.out_proj",
    "attn.attention.out_proj",
    "attention.dense",
)
_MLPS = ("mlp", "ffn", "block_sparse_moe")
_DOWN = ("fc2", "mlp.down_proj", "mlp.c_proj", "mlp.fc2", "mlp.fc_out")
_MODULES: dict[str, tuple[str | None, str | None]] = {
    "": (RESID_PRE, RESID_POST),
    **dict.fromkeys(_ATTENTIONS, (None, ATTN_RAW)),
    **dict.fromkeys(_PROJECTIONS, (Z, ATTN_RAW)),
    **dict.fromkeys(_MLPS, (MLP_IN, MLP_RAW)),
    **dict.fromkeys(_DOWN, (MLP_NEURONS, MLP_RAW)),
    # in Bloom and MPT the module adds the residual after these, so that their output is the one that is added
    "self_attention.dense": (Z, ATTN_OUT),
    "mlp.dense_4h_to_h": (MLP_NEURONS, MLP_OUT),
    "ffn.down_proj": (MLP_NEURONS, MLP_OUT),
    "fc1": (MLP_IN, None),
    **dict.fromkeys(("input_layernorm", "ln_1", "norm_1"), (RESID_PRE, None)),
    **dict.fromkeys(("pre_feedforward_layernorm", "ln_2", "norm_2"), (RESID_MID, MLP_IN)),
    "post_feedforward_layernorm": (MLP_RAW, MLP_OUT),
}
"""Module within a layer -> the site of its input, and the site of its output."""

_AMBIGUOUS = "post_attention_layernorm"
_SANDWICH = re.compile(r"(?:gemma|olmo|exaone)[-_ ]?(?:2|3|4)(?![0-9.]*[bm])")
_PRE_NORM = re.compile(r"llama|mistral|mixtral|qwen|smollm|granite|gemma|olmo|phi|pythia|gpt-?oss")

_EMBEDDING = re.compile(
    rf"hook_embed|embed|{_TRUNK}(?:embed_tokens|wte|embed_in|word_embeddings_layernorm)(?:\.output)?"
)
_DICTIONARY_LEARNING = re.compile(
    rf"(resid_pre|resid_post|resid_out|attn_out|attention_out|mlp_out)_layer_?{_N}"
)
_DICTIONARY_LEARNING_SITES = {
    "resid_pre": RESID_PRE,
    "resid_post": RESID_POST,
    "resid_out": RESID_POST,
    "attn_out": ATTN_RAW,
    "attention_out": ATTN_RAW,
    "mlp_out": MLP_RAW,
}
_OPENMOSS = re.compile(rf"L{_N}([RAM])")
_OPENMOSS_SITES = {"R": RESID_POST, "A": ATTN_OUT, "M": MLP_OUT}


def locate(name: str | None, model_name: str | None = None) -> tuple[str | None, int | None]:
    """The site and the layer of a hook name; (None, None) for a name without a known site.

    The name of a site alone has no layer. The embedding is at layer 0. `model_name` is the model that the SAE was
    trained on: `post_attention_layernorm` comes after attention in Gemma 2 and similar models, and before the MLP in
        others.
    """
    name = name or ""
    if _EMBEDDING.fullmatch(name):
        return EMBED, 0
    if name in SITES:
        return name, None
    for pattern, sites in (
        (_DICTIONARY_LEARNING, _DICTIONARY_LEARNING_SITES),
        (_OPENMOSS, _OPENMOSS_SITES),
    ):
        if match := pattern.fullmatch(name):
            first, second = match.groups()
            return (sites[first], int(second)) if first in sites else (sites[second], int(first))
    if (match := _LENS.fullmatch(name)) and match[2] in _LENS_SITES:
        return _LENS_SITES[match[2]], int(match[1])
    if match := _MODULE.fullmatch(name):
        site = _of_module(match[2][1:], match[3] or "output", model_name)
        return (site, int(match[1])) if site else (None, None)
    return None, None


def objection(name: str) -> str:
    """Why a hook name has no site here, as the end of a sentence that begins with the hook name."""
    if _NORMALISED.fullmatch(name):
        return (
            "the output of a layer norm before its gain, a value that no module of the model gives"
        )
    return "which names no known site"


def is_lens_name(name: str | None) -> bool:
    """Whether this is a hook name of TransformerLens, which may centre the residual stream."""
    return bool(_LENS.fullmatch(name or "")) or name == "hook_embed"


def _of_module(path: str, side: str, model_name: str | None) -> str | None:
    if path == _AMBIGUOUS:
        model = (model_name or "").lower()
        if _SANDWICH.search(model):
            sides: tuple[str | None, str | None] = (ATTN_RAW, ATTN_OUT)
        elif _PRE_NORM.search(model):
            sides = (RESID_MID, MLP_IN)
        else:
            return None
    else:
        sides = _MODULES.get(path, (None, None))
    return sides[0] if side == "input" else sides[1]
