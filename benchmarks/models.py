"""Checkpoints with random weights in the shape of a real model, made once in a scratch folder."""

from __future__ import annotations

import random
import string
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

VOCABULARY = 151_936


def half_billion(folder: Path) -> Path:
    """A bfloat16 checkpoint in the shape of Qwen2.5-0.5B: 24 layers, hidden 896, vocabulary 151,936."""
    if (folder / "model.safetensors").is_file():
        return folder
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        dtype=torch.bfloat16,
    )
    torch.set_default_dtype(torch.bfloat16)
    model = Qwen2ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    return folder


def _tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte going in, words going out: every id of the vocabulary decodes to some text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: i for i, character in enumerate(alphabet)}
    source = random.Random(0)
    while len(vocabulary) < VOCABULARY:
        word = "Ġ" + "".join(source.choices(string.ascii_lowercase, k=source.randint(4, 9)))
        vocabulary.setdefault(word, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)
