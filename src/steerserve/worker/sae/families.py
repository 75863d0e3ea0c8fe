"""The modules of a decoder layer in each architecture, and the sites that follow from them.

`FAMILIES` is the one table. An architecture outside it has only the residual stream before and after a layer. A site
that a layer does not have is refused and never guessed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from steerserve.rules.saes.sites import (
    ATTN_OUT,
    ATTN_RAW,
    MLP_IN,
    MLP_NEURONS,
    MLP_OUT,
    MLP_RAW,
    PATTERN,
    RESID_MID,
    ROUTER_LOGITS,
    K,
    Q,
    V,
    Z,
)

HEAD_SITES = frozenset({Q, K, V, PATTERN})
"""The sites that an attention module has inside."""

_ROUTERS = ("gate", "router")
"""The names of the module in an MLP that gives the logits of its experts."""


@dataclass(frozen=True, slots=True)
class Family:
    """Paths of modules within a decoder layer.

    Attributes:
        projection, down: the last projections of attention and MLP.
        attn_out, mlp_out: the modules whose outputs are added to the residual stream; empty where these are attention
            and MLP.
        mlp_in: the module whose input the MLP reads; empty where this is the MLP.
        is_parallel: attention and MLP read the same stream.
        is_flat: the layer calls its MLP with [rows * T, width].
        post_norms: name and value of the flag with which the layer normalises the stream itself. Then no output is
            simply added to the stream.
    """

    attention: str = "self_attn"
    projection: str = "self_attn.o_proj"
    mlp: str = "mlp"
    down: str = "mlp.down_proj"
    attn_out: str = ""
    mlp_out: str = ""
    mlp_in: str = ""
    is_parallel: bool = False
    is_flat: bool = False
    post_norms: tuple[str, bool] | None = None


_LLAMA = Family()
_SANDWICH = Family(attn_out="post_attention_layernorm", mlp_out="post_feedforward_layernorm")
_GPT2 = Family("attn", "attn.c_proj", "mlp", "mlp.c_proj")
_GPTJ = Family("attn", "attn.out_proj", "mlp", "mlp.fc_out", is_parallel=True)
_FALCON = Family("self_attention", "self_attention.dense", "mlp", "mlp.dense_4h_to_h")

FAMILIES: dict[str, Family] = {
    **dict.fromkeys(
        "llama mistral ministral ministral3 qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next qwen3_5_text qwen3_5_moe_text "
        "gemma vaultgemma phi3 phimoe olmo olmoe granite mixtral gpt_oss stablelm smollm3 seed_oss arcee "
        "helium glm ernie4_5 hunyuan_v1_dense apertus nemotron".split(),
        _LLAMA,
    ),
    **dict.fromkeys("gemma2 gemma3_text olmo2 olmo3 exaone4".split(), _SANDWICH),
    "glm4": Family(attn_out="post_self_attn_layernorm", mlp_out="post_mlp_layernorm"),
    "granitemoe": replace(_LLAMA, mlp="block_sparse_moe"),
    "starcoder2": replace(_LLAMA, down="mlp.c_proj"),
    "cohere": replace(_LLAMA, is_parallel=True),
    "cohere2": replace(_LLAMA, is_parallel=True),
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2,
    "gpt_neo": replace(_GPT2, projection="attn.attention.out_proj"),
    "gptj": _GPTJ,
    "codegen": _GPTJ,
    "gpt_neox": Family("attention", "attention.dense", "mlp", "mlp.dense_4h_to_h"),
    "persimmon": Family("self_attn", "self_attn.dense", "mlp", "mlp.dense_4h_to_h"),
    "phi": Family("self_attn", "self_attn.dense", "mlp", "mlp.fc2", is_parallel=True),
    "opt": Family(
        "self_attn",
        "self_attn.out_proj",
        "fc2",
        "fc2",
        mlp_in="fc1",
        is_flat=True,
        post_norms=("do_layer_norm_before", False),
    ),
    "falcon": _FALCON,
    # Bloom and MPT add the residual within the module, after its last projection
    "bloom": replace(
        _FALCON,
        attn_out=_FALCON.projection,
        mlp_out=_FALCON.down,
        post_norms=("apply_residual_connection_post_layernorm", True),
    ),
    "mpt": Family("attn", "attn.out_proj", "ffn", "ffn.down_proj", mlp_out="ffn.down_proj"),
}


def place(block: nn.Module, family: Family, site: str) -> tuple[str, bool]:
    """The path of a site's module within the layer, and whether the site is the input of the module."""
    if site == ROUTER_LOGITS:
        return _router(block, family), False
    return {
        RESID_MID: (family.attn_out or family.attention, False),
        ATTN_OUT: (family.attn_out or family.attention, False),
        MLP_OUT: (family.mlp_out or family.mlp, False),
        **dict.fromkeys((ATTN_RAW, *HEAD_SITES), (family.attention, False)),
        MLP_RAW: (family.mlp, False),
        Z: (family.projection, True),
        MLP_IN: (family.mlp_in or family.mlp, True),
        MLP_NEURONS: (family.down, True),
    }[site]


def objection(block: nn.Module, family: Family, site: str) -> str | None:
    """Why this layer does not have the site; None where it does."""
    if site == RESID_MID and _is_parallel(block, family):
        return "attention and MLP read the same stream"
    if site in (RESID_MID, ATTN_OUT, MLP_OUT) and (why := normalises(block, family)):
        return why
    needs_attention = site in HEAD_SITES or site in (RESID_MID, ATTN_OUT, ATTN_RAW, Z)
    if needs_attention and not _has(block, family.attention):
        return "this layer has no softmax attention"
    if site == ROUTER_LOGITS and not _router(block, family):
        return "its MLP has no experts"
    name, _ = place(block, family, site)
    if not _has(block, name) or (
        site in (Z, MLP_NEURONS) and not inputs(block.get_submodule(name))
    ):
        return f"this layer has no {name!r}"
    if _is_sliced(block.get_submodule(name.partition(".")[0])) and "." in name:
        return "it computes its projections in slices"
    return None


def _router(block: nn.Module, family: Family) -> str:
    """The path of the module whose first output is the logits of the experts; empty where there is none."""
    paths = [f"{family.mlp}.{name}" for name in _ROUTERS]
    return next((p for p in paths if _has(block, p) and experts(block.get_submodule(p))), "")


def experts(router: object) -> int:
    """The number of experts that a router chooses from; 0 for another module."""
    return int(getattr(router, "num_experts", 0) or 0)


def _is_parallel(block: Any, family: Family) -> bool:
    if family is _FALCON:
        return bool(block.config.parallel_attn or block.config.new_decoder_architecture)
    return family.is_parallel or bool(getattr(block, "use_parallel_residual", False))


def normalises(block: object, family: Family) -> str | None:
    """Why nothing is simply added to the residual stream in this layer; None where something is."""
    if family.post_norms is None:
        return None
    flag, value = family.post_norms
    return "its layers normalise the stream itself" if getattr(block, flag) is value else None


def _is_sliced(module: object) -> bool:
    """Whether Bloom reads the weights of its projection without calling the module, so that hooks on the module never
    run."""
    return getattr(module, "pretraining_tp", 1) > 1 and bool(
        getattr(module, "slow_but_exact", False)
    )


def _has(block: nn.Module, name: str) -> bool:
    try:
        block.get_submodule(name)
    except AttributeError:
        return False
    return True


def inputs(module: object) -> int:
    """The width of a projection's input; 0 where the module does not say. GPT-2's projections call it `nx`."""
    return int(getattr(module, "in_features", 0) or getattr(module, "nx", 0) or 0)
