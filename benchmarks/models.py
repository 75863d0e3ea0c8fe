"""Checkpoints with random weights in the shape of a real model, made once in a scratch folder."""

from __future__ import annotations

import random
import string
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

VOCABULARY = 151_936
CONTEXT = 8192
CHAT = "{% for message in messages %}{{ message.content }}{% endfor %}"
"""The chat template: a chat has as many tokens as its texts have bytes."""

SIZES: dict[str, dict[str, Any]] = {
    "none": {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "vocab_size": 512,
        "tie_word_embeddings": True,
    },
    "tiny": {
        "hidden_size": 512,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 32_000,
        "tie_word_embeddings": True,
    },
    "91m": {
        "hidden_size": 640,
        "intermediate_size": 1792,
        "num_hidden_layers": 16,
        "num_attention_heads": 10,
        "num_key_value_heads": 2,
        "vocab_size": 32_000,
        "tie_word_embeddings": True,
    },
    "0.5b": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": True,
    },
    "7b": {
        "hidden_size": 3584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152_064,
        "tie_word_embeddings": False,
    },
}
"""Shapes: next to nothing, 81M, 91M, Qwen2.5-0.5B and Qwen2.5-7B."""


_SHAPE: dict[str, Any] = {
    "hidden_size": 640,
    "intermediate_size": 1792,
    "num_hidden_layers": 16,
    "num_attention_heads": 10,
    "num_key_value_heads": 2,
    "vocab_size": 32_000,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_WIDE_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen2": ("qwen2", {}),
    "Qwen3": ("qwen3", {"head_dim": 128}),
    "Gemma 2": ("gemma2", _WIDE_HEADS),
    "Gemma 3": ("gemma3_text", _WIDE_HEADS),
    "GPT-2": ("gpt2", {"n_embd": 640, "n_layer": 16, "n_head": 10, "n_positions": CONTEXT}),
    "GPT-NeoX": ("gpt_neox", {"intermediate_size": 2560}),
}
"""Architectures in about the shape of 91M, with heads as their models have them."""


def family(name: str, folder: Path) -> Path:
    """A bfloat16 checkpoint of one of FAMILIES."""
    kind, fields = FAMILIES[name]
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](**{**_SHAPE, **fields})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    _tokenizer(int(config.vocab_size)).save_pretrained(folder)
    return folder


def half_billion(folder: Path) -> Path:
    """A bfloat16 checkpoint in the shape of Qwen2.5-0.5B: 24 layers, hidden 896, vocabulary 151,936."""
    return sized("0.5b", folder)


def sized(size: str, folder: Path, tokens: int = 0) -> Path:
    """A bfloat16 checkpoint of one of SIZES; its tokenizer has `tokens` tokens, or as many as the model."""
    if (folder / "config.json").is_file():
        return folder
    torch.manual_seed(0)
    config = Qwen2Config(
        **SIZES[size],
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        eos_token_id=None,
        dtype=torch.bfloat16,
    )
    torch.set_default_dtype(torch.bfloat16)
    # a card draws billions of weights in a moment
    with torch.device("cuda:0" if torch.cuda.is_available() else "cpu"):
        model = Qwen2ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    _tokenizer(tokens or config.vocab_size).save_pretrained(folder)
    return folder


def _tokenizer(size: int) -> PreTrainedTokenizerFast:
    """One token a byte going in, words going out: every id of the vocabulary decodes to some text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: i for i, character in enumerate(alphabet)}
    source = random.Random(0)
    while len(vocabulary) < size:
        word = "Ġ" + "".join(source.choices(string.ascii_lowercase, k=source.randint(4, 9)))
        vocabulary.setdefault(word, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=CHAT)
