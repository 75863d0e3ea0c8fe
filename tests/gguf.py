"""Tiny GGUF models, written in milliseconds.

The counting model gives the same text in every precision. Its blocks do nothing and its embedding is one-hot, so the
next token depends only on the last token: one -> two -> ... -> twenty -> end of turn. After any other token it writes
"one".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

import gguf
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType, quants

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
WORDS = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
).split()
CONTEXT = 256
WIDTH = 512
END = "<|im_end|>"
_FILE_TYPES = {
    "F32": LlamaFileType.ALL_F32,
    "F16": LlamaFileType.MOSTLY_F16,
    "BF16": LlamaFileType.MOSTLY_BF16,
    "Q8_0": LlamaFileType.MOSTLY_Q8_0,
    "Q4_0": LlamaFileType.MOSTLY_Q4_0,
}
_BLANK = "\u2581"


def counted(count: int, first: str = "one") -> str:
    """The text that the counting model writes in `count` tokens, beginning with the word `first`."""
    start = WORDS.index(first)
    return "".join(f" {word}" for word in WORDS[start : start + count])


def write(
    path: Path,
    label: str = "F32",
    *,
    kind: str = "counting",
    template: str | None = CHATML,
    context: int = CONTEXT,
    split: int = 0,
    seed: int = 0,
    layers: int = 1,
    last: str = END,
    **values: Any,
) -> Path:
    """Write a model file. With `split`, write several files with `split` tensors each. `kind` is counting, random or
    encoder. `last` is the token that the counting model writes after its last word.

    `values` are further strings for the header. `__` in a name stands for `.`.
    """
    writer = GGUFWriter(path, "bert" if kind == "encoder" else "llama", split_max_tensors=split)
    writer.add_name(f"tiny-{kind}")
    writer.add_file_type(_FILE_TYPES[label])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for key, value in values.items():
        writer.add_string(key.replace("__", "."), value)
    random = np.random.default_rng(seed)
    if kind == "encoder":
        tensors = _encoder(writer, random, context)
    else:
        last = last if kind == "counting" else ""
        tensors = _decoder(writer, random, context, last, layers)
        if template is not None:
            writer.add_chat_template(template)
    for name, values_ in tensors:
        # vectors are never quantized
        kind_ = GGMLQuantizationType.F32 if values_.ndim == 1 else GGMLQuantizationType[label]
        writer.add_tensor(name, quants.quantize(values_, kind_), raw_dtype=kind_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if path.exists() else next(iter(sorted(path.parent.glob(f"{path.stem}-00001-*"))))


def vocabulary() -> list[tuple[str, float, TokenType]]:
    """The text, score and type of each token. Every beginning of a word is a token too, because the tokenizer merges
    step by step."""
    found = [("<unk>", 0.0, TokenType.UNKNOWN)]
    found += [(text, 0.0, TokenType.CONTROL) for text in ("<s>", "</s>")]
    found += [(f"<0x{byte:02X}>", 0.0, TokenType.BYTE) for byte in range(256)]
    found += [(text, 0.0, TokenType.CONTROL) for text in ("<|im_start|>", END)]
    pieces = [_BLANK, *(chr(code) for code in range(33, 127)), "\n"]
    beginnings = [f"{_BLANK}{word}"[:n] for word in WORDS for n in range(2, len(word) + 2)]
    for rank, text in enumerate(dict.fromkeys([*pieces, *beginnings])):
        score = -1000.0 if rank < len(pieces) else -float(rank)
        found.append((text, score, TokenType.NORMAL))
    return found


def _decoder(
    writer: GGUFWriter, random: np.random.Generator, context: int, last: str, layers: int
) -> Iterator[tuple[str, np.ndarray]]:
    tokens = vocabulary()
    texts = [text for text, _, _ in tokens]
    ids = {text: i for i, text in enumerate(texts)}
    _sizes(writer, context, layers)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // 4)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(texts)
    writer.add_token_scores([score for _, score, _ in tokens])
    writer.add_token_types([kind for _, _, kind in tokens])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(ids[END])
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    embedding = _normal(random, len(tokens), WIDTH)
    output = _normal(random, len(tokens), WIDTH)
    if last:
        embedding = np.eye(len(tokens), WIDTH, dtype=np.float32)
        output = _table(ids, last)
    yield "token_embd.weight", embedding
    for i in range(layers):
        yield from _block(f"blk.{i}.", random, bool(last))
    yield "output_norm.weight", np.ones(WIDTH, np.float32)
    yield "output.weight", output


def _table(ids: dict[str, int], last: str) -> np.ndarray:
    """Output weights [tokens, width]. After token t, they make the token that follows t the most probable."""
    chain = [ids[f"{_BLANK}{word}"] for word in WORDS]
    following = dict.fromkeys(range(len(ids)), chain[0])
    following.update(zip(chain, [*chain[1:], ids[last]], strict=True))
    table = np.zeros((len(ids), WIDTH), np.float32)
    for token, follower in following.items():
        # RMS normalisation scales a one-hot vector to the length sqrt(width)
        table[follower, token] = 16.0 / np.sqrt(WIDTH)
    return table


def _block(
    prefix: str, random: np.random.Generator, is_idle: bool
) -> Iterator[tuple[str, np.ndarray]]:
    for name in ("attn_norm", "ffn_norm"):
        yield f"{prefix}{name}.weight", np.ones(WIDTH, np.float32)
    shapes = {"attn_q": WIDTH, "attn_k": WIDTH // 2, "attn_v": WIDTH // 2, "attn_output": WIDTH}
    shapes |= {"ffn_gate": WIDTH, "ffn_up": WIDTH, "ffn_down": WIDTH}
    for name, rows in shapes.items():
        weights = _normal(random, rows, WIDTH)
        if is_idle and name in ("attn_output", "ffn_down"):
            weights[:] = 0
        yield f"{prefix}{name}.weight", weights


def _encoder(
    writer: GGUFWriter, random: np.random.Generator, context: int
) -> Iterator[tuple[str, np.ndarray]]:
    texts = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"{_BLANK}{word}" for word in WORDS)]
    _sizes(writer, context, 1)
    writer.add_layer_norm_eps(1e-5)
    writer.add_causal_attention(False)
    writer.add_vocab_size(len(texts))
    writer.add_token_type_count(2)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(texts)
    writer.add_token_types([TokenType.CONTROL] * 4 + [TokenType.NORMAL] * len(WORDS))
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_sep_token_id(3)
    yield "token_embd.weight", _normal(random, len(texts), WIDTH)
    yield "token_types.weight", _normal(random, 2, WIDTH)
    yield "position_embd.weight", _normal(random, context, WIDTH)
    names = "attn_q attn_k attn_v attn_output ffn_up ffn_down".split()
    for name in [f"blk.0.{name}" for name in names]:
        yield f"{name}.weight", _normal(random, WIDTH, WIDTH)
        yield f"{name}.bias", np.zeros(WIDTH, np.float32)
    for name in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"):
        yield f"{name}.weight", np.ones(WIDTH, np.float32)
        yield f"{name}.bias", np.zeros(WIDTH, np.float32)


def _sizes(writer: GGUFWriter, context: int, layers: int) -> None:
    writer.add_context_length(context)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(4)


def _normal(random: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return random.standard_normal((rows, columns), np.float32) * np.float32(0.05)


# ------------------------------------------------------------------ the twin of a checkpoint


def write_twin(checkpoint: Path, path: Path) -> Path:
    """The GGUF model, in float32, of a Llama checkpoint in float32. It has no tokenizer, so it reads token ids."""
    config = json.loads((checkpoint / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = GGUFWriter(path, "llama")
    writer.add_file_type(LlamaFileType.ALL_F32)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, values in load_file(checkpoint / "model.safetensors").items():
        assert values.dtype == np.float32, name
        made = values
        if name.endswith("q_proj.weight"):
            made = _interleaved(values, heads)
        if name.endswith("k_proj.weight"):
            made = _interleaved(values, kv_heads)
        known = names.get_name(name, (".weight",))
        assert known is not None, name
        writer.add_tensor(known, made)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _interleaved(weights: np.ndarray, heads: int) -> np.ndarray:
    """Rows [heads * size, width] in the order of llama.cpp: it rotates neighbouring rows of a head, transformers those
    of its two halves."""
    halves = weights.reshape(heads, 2, -1, weights.shape[-1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weights.shape))
