"""GGUF files with the weights of checkpoints, so that llama.cpp runs the same model: of those of `models`, and of real
ones that have a GGUF file already, whose vocabulary and settings are copied."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

import gguf
from gguf import (
    GGMLQuantizationType,
    GGUFReader,
    GGUFValueType,
    GGUFWriter,
    LlamaFileType,
    TokenType,
    quants,
)

FILE_TYPES = {"BF16": LlamaFileType.MOSTLY_BF16, "Q8_0": LlamaFileType.MOSTLY_Q8_0}
BLANK = "\u2581"
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Modules of a layer of Qwen2, and what GGUF calls them."""


def written(checkpoint: Path, label: str, target: Path) -> Path:
    """Write the checkpoint in BF16 or Q8_0, unless the file exists."""
    if target.is_file():
        return target
    config = json.loads((checkpoint / "config.json").read_text())
    partial = target.with_suffix(".partial")
    writer = GGUFWriter(partial, "qwen2")
    writer.add_name(checkpoint.name)
    writer.add_file_type(FILE_TYPES[label])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _sizes(writer, config)
    _vocabulary(writer, config["vocab_size"])
    _write_tensors(writer, ((_renamed(name), of) for name, of in _tensors(checkpoint)), label)
    return partial.rename(target)


def written_like(original: Path, checkpoint: Path, label: str, target: Path) -> Path:
    """Write the checkpoint in BF16 or Q8_0 unless the file exists. All else is as in `original`, a GGUF file of the same
    model.

    Raises:
        ValueError: the checkpoint has other tensors than the original.
    """
    if target.is_file():
        return target
    read = GGUFReader(original)
    config = json.loads((checkpoint / "config.json").read_text())
    architecture = read.fields["general.architecture"].contents()
    tensors = dict(_as_llama_cpp_has_them(architecture, config, checkpoint))
    shapes = {one.name: tuple(map(int, reversed(one.shape))) for one in read.tensors}
    if shapes != {name: values.shape for name, values in tensors.items()}:
        raise ValueError(f"{checkpoint} and {original} have different tensors")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    writer = GGUFWriter(partial, architecture)
    for field in read.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in (
            gguf.Keys.General.ARCHITECTURE,
            gguf.Keys.General.FILE_TYPE,
        ):
            kind, *_, of_items = field.types * 2
            items = of_items if kind == GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, items)
    writer.add_file_type(FILE_TYPES[label])
    _write_tensors(writer, tensors.items(), label)
    return partial.rename(target)


def _write_tensors(
    writer: GGUFWriter, tensors: Iterable[tuple[str, np.ndarray]], label: str
) -> None:
    for name, values in tensors:
        # llama.cpp takes vectors in float32 only
        is_vector = values.ndim == 1
        wanted = GGMLQuantizationType.F32 if is_vector else GGMLQuantizationType[label]
        writer.add_tensor(name, quants.quantize(values, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _as_llama_cpp_has_them(
    architecture: str, config: dict[str, Any], checkpoint: Path
) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors as llama.cpp's own converter writes them: pairs of a rotation beside each other for Llama, and norms
    of Gemma with the 1 that transformers adds to them."""
    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(numbers[architecture], config["num_hidden_layers"])
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    for name, values in _tensors(checkpoint):
        module = name.split(".")[-2]
        if architecture == "llama" and module in heads:
            halves = values.reshape(config[heads[module]], 2, -1, values.shape[1])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        if architecture.startswith("gemma") and module.endswith("norm"):
            values = values + 1
        yield names.get_name(name, try_suffixes=(".weight", ".bias")) or name, values


def _sizes(writer: GGUFWriter, config: dict[str, Any]) -> None:
    rope = config.get("rope_parameters") or config
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def _vocabulary(writer: GGUFWriter, size: int) -> None:
    """One token a byte going in, a word for every other token. No token ends a text."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    texts = ["<unk>", "<s>", "</s>", *byte_tokens]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    rest = size - len(texts)
    texts += [f"{BLANK}word{number}" for number in range(rest)]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(texts)
    writer.add_token_scores([0.0] * len(kinds) + [-1e6] * rest)
    writer.add_token_types([*kinds, *[TokenType.NORMAL] * rest])
    writer.add_vocab_size(size)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)


def _tensors(checkpoint: Path) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors of a checkpoint as float32. The output matrix of tied checkpoints is the embedding."""
    for file in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                values = opened.get_tensor(name).to(torch.float32).numpy()
                yield name, values


def _renamed(name: str) -> str:
    if not name.startswith("model.layers."):
        return {
            "model.embed_tokens.weight": "token_embd.weight",
            "model.norm.weight": "output_norm.weight",
            "lm_head.weight": "output.weight",
        }[name]
    _, _, layer, rest = name.split(".", 3)
    module, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{NAMES[module]}.{kind}"
