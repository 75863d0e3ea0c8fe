"""Hook names of every library mean a site and a layer, or nothing."""

from __future__ import annotations

import pytest

from steerserve.rules.saes import sites as sae_sites
from steerserve.rules.saes.sites import SITES

KNOWN = [
    # TransformerLens
    ("blocks.3.hook_resid_pre", "resid_pre", 3),
    ("blocks.0.hook_resid_mid", "resid_mid", 0),
    ("blocks.31.hook_resid_post", "resid_post", 31),
    ("blocks.5.hook_attn_out", "attn_out", 5),
    ("blocks.5.hook_mlp_out", "mlp_out", 5),
    ("blocks.5.attn.hook_out", "attn_raw", 5),
    ("blocks.5.mlp.hook_out", "mlp_raw", 5),
    ("blocks.5.attn.hook_z", "hook_z", 5),
    ("blocks.5.mlp.hook_in", "mlp_in", 5),
    ("blocks.5.mlp.hook_post", "mlp_neurons", 5),
    ("hook_embed", "embed", 0),
    # Hugging Face, by the path of the layer
    ("model.layers.7", "resid_post", 7),
    ("model.layers.7.output", "resid_post", 7),
    ("model.layers.7.input", "resid_pre", 7),
    ("model.language_model.layers.7.output", "resid_post", 7),
    ("language_model.model.layers.7.output", "resid_post", 7),
    ("transformer.h.5", "resid_post", 5),
    ("gpt_neox.layers.5.output", "resid_post", 5),
    ("model.decoder.layers.11", "resid_post", 11),
    ("transformer.blocks.2", "resid_post", 2),
    # Hugging Face, within the layer
    ("model.layers.7.self_attn", "attn_raw", 7),
    ("transformer.h.7.attn.output", "attn_raw", 7),
    ("gpt_neox.layers.7.attention", "attn_raw", 7),
    ("transformer.h.7.self_attention", "attn_raw", 7),
    ("transformer.h.7.attn.attention", "attn_raw", 7),
    ("model.layers.12.self_attn.o_proj.input", "hook_z", 12),
    ("model.layers.12.self_attn.o_proj.output", "attn_raw", 12),
    ("transformer.h.1.attn.c_proj.input", "hook_z", 1),
    ("gpt_neox.layers.1.attention.dense.input", "hook_z", 1),
    ("model.decoder.layers.1.self_attn.out_proj.input", "hook_z", 1),
    ("model.layers.7.mlp", "mlp_raw", 7),
    ("model.layers.7.mlp.input", "mlp_in", 7),
    ("model.layers.7.mlp.down_proj.input", "mlp_neurons", 7),
    ("model.layers.7.mlp.down_proj", "mlp_raw", 7),
    ("transformer.h.7.mlp.dense_4h_to_h.output", "mlp_out", 7),
    ("transformer.h.7.self_attention.dense.output", "attn_out", 7),
    ("model.decoder.layers.1.fc1.input", "mlp_in", 1),
    ("model.decoder.layers.1.fc2.input", "mlp_neurons", 1),
    ("model.decoder.layers.1.fc2", "mlp_raw", 1),
    ("transformer.blocks.1.ffn", "mlp_raw", 1),
    ("model.layers.7.pre_feedforward_layernorm.input", "resid_mid", 7),
    ("model.layers.7.pre_feedforward_layernorm.output", "mlp_in", 7),
    ("model.layers.7.post_feedforward_layernorm.output", "mlp_out", 7),
    ("transformer.h.7.ln_2.input", "resid_mid", 7),
    ("model.layers.7.input_layernorm.input", "resid_pre", 7),
    ("model.embed_tokens", "embed", 0),
    # sparsify
    ("layers.0", "resid_post", 0),
    ("layers_4", "resid_post", 4),
    ("layers.4.mlp", "mlp_raw", 4),
    ("h.4.attn", "attn_raw", 4),
    ("embed_tokens", "embed", 0),
    # dictionary_learning
    ("resid_post_layer_9", "resid_post", 9),
    ("mlp_out_layer_9", "mlp_raw", 9),
    ("attention_out_layer_9", "attn_raw", 9),
    ("attn_out_layer_9", "attn_raw", 9),
    ("resid_out_layer3", "resid_post", 3),
    # OpenMOSS
    ("L15R", "resid_post", 15),
    ("L15A", "attn_out", 15),
    ("L0M", "mlp_out", 0),
]


@pytest.mark.parametrize(("name", "site", "layer"), KNOWN)
def test_a_hook_name_means_a_site_and_a_layer(name: str, site: str, layer: int) -> None:
    assert sae_sites.locate(name) == (site, layer)
    assert site in SITES


@pytest.mark.parametrize("site", [site for site in SITES if site != "embed"])
def test_the_bare_name_of_a_site_means_it_at_no_layer(site: str) -> None:
    assert sae_sites.locate(site) == (site, None)


@pytest.mark.parametrize(
    "name",
    [
        None,
        "",
        "blocks.3.ln2.hook_normalized",
        "blocks.3.hook_mlp_in",  # two libraries mean two tensors by it
        "blocks.3.attn.hook_q",
        "blocks.3.hook_resid_post.extra",
        "blocks.-1.hook_resid_post",
        "blocks.x.hook_resid_post",
        "xblocks.3.hook_resid_post",
        "blocks.3.hook_resid_post\n",
        "blocks.٣.hook_resid_post",
        "blocks." + "9" * 5000 + ".hook_resid_post",
        "model.layers.3.self_attn.input",
        "model.layers.3.self_attn.q_proj.output",
        "model.layers.3.post_attention_layernorm.output",  # a model's name decides it
        "vision_tower.layers.3",
        "model.layers.3.fc1.output",
        "lm_head",
        "resid_post_layer_",
        "L15X",
    ],
)
def test_a_name_of_no_known_place_means_nothing(name: str | None) -> None:
    assert sae_sites.locate(name) == (None, None)


@pytest.mark.parametrize(
    ("model", "side", "site"),
    [
        ("google/gemma-2-2b", "output", "attn_out"),
        ("gemma-3-1b-it", "output", "attn_out"),
        ("gemma2-9b", "input", "attn_raw"),
        ("allenai/OLMo-2-1124-7B", "output", "attn_out"),
        ("gemma-2b", "output", "mlp_in"),
        ("google/gemma-7b-it", "input", "resid_mid"),
        ("meta-llama/Llama-3.1-8B", "output", "mlp_in"),
        ("Qwen/Qwen3-8B", "input", "resid_mid"),
        ("somebody/else", "output", None),
        (None, "output", None),
    ],
)
def test_the_norm_named_after_attention_is_read_by_the_model_it_is_in(
    model: str | None, side: str, site: str | None
) -> None:
    name = f"model.layers.4.post_attention_layernorm.{side}"
    assert sae_sites.locate(name, model) == ((site, 4) if site else (None, None))


@pytest.mark.parametrize(
    ("name", "is_lens"),
    [
        ("blocks.3.hook_resid_pre", True),
        ("hook_embed", True),
        ("model.layers.3", False),
        ("resid_post_layer_3", False),
        (None, False),
    ],
)
def test_names_of_transformer_lens_are_told_from_the_others(
    name: str | None, is_lens: bool
) -> None:
    assert sae_sites.is_lens_name(name) is is_lens
