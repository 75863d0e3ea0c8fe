from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from steerserve.errors import Refusal
from steerserve.files import weights
from tests.doubles import write_tensors
from tests.refusals import refusal_of

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "dtype": "bfloat16",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}


def folder(path: Path, config: dict[str, Any], *names: str) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    save_file({n: torch.zeros(4, 2) for n in names}, path / "model.safetensors")
    return path


def shape_of(path: Path, **config: Any) -> weights.ModelShape:
    return weights.read_weights(folder(path, config, "wte.weight")).shape


def test_a_folder_tells_its_tensors_and_figures(tmp_path: Path) -> None:
    names = ("model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight", "lm_head.weight")
    found = weights.read_weights(folder(tmp_path / "m", LLAMA, *names))
    assert (found.architecture, found.dtype, found.quantized) == (
        "LlamaForCausalLM",
        "bfloat16",
        None,
    )
    assert {t.name: (t.dtype, t.shape, t.size_bytes) for t in found.tensors} == dict.fromkeys(
        names, ("F32", (4, 2), 32)
    )
    assert found.shape == weights.ModelShape(2, 64, 128, 100, 2 * 2 * 16, 512)
    assert found.head is not None
    assert found.head.name == "lm_head.weight"


@pytest.mark.parametrize("has_copy", [True, False])
def test_shared_weights_count_once(tmp_path: Path, has_copy: bool) -> None:
    names = ["model.embed_tokens.weight", *(["lm_head.weight"] if has_copy else [])]
    config = {**LLAMA, "tie_word_embeddings": True}
    found = weights.read_weights(folder(tmp_path / "m", config, *names))
    assert [t.name for t in found.tensors] == ["model.embed_tokens.weight"]
    assert found.is_tied
    assert found.head is None


@pytest.mark.parametrize(
    ("config", "kv_values"),
    [
        ({"n_embd": 64, "n_head": 4, "n_layer": 3}, 2 * 64),
        ({"hidden_size": 64, "num_attention_heads": 4, "head_dim": 32}, 2 * 4 * 32),
        ({"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 1}, 2 * 16),
        ({"hidden_size": 64, "num_attention_heads": 4, "multi_query": True}, 2 * 16),
        (
            {
                "hidden_size": 64,
                "num_attention_heads": 4,
                "multi_query": True,
                "new_decoder_architecture": True,
                "num_kv_heads": 2,
            },
            2 * 2 * 16,
        ),
        (
            {
                "hidden_size": 64,
                "num_attention_heads": 4,
                "kv_lora_rank": 8,
                "qk_nope_head_dim": 16,
                "qk_rope_head_dim": 8,
                "v_head_dim": 20,
            },
            4 * 44,
        ),
        ({"text_config": {"hidden_size": 64, "num_attention_heads": 2}}, 2 * 64),
        ({"hidden_size": "64", "num_attention_heads": None}, 0),
    ],
)
def test_keys_and_values_are_counted_as_families_name_them(
    tmp_path: Path, config: dict[str, Any], kv_values: int
) -> None:
    assert shape_of(tmp_path / "m", **config).kv_values == kv_values


def test_layers_and_vocabulary_are_counted_where_nothing_names_them(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", {}, "h.0.mlp.weight", "h.4.mlp.weight", "wte.weight")
    found = weights.read_weights(path).shape
    assert (found.layers, found.vocabulary, found.max_context) == (5, 4, 2048)


def test_a_token_goes_through_several_experts(tmp_path: Path) -> None:
    experts = {"num_experts_per_tok": 8, "moe_intermediate_size": 768, "intermediate_size": 2048}
    assert shape_of(tmp_path / "m", **experts).intermediate == 8 * 768


def test_pickles_tell_their_size_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "torch_dtype": "float16"}))
    (tmp_path / "pytorch_model.bin").write_bytes(b"x" * 1000)
    found = weights.read_weights(tmp_path)
    assert (found.tensors, found.pickled_bytes) == ((), 1000)


def test_a_damaged_header_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{}")
    assert refusal_of(weights.read_weights, tmp_path).code == "INVALID_LOCAL_PATH"


def refused(path: Path) -> Refusal:
    refusal = refusal_of(weights.read_weights, path)
    assert refusal.code == "INVALID_LOCAL_PATH"
    return refusal


@pytest.mark.parametrize(
    ("name", "claimed"),
    [
        ("num_hidden_layers", 10**10),
        ("num_hidden_layers", 4097),
        ("hidden_size", 10**30),
        ("intermediate_size", 10**30),
        ("num_attention_heads", 10**30),
        ("head_dim", 10**30),
        ("vocab_size", 10**30),
        ("max_position_embeddings", 10**30),
    ],
)
def test_figures_that_no_model_has_are_refused(tmp_path: Path, name: str, claimed: int) -> None:
    path = folder(tmp_path / "m", {**LLAMA, name: claimed}, "wte.weight")
    assert "claims more than" in refused(path).message


def test_no_more_layers_are_counted_than_models_have(tmp_path: Path) -> None:
    assert "layers" in refused(folder(tmp_path / "many", {}, "h.999999.mlp.weight")).message
    # a number that no layer has counts as a name
    for digits in (11, 5000):
        path = folder(tmp_path / str(digits), {}, f"layers.{'9' * digits}.mlp.weight")
        assert weights.read_weights(path).shape.layers == 0


@pytest.mark.parametrize("shape", [(), (4,), (2, 2, 2)])
def test_an_embedding_that_is_no_matrix_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    (tmp_path / "config.json").write_text("{}")
    save_file({"model.embed_tokens.weight": torch.zeros(shape)}, tmp_path / "model.safetensors")
    assert "no matrix" in refused(tmp_path).message


def test_an_empty_embedding_with_endless_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for rows in (1 << 39, 10**30):
        entry = {"dtype": "F32", "shape": [rows, 0], "data_offsets": [0, 0]}
        write_tensors(tmp_path / "model.safetensors", {"wte.weight": entry}, b"")
        refused(tmp_path)


def test_names_in_a_configuration_are_cut_and_cleaned(tmp_path: Path) -> None:
    config = {"architectures": ["A\n\x1b[31m" + "x" * 10_000], "dtype": "torch." + "y" * 10_000}
    found = weights.read_weights(folder(tmp_path / "m", config, "wte.weight"))
    assert found.architecture is not None
    assert found.dtype is not None
    assert (len(found.architecture), found.architecture[:5]) == (255, "A[31m")
    assert (len(found.dtype), set(found.dtype)) == (14, {"y"})


def test_a_configuration_with_more_layers_than_the_weights_have_is_refused(tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    kept = folder(tmp_path / "kept", {"num_hidden_layers": 2}, name)
    assert weights.read_weights(kept).shape.layers == 2
    holed = folder(tmp_path / "holed", {"num_hidden_layers": 99}, name)
    assert "99 layers, the weights have 2" in refused(holed).message
