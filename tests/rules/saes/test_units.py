"""Listings as the repositories of each family have them: which units they hold, and what the paths say."""

from __future__ import annotations

import time
from typing import Any

import pytest

from steerserve.errors import Refusal
from steerserve.rules.models.precision import StoredTensor
from steerserve.rules.models.repository import RepoFile
from steerserve.rules.saes import names as sae_names
from steerserve.rules.saes import shapes as sae_shapes
from steerserve.rules.saes import units as sae_units
from steerserve.rules.saes.units import UnitListing
from tests.refusals import refusal_of

USELESS = ["README.md", ".gitattributes", "LICENSE"]


def listing(repo_id: str, *paths: str) -> UnitListing:
    return sae_units.units(repo_id, [RepoFile(path, 10) for path in (*paths, *USELESS)])


FAMILIES: list[tuple[str, list[str], dict[str, Any]]] = [
    (
        "jbloom/GPT2-Small-SAEs-Reformatted",
        [
            "blocks.8.hook_resid_pre/cfg.json",
            "blocks.8.hook_resid_pre/sae_weights.safetensors",
            "blocks.8.hook_resid_pre/sparsity.safetensors",
        ],
        {
            "path": "blocks.8.hook_resid_pre",
            "format": "saelens",
            "layer": 8,
            "site": "resid_pre",
            "files": 2,
        },
    ),
    (
        "jbloom/GPT2-Small-OAI-v5-32k-resid-mid-SAEs",
        ["v5_32k_layer_3.pt/cfg.json", "v5_32k_layer_3.pt/sae_weights.safetensors"],
        {
            "path": "v5_32k_layer_3.pt",
            "format": "saelens",
            "layer": 3,
            "width": "32k",
            "site": "resid_mid",
        },
    ),
    (
        "jbloom/Gemma-2b-Residual-Stream-SAEs",
        [
            "gemma_2b_blocks.6.hook_resid_post_16384_anthropic/cfg.json",
            "gemma_2b_blocks.6.hook_resid_post_16384_anthropic/sae_weights.safetensors",
        ],
        {"layer": 6, "width": "16k", "site": "resid_post"},
    ),
    (
        "tommmcgrath/gpt2-small-mlp-out-saes",
        [
            "sae_group_gpt2_blocks.4.hook_mlp_out_24576:openai/cfg.json",
            "sae_group_gpt2_blocks.4.hook_mlp_out_24576:openai/sae_weights.safetensors",
        ],
        {"layer": 4, "width": "24k", "site": "mlp_out"},
    ),
    (
        "ctigges/pythia-70m-deduped__res-sm_processed",
        ["4-res-sm/cfg.json", "4-res-sm/sae_weights.safetensors"],
        {"layer": 4, "site": "resid_post"},
    ),
    (
        "chanind/gemma-2-2b-batch-topk-matryoshka-saes-w-32k-l0-40",
        [
            "standard/blocks.5.hook_resid_post/cfg.json",
            "standard/blocks.5.hook_resid_post/runner_cfg.json",
            "standard/blocks.5.hook_resid_post/sae_weights.safetensors",
        ],
        {"layer": 5, "width": "32k", "l0": 40, "files": 2},
    ),
    (
        "me/one-sae",
        ["cfg.json", "sae_weights.safetensors"],
        {"path": ".", "format": "saelens", "layer": None},
    ),
    (
        "google/gemma-scope-2b-pt-res",
        ["layer_12/width_16k/average_l0_82/params.npz"],
        {
            "path": "layer_12/width_16k/average_l0_82",
            "format": "gemma-scope",
            "layer": 12,
            "width": "16k",
            "l0": 82,
            "site": "resid_post",
        },
    ),
    (
        "google/gemma-scope-9b-pt-att-canonical",
        ["layer_3/width_131k/canonical/params.npz"],
        {"width": "131k", "l0": None, "site": "hook_z"},
    ),
    (
        "google/gemma-scope-2b-pt-res",
        ["embedding/width_4k/average_l0_6/params.npz"],
        {"layer": 0, "width": "4k", "site": "embed"},
    ),
    (
        "google/gemma-scope-2b-pt-transcoders",
        ["layer_3/width_16k/average_l0_11/params.npz"],
        {"reason": "a transcoder"},
    ),
    (
        "google/gemma-scope-2-4b-pt",
        [
            "resid_post_all/layer_9_width_262k_l0_small/config.json",
            "resid_post_all/layer_9_width_262k_l0_small/params.safetensors",
        ],
        {
            "path": "resid_post_all/layer_9_width_262k_l0_small",
            "format": "gemma-scope-2",
            "layer": 9,
            "width": "262k",
            "l0": "small",
            "site": "resid_post",
            "files": 2,
        },
    ),
    (
        "google/gemma-scope-2-1b-it",
        ["attn_out/layer_9_width_1m_l0_big_seed_1/params.safetensors"],
        {"width": "1m", "l0": "big", "site": "hook_z", "files": 1},
    ),
    (
        "google/gemma-scope-2-1b-it",
        ["transcoder_all/layer_9_width_16k_l0_big_affine/params.safetensors"],
        {"reason": "a transcoder"},
    ),
    (
        "google/gemma-scope-2-1b-it",
        ["clt/width_262k_l0_big/params_layer_3.safetensors"],
        {"reason": "a cross-layer transcoder"},
    ),
    (
        "fnlp/Llama3_1-8B-Base-LXR-8x",
        [
            "Llama3_1-8B-Base-L5R-8x/hyperparams.json",
            "Llama3_1-8B-Base-L5R-8x/lm_config.json",
            "Llama3_1-8B-Base-L5R-8x/checkpoints/final.safetensors",
        ],
        {
            "path": "Llama3_1-8B-Base-L5R-8x",
            "format": "llama-scope",
            "layer": 5,
            "width": "32k",
            "site": "resid_post",
            "files": 3,
        },
    ),
    (
        "fnlp/Llama3_1-8B-Base-LXTC-8x",
        [
            "Llama3_1-8B-Base-L5TC-8x/hyperparams.json",
            "Llama3_1-8B-Base-L5TC-8x/checkpoints/final.safetensors",
        ],
        {"reason": "a transcoder"},
    ),
    (
        "fnlp/Llama-Scope-R1-Distill",
        [
            "800M-Slimpajama-0-OpenR1-Math-220k/L15R/config.json",
            "800M-Slimpajama-0-OpenR1-Math-220k/L15R/sae_weights.safetensors",
        ],
        {"format": "openmoss", "layer": 15, "width": None, "site": "resid_post"},
    ),
    (
        "canrager/saebench_gemma-2-2b_width-2pow14_date-0108",
        [
            "TopK/resid_post_layer_12/trainer_3/ae.pt",
            "TopK/resid_post_layer_12/trainer_3/config.json",
            "TopK/resid_post_layer_12/trainer_3/eval_results.json",
        ],
        {
            "path": "TopK/resid_post_layer_12/trainer_3",
            "format": "dictionary_learning",
            "layer": 12,
            "width": "16k",
            "site": "resid_post",
            "files": 2,
        },
    ),
    (
        "EleutherAI/sae-llama-3-8b-32x",
        ["config.json", "layers.12/cfg.json", "layers.12/sae.safetensors"],
        {
            "path": "layers.12",
            "format": "sparsify",
            "layer": 12,
            "width": "131k",
            "site": "resid_post",
            "files": 3,
        },
    ),
    (
        "EleutherAI/sae-pythia-70m-32k",
        ["layers.3.mlp/cfg.json", "layers.3.mlp/sae.safetensors"],
        {"layer": 3, "width": "32k", "site": "mlp_raw"},
    ),
    (
        "EleutherAI/skip-transcoder-Llama-3.2-1B-131k",
        ["layers.3.mlp/cfg.json", "layers.3.mlp/sae.safetensors"],
        {"reason": "a transcoder"},
    ),
    (
        "Goodfire/Llama-3.3-70B-Instruct-SAE-l50",
        ["Llama-3.3-70B-Instruct-SAE-l50.pt"],
        {
            "path": "Llama-3.3-70B-Instruct-SAE-l50.pt",
            "format": "goodfire",
            "layer": 50,
            "site": "resid_post",
        },
    ),
    (
        "qresearch/DeepSeek-R1-Distill-Llama-8B-SAE-l19",
        ["DeepSeek-R1-Distill-Llama-8B-SAE-l19.pt"],
        {"format": "qresearch", "layer": 19},
    ),
    (
        "Qwen/SAE-Res-Qwen3-8B-Base-W64K-L0_50",
        ["layer12.sae.pt"],
        {
            "path": "layer12.sae.pt",
            "format": "qwen-scope",
            "layer": 12,
            "width": "65k",
            "l0": 50,
            "site": "resid_post",
        },
    ),
    (
        "ckkissane/attn-saes-gpt2-small-all-layers",
        [
            "gpt2-small_L7_Hcat_z_lr1.20e-03_l11.00e+00_ds24576_bs4096_v9.pt",
            "gpt2-small_L7_Hcat_z_lr1.20e-03_l11.00e+00_ds24576_bs4096_v9_cfg.json",
        ],
        {"format": "attention-sae", "layer": 7, "width": "24k", "site": "hook_z", "files": 2},
    ),
    (
        "mwhanna/qwen3-0.6b-transcoders",
        ["layer_3.safetensors", "wanb-config.yaml", "config.yaml"],
        {"reason": "a transcoder", "layer": 3},
    ),
    (
        "mntss/clt-gemma-2-2b-2.5M",
        [f"W_{kind}_{n}.safetensors" for kind in ("enc", "dec") for n in range(26)]
        + ["config.yaml"],
        {"path": ".", "reason": "a cross-layer transcoder", "files": 52},
    ),
    (
        "canrager/temporalSAEs",
        ["gemma/layer_12/temporal/conf.yaml", "gemma/layer_12/temporal/latest_ckpt.safetensors"],
        {"reason": "a temporal SAE", "layer": 12},
    ),
    ("me/dump", ["run-3/my_sae.pt"], {"path": "run-3/my_sae.pt", "format": "unknown"}),
]


@pytest.mark.parametrize(("repo_id", "paths", "expected"), FAMILIES)
def test_each_family_is_one_unit_for_each_sae(
    repo_id: str, paths: list[str], expected: dict[str, Any]
) -> None:
    (unit,) = listing(repo_id, *paths).units
    found = {
        "path": unit.path,
        "format": unit.format,
        "files": len(unit.files),
        "layer": unit.hints.layer,
        "width": unit.hints.width,
        "l0": unit.hints.l0,
        "site": unit.hints.site,
    }
    if reason := expected.pop("reason", None):
        assert (unit.reason or "").startswith(reason)
    else:
        assert unit.reason is None
    assert {name: found[name] for name in expected} == expected
    assert unit.size_bytes == 10 * len(unit.files)
    assert unit.weights == unit.files[0].path


def test_what_is_no_sae_is_no_unit() -> None:
    found = listing(
        "me/model",
        "config.json",
        "model-00001-of-00002.safetensors",
        "pytorch_model.bin",
        "optimizer.pt",
        "training_args.bin",
        "rng_state_0.pth",
        "sparsity.safetensors",
        "adapter_model.safetensors",
    )
    assert found.units == ()
    assert len(found.others) == 8 + len(USELESS)


def test_numbers_and_widths_are_ordered_by_their_amounts() -> None:
    widths = ["1m", "16k", "131k", "2k", "512"]
    paths = [f"layer_{n}/width_{w}/average_l0_9/params.npz" for n in (10, 2) for w in widths]
    units = listing("google/gemma-scope-2b-pt-res", *paths).units
    ordered = ["512", "2k", "16k", "131k", "1m"]
    assert [unit.path for unit in units] == [
        f"layer_{n}/width_{w}/average_l0_9" for n in (2, 10) for w in ordered
    ]


def test_hundreds_of_units_are_listed_quickly_in_the_order_of_layers() -> None:
    paths = [
        f"layer_{layer}/width_{width}/average_l0_{l0}/params.npz"
        for layer in range(26)
        for width in ("16k", "65k", "1m")
        for l0 in range(10, 250, 16)
    ]
    began = time.thread_time()
    found = listing("google/gemma-scope-2b-pt-res", *paths)
    chosen = sae_units.select(found.units, layer=2, width="65K", query="l0_1 layer")
    assert time.thread_time() - began < 5
    assert len(found.units) == len(paths) > 1000
    assert [u.hints.layer for u in found.units[:45]] == [0] * 45
    assert [u.hints.layer for u in found.units] == sorted(u.hints.layer or 0 for u in found.units)
    assert {(u.hints.layer, u.hints.width) for u in chosen} == {(2, "65k")}
    assert chosen
    assert all("l0_1" in u.path for u in chosen)


@pytest.mark.parametrize(
    "path",
    [
        "{n}/W_enc_{n}.safetensors",
        "W_enc_{n}.safetensors",
        "layer_{n}.pt",
        "a-{n}/" * 60 + "x.npz",
    ],
)
def test_a_hostile_listing_takes_no_time(path: str) -> None:
    began = time.thread_time()
    found = listing("a/b", *(path.format(n=n) for n in range(10_000)))
    assert sae_units.select(found.units, query="zz") == []
    with pytest.raises(Refusal):
        found.find("nothing")
    assert time.thread_time() - began < 20


def test_units_are_selected_by_site() -> None:
    found = listing(
        "x/y",
        *(
            f"{name}/{file}"
            for name in ("layers.1", "layers.1.mlp")
            for file in ("cfg.json", "sae.safetensors")
        ),
    )
    assert [u.path for u in sae_units.select(found.units, site="mlp_raw")] == ["layers.1.mlp"]
    assert sae_units.select(found.units, site="embed") == []


# ------------------------------------------------------------------ what a path names

SCOPE = [
    f"layer_{layer}/width_16k/average_l0_{l0}/params.npz"
    for layer, l0 in ((3, 20), (3, 59), (4, 70))
]


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("layer_3/width_16k/average_l0_20", "layer_3/width_16k/average_l0_20"),
        ("layer_3/width_16k/average_l0_20/", "layer_3/width_16k/average_l0_20"),
        ("layer_3/width_16k/average_l0_59/params.npz", "layer_3/width_16k/average_l0_59"),
        ("layer_4", "layer_4/width_16k/average_l0_70"),
    ],
)
def test_a_unit_is_named_by_its_path_its_files_or_the_only_folder(path: str, named: str) -> None:
    assert listing("google/gemma-scope-2b-pt-res", *SCOPE).find(path).path == named


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("layer_3/width_16k/average_l0_21", "layer_3/width_16k/average_l0_20"),
        ("layer_3", "layer_3/width_16k/average_l0_20"),
        ("../../etc/passwd", "layer_3/width_16k/average_l0_20"),
        ("README.md", "layer_3/width_16k/average_l0_20"),
        ("layer_3/width_16k/average_l0_20/params.npz/x", "layer_3/width_16k/average_l0_20"),
    ],
)
def test_another_path_is_refused_naming_units_near_it(path: str, near: str) -> None:
    refusal = refusal_of(lambda: listing("google/gemma-scope-2b-pt-res", *SCOPE).find(path))
    assert (refusal.code, refusal.param) == ("VALIDATION_ERROR", "file_path")
    assert refusal.details["near"][0] == near


def test_a_file_that_units_share_names_none_of_them() -> None:
    paths = [f"layers.{n}/{f}" for n in (1, 2) for f in ("cfg.json", "sae.safetensors")]
    found = listing("x/y", "config.json", *paths)
    with pytest.raises(Refusal):
        found.find("config.json")
    assert found.find("layers.2/cfg.json").path == "layers.2"
    assert "config.json" not in [file.path for file in found.others]


# ------------------------------------------------------------------ small things


@pytest.mark.parametrize(
    ("d_sae", "label"),
    [
        (512, "512"),
        (1536, "1536"),
        (4096, "4k"),
        (16384, "16k"),
        (24576, "24k"),
        (32768, "32k"),
        (65536, "65k"),
        (131072, "131k"),
        (262144, "262k"),
        (1 << 20, "1m"),
    ],
)
def test_widths_are_written_as_people_write_them(d_sae: int, label: str) -> None:
    assert sae_names.width_label(d_sae) == label


@pytest.mark.parametrize(
    ("tags", "config", "model"),
    [
        (["sae", "base_model:google/gemma-2-2b"], None, "google/gemma-2-2b"),
        (["base_model:finetune:meta-llama/Llama-3.1-8B"], None, "meta-llama/Llama-3.1-8B"),
        ([], {"model": "EleutherAI/pythia-70m"}, "EleutherAI/pythia-70m"),
        ([], {"model": 7}, None),
        ([], None, None),
    ],
)
def test_the_model_is_named_by_the_card_or_the_top_configuration(
    tags: list[str], config: dict[str, Any] | None, model: str | None
) -> None:
    assert sae_units.model_of(tags, config) == model


def stored(**shapes: tuple[int, ...]) -> list[StoredTensor]:
    return [
        StoredTensor(name.replace("__", "."), "BF16", shape, 2) for name, shape in shapes.items()
    ]


@pytest.mark.parametrize(
    "tensors",
    [
        stored(W_enc=(16, 64), W_dec=(64, 16), b_enc=(64,), b_dec=(16,)),
        stored(W_enc=(64, 16), W_dec=(16, 64), b_enc=(64,), b_dec=(16,)),
        stored(w_enc=(16, 64), w_dec=(64, 16), b_dec=(16,)),
        stored(encoder__weight=(64, 16), decoder__weight=(16, 64)),
        stored(encoder__weight=(64, 16), W_dec=(64, 16), encoder__bias=(64,)),
        stored(W_enc=(16, 64), W_dec=(64, 16), b_gate=(64,), r_mag=(64,), b_dec=(16,)),
        stored(sae__W_E=(16, 64), sae__W_D=(64, 16), sae__b_E=(64,)),
    ],
)
def test_a_width_is_read_from_shapes_however_they_are_stored(tensors: list[StoredTensor]) -> None:
    assert sae_shapes.width_of(tensors) == sae_shapes.Width(16, 64, "bfloat16")


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        (stored(model__embed_tokens__weight=(100, 16)), "no encoder and decoder"),
        (stored(W_enc=(16, 64), W_dec=(64, 3, 16)), "two axes"),
        (stored(W_enc=(16, 64), W_dec=(64, 32)), "transcoder"),
        (stored(W_enc=(16, 64), W_dec=(64, 16), W_skip=(16, 16)), "skip connection"),
        (stored(W_enc=(0, 64), W_dec=(64, 0), b_enc=(64,)), "empty"),
        ([], "no encoder and decoder"),
    ],
)
def test_what_is_no_autoencoder_is_refused_by_its_shapes(
    tensors: list[StoredTensor], why: str
) -> None:
    with pytest.raises(Refusal, match=why) as refused:
        sae_shapes.width_of(tensors)
    assert refused.value.code == "SAE_INCOMPATIBLE"


@pytest.mark.parametrize(
    ("paths", "unit", "form", "files"),
    [
        (("A/CFG.JSON", "A/Sae_Weights.SafeTensors"), "A", "saelens", 2),
        (("A/Hyperparams.json", "A/CHECKPOINTS/FINAL.safetensors"), "A", "llama-scope", 2),
        (("LAYER3.SAE.PT",), "LAYER3.SAE.PT", "qwen-scope", 1),
        (("L5.PT", "L5_CFG.json"), "L5.PT", "attention-sae", 2),
    ],
)
def test_files_are_recognised_in_any_letter_case(
    paths: tuple[str, ...], unit: str, form: str, files: int
) -> None:
    (only,) = listing("acme/loud", *paths, "MODEL.SAFETENSORS").units
    assert (only.path, only.format, len(only.files)) == (unit, form, files)


def test_of_configurations_that_differ_in_letter_case_the_exact_name_counts() -> None:
    weights = "a/sae_weights.safetensors"
    (exact,) = listing("acme/two", weights, "a/cfg.json", "a/CFG.json").units
    assert [file.path for file in exact.files] == [weights, "a/cfg.json"]
    (unclear,) = listing("acme/two", weights, "a/Cfg.json", "a/CFG.json").units
    assert (unclear.format, unclear.weights) == ("unknown", weights)
