"""What a checkpoint claims of itself, read from its headers, its configuration and its name; and what it can never be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steerserve.messages import SaeSource
from steerserve.worker.sae import formats
from tests.worker.sae import checkpoints as disk
from tests.worker.sae.checkpoints import D_IN, D_SAE, K, Written
from tests.worker.sae.computed import refused

# ---------------------------------------------------------------- claims

CLAIMED: dict[str, tuple[Callable[..., Written], dict[str, Any], dict[str, Any]]] = {
    "saelens": (
        disk.saelens,
        {"kind": "topk"},
        {
            "format": "saelens",
            "architecture": "topk",
            "dtype": "float32",
            "hook_name": "blocks.1.hook_resid_post",
            "site": "resid_post",
            "layer": 1,
            "model_name": "gemma-2-2b",
            "l0": K,
            "is_centred": None,
            "normalisation": "none",
        },
    ),
    "saelens, L0 in the name": (
        disk.saelens,
        {"kind": "jumprelu"},
        {"l0": 40, "architecture": "jumprelu"},
    ),
    "saelens, not centred": (
        disk.saelens,
        {"metadata": {"model_from_pretrained_kwargs": {"center_writing_weights": False}}},
        {"is_centred": False},
    ),
    "saelens, only the name of Hugging Face is known": (
        disk.saelens,
        {"hook_name": "somewhere.new", "metadata": {"hf_hook_name": "model.layers.4.output"}},
        {"site": "resid_post", "layer": 4, "hook_name": "model.layers.4.output", "needs": []},
    ),
    "saelens, a place nobody knows": (
        disk.saelens,
        {"hook_name": "blocks.4.hook_somewhere"},
        {"site": None, "hook_name": "blocks.4.hook_somewhere", "needs": ["site"]},
    ),
    "older": (
        disk.saelens_older,
        {},
        {"site": "resid_pre", "layer": 8, "model_name": "gpt2-small", "format": "saelens"},
    ),
    "mistudio": (
        disk.mistudio,
        {},
        {"format": "mistudio", "layer": 12, "architecture": "jumprelu"},
    ),
    "gemma scope res": (
        disk.gemma_scope,
        {},
        {
            "format": "gemma-scope",
            "site": "resid_post",
            "layer": 20,
            "l0": 71,
            "model_name": "gemma-2-2b",
            "hook_name": "blocks.20.hook_resid_post",
        },
    ),
    "gemma scope mlp": (
        disk.gemma_scope,
        {"kind": "mlp", "size": "9b-it"},
        {
            "site": "mlp_out",
            "hook_name": "blocks.20.hook_mlp_out",
            "model_name": "gemma-2-9b-it",
        },
    ),
    "gemma scope att": (
        disk.gemma_scope,
        {"kind": "att", "inside": "layer_3/width_65k/canonical"},
        {"site": "hook_z", "hook_name": "blocks.3.attn.hook_z", "layer": 3, "l0": None},
    ),
    "gemma scope 2": (
        disk.gemma_scope_2,
        {},
        {
            "format": "gemma-scope-2",
            "site": "resid_post",
            "layer": 12,
            "model_name": "google/gemma-3-1b-pt",
            "l0": None,
        },
    ),
    "gemma scope 2 attention": (
        disk.gemma_scope_2,
        {"kind": "attn_out_all"},
        {"site": "hook_z", "layer": 12},
    ),
    "gemma scope 2 mlp, no config": (
        disk.gemma_scope_2,
        {"kind": "mlp_out", "has_config": False},
        {"site": "mlp_out", "layer": 12, "hook_name": "blocks.12.hook_mlp_out"},
    ),
    "llama scope": (
        disk.llama_scope,
        {},
        {
            "format": "llama-scope",
            "site": "resid_post",
            "layer": 15,
            "l0": 50,
            "normalisation": "expected_average_only_in",
            "warnings": [],
            "model_name": "meta-llama/Llama-3.1-8B",
        },
    ),
    "llama scope mlp": (
        disk.llama_scope,
        {"kind": "M"},
        {"site": "mlp_out", "layer": 15},
    ),
    "llama scope attention": (
        disk.llama_scope,
        {"kind": "A"},
        {"site": "attn_out", "layer": 15},
    ),
    "llamascopium": (
        disk.llamascopium,
        {},
        {"format": "llamascopium", "site": "resid_post", "layer": 9, "architecture": "jumprelu"},
    ),
    "dictionary_learning": (
        disk.dictionary_learning,
        {"dict_class": "BatchTopKSAE"},
        {
            "format": "dictionary_learning",
            "architecture": "BatchTopKSAE",
            "site": "resid_post",
            "layer": 12,
            "l0": K,
            "model_name": "google/gemma-2-2b",
            "warnings": [],
        },
    ),
    "sparsify": (
        disk.sparsify,
        {},
        {
            "format": "sparsify",
            "site": "resid_post",
            "layer": 4,
            "l0": K,
            "model_name": "EleutherAI/pythia-70m",
            "hook_name": "layers.4",
        },
    ),
    "goodfire": (
        disk.goodfire,
        {},
        {
            "format": "goodfire",
            "site": "resid_post",
            "layer": 19,
            "model_name": "Llama-3.1-8B-Instruct",
        },
    ),
    "qresearch": (
        disk.qresearch,
        {},
        {"format": "qresearch", "layer": 19, "dtype": "bfloat16"},
    ),
    "qwen scope": (
        disk.qwen_scope,
        {},
        {
            "format": "qwen-scope",
            "site": "resid_post",
            "layer": 7,
            "l0": K,
            "model_name": "Qwen/Qwen3-1.7B-Base",
        },
    ),
    "attention": (
        disk.attention,
        {},
        {"format": "attention-sae", "hook_name": "blocks.5.attn.hook_z", "layer": 5},
    ),
}


@pytest.mark.parametrize("case", CLAIMED)
def test_claims_are_what_the_files_and_the_name_say(tmp_path: Path, case: str) -> None:
    write, options, wanted = CLAIMED[case]
    claims = formats.inspect(write(tmp_path, **options).source())
    assert {name: getattr(claims, name) for name in wanted} == wanted
    assert (claims.d_in, claims.d_sae, claims.reason) == (D_IN, D_SAE, None)
    assert all(len(shape) <= 2 for shape in claims.tensors.values())


def test_a_file_means_the_same_as_its_folder(tmp_path: Path) -> None:
    written = disk.gemma_scope(tmp_path)
    file = f"{written.path}/params.npz"
    alone = formats.inspect(SaeSource(file, f"{written.name}/params.npz"))
    assert alone == formats.inspect(written.source())
    assert alone.size_bytes == Path(file).stat().st_size
    local = formats.inspect(SaeSource(file, file))
    assert (local.layer, local.l0, local.site) == (20, 71, None)


def test_a_file_that_is_none_of_the_format_s_is_not_taken_for_it(tmp_path: Path) -> None:
    written = disk.saelens_older(tmp_path)
    path = str(written.path / "sparsity.safetensors")
    assert refused(SaeSource(path, path), formats.inspect).code == "SAE_LOAD_FAILED"


# ---------------------------------------------------------------- what can never be attached

REASONS: dict[str, tuple[Callable[..., Written], dict[str, Any], str]] = {
    "gemma scope transcoder": (disk.gemma_scope, {"kind": "transcoders"}, "transcoder"),
    "gemma scope 2 transcoder": (disk.gemma_scope_2, {"kind": "transcoder_all"}, "transcoder"),
    "gemma scope 2 affine": (
        disk.gemma_scope_2,
        {"extra": {"affine_skip_connection": np.zeros((D_IN, D_IN), np.float32)}},
        "transcoder",
    ),
    "gemma scope 2 across layers": (
        disk.gemma_scope_2,
        {"p": disk.arrays("jumprelu") | {"W_dec": np.zeros((D_SAE, 3, D_IN), np.float32)}},
        "many layers",
    ),
    "saelens transcoder": (disk.saelens, {"kind": "skip_transcoder"}, "skip transcoder"),
    "saelens temporal": (disk.saelens, {"kind": "temporal"}, "whole sequence"),
    "saelens matching pursuit": (disk.saelens, {"kind": "matching_pursuit"}, "search"),
    "one head": (disk.saelens, {"metadata": {"hook_head_index": 3}}, "attention head 3"),
    "a scaling factor that is denied": (
        disk.saelens_older,
        {"extra": {"scaling_factor": np.full(D_SAE, 1.5, np.float32)}},
        "scaling_factor",
    ),
    "llama scope transcoder": (disk.llama_scope, {"kind": "TC"}, "transcoder"),
    "llamascopium clt": (disk.llamascopium, {"sae_type": "clt"}, "many layers"),
    "llamascopium lorsa": (disk.llamascopium, {"sae_type": "lorsa"}, "attention"),
    "llamascopium molt": (disk.llamascopium, {"sae_type": "molt"}, "linear transforms"),
    "llamascopium crosscoder": (disk.llamascopium, {"sae_type": "crosscoder"}, "several places"),
    "llamascopium glu": (disk.llamascopium, {"use_glu_encoder": True}, "gated linear unit"),
    "sparsify transcoder": (disk.sparsify, {"transcode": True}, "transcoder"),
    "sparsify skip": (
        disk.sparsify,
        {"extra": {"W_skip": np.zeros((D_IN, D_IN), np.float32)}},
        "transcoder",
    ),
    "circuit-tracer": (disk.mwhanna, {}, "transcoder"),
    "circuit-tracer, no config": (disk.mwhanna, {"config": "README.md"}, "transcoder"),
    "cross layer": (disk.cross_layer, {}, "many layers"),
    "temporal": (disk.temporal, {}, "whole sequence"),
}


@pytest.mark.parametrize("case", REASONS)
def test_what_is_no_autoencoder_of_one_place_is_recognised_and_refused(
    tmp_path: Path, case: str
) -> None:
    write, options, said = REASONS[case]
    written = write(tmp_path, **options)
    claims = formats.inspect(written.source())
    assert claims.reason
    assert said in claims.reason
    assert (claims.d_in, claims.d_sae, claims.needs) == (D_IN, D_SAE, [])
    refusal = refused(written.source())
    assert (refusal.code, refusal.message) == ("SAE_INCOMPATIBLE", claims.reason)


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("google/gemma-scope-2b-pt-res/layer_7/width_16k/average_l0_71", 7),
        ("someone/saes/blocks.11.hook_resid_post", 11),
        ("someone/saes/h.4/x.pt", 4),
        ("fnlp/Llama3_1-8B-Base-LXR-8x/Llama3_1-8B-Base-L15R-8x", 15),
        ("someone/Llama-SAE-l19.pt", 19),
        ("ctigges/pythia-70m-deduped__res-sm_processed/3-res-sm", 3),
        ("Qwen/SAE-Res-Qwen3-1.7B-Base-W32K-L0_50/other.pt", None),
        ("someone/saes/average_l0_71/sae.pt", None),
        ("someone/bilayer3/sae.pt", None),
        ("someone/saes/sae.pt", None),
    ],
)
def test_a_name_tells_a_layer(tmp_path: Path, name: str, layer: int | None) -> None:
    written = disk.raw(tmp_path, disk.tensors(disk.arrays()))
    assert formats.inspect(SaeSource(str(written.path), name)).layer == layer


def test_weights_below_their_configuration_are_read_with_it(tmp_path: Path) -> None:
    written = disk.llama_scope(tmp_path)
    inside = "checkpoints/final.safetensors"
    source = SaeSource(f"{written.path}/{inside}", f"{written.name}/{inside}")
    assert formats.inspect(source) == formats.inspect(written.source())


@pytest.mark.parametrize(
    ("submodule", "io", "site"),
    [
        ("gpt_neox.layers.3.mlp", "in", "mlp_in"),
        ("gpt_neox.layers.3.mlp", "out", "mlp_raw"),
        ("resid_post_layer_3", "in", "resid_pre"),
        ("gpt_neox.layers.3.somewhere", "in", None),
    ],
)
def test_the_side_of_a_module_that_dictionary_learning_reads(
    tmp_path: Path, submodule: str, io: str, site: str | None
) -> None:
    written = disk.dictionary_learning(tmp_path, "AutoEncoder")
    path = next(Path(written.path).rglob("config.json"))
    config = json.loads(path.read_text())
    config["trainer"] |= {"submodule_name": submodule, "layer": 3}
    config["buffer"] = {**config.get("buffer", {}), "io": io}
    path.write_text(json.dumps(config))
    claims = formats.inspect(written.source())
    assert claims.site == site
    assert ("site" in claims.needs) is (site is None)


def test_a_folder_that_only_speaks_of_transcoders_holds_an_sae(tmp_path: Path) -> None:
    written = disk.goodfire(tmp_path / "not-a-transcoder")
    assert formats.inspect(written.source()).reason is None
