"""The families of the table: small random models with the spread of trained ones, and the real models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.worker import models
from tests.worker.batch.test_embeddings import ENCODERS, PLAIN, encoder_tokenizer
from transformers import CONFIG_MAPPING, AutoModel

from tools.real.models import GEMMA3, SMOLLM2

CONTEXT = 1024
_SIZE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.15,
}
_WINDOWS = {"sliding_window": 32, "layer_types": ["sliding_attention", "full_attention"] * 2}
_GPT2 = {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": CONTEXT, "n_inner": 128}
_EXPERTS = {
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
_LINEAR = {
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
_LONG_ROPE = {
    "rope_theta": 10000.0,
    "rope_type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 8.0, 8.0],
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("llama", {}),
    "Mistral": ("mistral", {"sliding_window": 64}),
    "Qwen2": ("qwen2", {}),
    "Qwen3": ("qwen3", {}),
    "Qwen3-MoE": ("qwen3_moe", _EXPERTS),
    "Gemma": ("gemma", {}),
    "Gemma 2": ("gemma2", {**_WINDOWS, "query_pre_attn_scalar": 16}),
    "Gemma 3": ("gemma3_text", {**_WINDOWS, "query_pre_attn_scalar": 16}),
    "GPT-2": ("gpt2", _GPT2),
    "GPT-NeoX": ("gpt_neox", {}),
    "GPT-J": ("gptj", {**_GPT2, "rotary_dim": 8}),
    "Phi": ("phi", {}),
    "Phi-3": ("phi3", {}),
    "Phi-3 longrope": (
        "phi3",
        {"rope_parameters": _LONG_ROPE, "original_max_position_embeddings": 512},
    ),
    "OLMo": ("olmo", {}),
    "OLMo 2": ("olmo2", {}),
    "Mixtral": ("mixtral", _EXPERTS),
    "gpt-oss": ("gpt_oss", {**_WINDOWS, **_EXPERTS}),
    "Granite": ("granite", {"residual_multiplier": 0.5, "logits_scaling": 2.0}),
    "Cohere": ("cohere", {}),
    "StarCoder2": ("starcoder2", {"sliding_window": 64}),
    "StableLM": ("stablelm", {}),
    "SmolLM3": ("smollm3", {}),
    "GLM": ("glm", {}),
    "OPT": ("opt", {"ffn_dim": 128, "word_embed_proj_dim": 64, "init_std": 0.15}),
    "Falcon": (
        "falcon",
        {"num_kv_heads": 2, "new_decoder_architecture": True, "parallel_attn": True},
    ),
    "Bloom": ("bloom", {"n_layer": 4, "n_head": 4}),
    "Jamba (hybrid)": (
        "jamba",
        {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2},
    ),
    "Qwen3-Next (hybrid)": ("qwen3_next", {**_EXPERTS, **_LINEAR}),
    "Mamba": ("mamba", {}),
}
"""Kinds of models by the names of their families, with what differs from `_SIZE` in their configuration."""

EMBEDDERS = {"BERT": "bert", "RoBERTa": "roberta", "DistilBERT": "distilbert", "MPNet": "mpnet"}


@dataclass(frozen=True, slots=True)
class RealRow:
    folder: Callable[[], Path]
    quantization: str


REAL = {
    "SmolLM2-135M-Instruct, bf16": RealRow(lambda: SMOLLM2.checkpoint, "FP16"),
    "SmolLM2-135M-Instruct, Q8": RealRow(lambda: SMOLLM2.checkpoint, "Q8"),
    "Gemma 3 270M, bf16": RealRow(lambda: GEMMA3.checkpoint, "FP16"),
    "Gemma 3 270M, Q8": RealRow(lambda: GEMMA3.checkpoint, "Q8"),
}


def save_family(name: str, folder: Path) -> Path:
    """A bfloat16 checkpoint of a family, the same at every call."""
    kind, fields = FAMILIES[name]
    size = {k: v for k, v in _SIZE.items() if not (k == "head_dim" and kind == "falcon")}
    return models.save_kind(
        kind, {**size, **fields}, folder, dtype=torch.bfloat16, is_trained=True, seed=name
    )


def save_embedder(name: str, folder: Path) -> Path:
    """A bfloat16 checkpoint of an embedding-only model, the same at every call."""
    kind = EMBEDDERS[name]
    config = CONFIG_MAPPING[kind](**{**PLAIN, **ENCODERS[kind][0]})
    with torch.random.fork_rng():
        torch.manual_seed(sum(name.encode()))
        model = AutoModel.from_config(config, dtype=torch.bfloat16)
        models.spread_as_trained(model)
    model.save_pretrained(folder)
    encoder_tokenizer().save_pretrained(folder)
    return folder
