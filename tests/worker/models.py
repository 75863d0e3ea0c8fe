"""Tiny random checkpoints of many architectures, with a byte-level tokenizer, as folders that load offline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedTokenizerFast,
)

VOCABULARY = 320
CONTEXT = 256
WINDOW = 12
"""Sliding windows are shorter than most prompts, so that a mask that ignores them changes the text."""

_CORPUS = (
    "the boats were coming home and the other fishermen stood there with their baskets",
    "ça va là-bas où l'été était très très chaud, über die Brücke",
    "\U0001f600\U0001f603\U0001f604 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd",
    "漢字仮名交じり文 한국어 текст עברית",
)
_PLAIN: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": False,
    # wide weights make attention sharp and the text varied, so that a wrong mask shows
    "initializer_range": 0.25,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
_HYBRID = {
    "num_hidden_layers": 3,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}
_GROUPED = {"num_kv_heads": 2, "new_decoder_architecture": True, "parallel_attn": True}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_LONG_ROPE: dict[str, Any] = {
    "rope_theta": 10000.0,
    "rope_type": "longrope",
    "short_factor": [1.0, 1.0, 1.0, 1.0],
    "long_factor": [1.0, 2.0, 4.0, 8.0],
}

MASSIVE = (5, 17)
"""Channels of the residual stream with massive activations, in models that are spread as trained ones."""
MASSIVE_FACTOR = 400
NORM_SPREAD = 0.8
"""The standard deviation of the logarithms of the weights of norms."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    # heads for which there are compiled functions
    "llama_wide": ("llama", {"head_dim": 16}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "mistral": ("mistral", {"sliding_window": WINDOW}),
    "gemma2": ("gemma2", {**_HYBRID, "query_pre_attn_scalar": 8}),
    "gemma3": ("gemma3_text", {**_HYBRID, "query_pre_attn_scalar": 8}),
    "gpt2": ("gpt2", _GPT2),
    "gpt_neox": ("gpt_neox", {}),
    "phi": ("phi", {}),
    "phi3": ("phi3", {}),
    "phi3_sliding": ("phi3", {"sliding_window": WINDOW}),
    "phi3_longrope": (
        "phi3",
        {"rope_parameters": _LONG_ROPE, "original_max_position_embeddings": 64},
    ),
    "opt": ("opt", {"ffn_dim": 64, "word_embed_proj_dim": 32, "init_std": 0.25}),
    "falcon": ("falcon", _GROUPED),
    "falcon_alibi": ("falcon", {"alibi": True, "num_kv_heads": 1}),
    "gpt_oss": ("gpt_oss", {**_HYBRID, **_EXPERTS}),
    "mixtral": ("mixtral", _EXPERTS),
    "olmo2": ("olmo2", {}),
    "stablelm": ("stablelm", {}),
    "granite": ("granite", {"residual_multiplier": 0.5, "logits_scaling": 2.0}),
    "starcoder2": ("starcoder2", {"sliding_window": WINDOW}),
    "cohere": ("cohere", {}),
    "gptj": ("gptj", {**_GPT2, "rotary_dim": 4}),
    "gpt_neo": (
        "gpt_neo",
        {
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": WINDOW,
        },
    ),
    # a window that the short check at load cannot fill, but a request can
    "gpt_neo_wide": (
        "gpt_neo",
        {
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 48,
        },
    ),
    "bloom": ("bloom", {"n_layer": 2, "n_head": 4}),
    "mpt": ("mpt", {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": CONTEXT}),
    "mamba": ("mamba", {}),
    "mamba2": ("mamba2", {"head_dim": 16, "num_heads": 4, "n_groups": 1, "state_size": 8}),
    "rwkv": ("rwkv", {"context_length": CONTEXT}),
    # layers with attention between recurrent ones
    "jamba": ("jamba", {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2}),
    "lfm2": ("lfm2", {"full_attn_idxs": [1]}),
    "falcon_h1": (
        "falcon_h1",
        {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_state": 8, "mamba_d_head": 8},
    ),
    "qwen3_5": (
        "qwen3_5_text",
        {
            "layer_types": ["linear_attention", "full_attention"],
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
        },
    ),
    # a cache that the library cannot make by itself
    "minimax": ("minimax", {"layer_types": ["linear_attention", "full_attention"]}),
    # recurrent states that the modules keep
    "recurrent_gemma": (
        "recurrent_gemma",
        {"num_hidden_layers": 3, "attention_window_size": WINDOW, "lru_width": 32},
    ),
    # a model without a cache of any kind
    "openai_gpt": ("openai-gpt", {**_GPT2}),
    # an encoder under the name of a language model
    "bert": ("bert", {}),
}

SERVED = (
    "llama llama_wide qwen2 qwen3 mistral gemma2 gemma3 gpt2 gpt_neox phi phi3 phi3_sliding opt falcon gpt_oss mixtral "
    "olmo2 stablelm granite starcoder2 cohere gptj"
).split()
"""Architectures whose rows share passes."""

ALONE = [name for name in VARIANTS if name not in (*SERVED, "bert")]
"""Architectures whose rows are stepped one at a time, or whose long rows are."""


def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with every byte, and merges that cut through characters and words."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    core.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        show_progress=False,
        special_tokens=["<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    core.train_from_iterator(_CORPUS * 3, trainer)
    assert core.get_vocab_size() == VOCABULARY
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<bos>",
        eos_token="<eos>",
        clean_up_tokenization_spaces=False,
    )


def save(
    variant: str,
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    is_trained: bool = False,
    **more: Any,
) -> Path:
    """A random checkpoint of the variant, the same at every call; `more` are other values of its configuration. With
    `is_trained` its numbers are spread as those of trained models are."""
    kind, fields = VARIANTS[variant]
    return save_kind(
        kind, {**fields, **more}, folder, dtype=dtype, is_trained=is_trained, seed=variant
    )


def save_kind(
    kind: str,
    fields: Mapping[str, Any],
    folder: Path,
    *,
    dtype: torch.dtype,
    is_trained: bool,
    seed: str,
) -> Path:
    """A random checkpoint of a kind of model, as `save` makes one of a variant."""
    plain = {k: v for k, v in _PLAIN.items() if not (k == "head_dim" and kind == "falcon")}
    config = CONFIG_MAPPING[kind](**{**plain, **fields})
    with torch.random.fork_rng():
        torch.manual_seed(sum(seed.encode()))
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        if is_trained:
            spread_as_trained(model)
    model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=1)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@torch.no_grad()
def spread_as_trained(model: Any) -> None:
    """Give a random model what trained ones have and random ones lack: a few channels of the residual stream that are
    hundreds of times the others at the first token (Sun et al. 2024, Massive Activations in Large Language Models), and
    weights of norms that differ by orders of magnitude, small in these channels. The first token is `<bos>`, number 0."""
    embedding = model.get_input_embeddings().weight
    embedding[0, list(MASSIVE)] = MASSIVE_FACTOR * embedding.std() * embedding.new_tensor([1, -0.4])
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if not type(module).__name__.endswith("Norm") or weight is None:
            continue
        shift = 1 - weight.mean().round()  # norms of Gemma add 1 to their weights
        spread = torch.exp(NORM_SPREAD * torch.randn(len(weight)))
        if len(weight) == embedding.shape[1]:
            spread[list(MASSIVE)] *= 0.05
        weight.copy_(spread - shift)


def sentence_pieces() -> PreTrainedTokenizerFast:
    """A tokenizer as Llama 2 has one: it puts a blank before every text, and its decoder strips a blank at the beginning
    of what it decodes. Bytes stand for characters without a token, and `<end>` is special without being the EOS."""
    special = ["<bos>", "<eos>", "<end>", "<unk>"]
    merges = [("o", "n"), ("on", "e"), ("▁", "one"), ("t", "w"), ("tw", "o"), ("▁", "two")]
    merges += [("t", "h"), ("th", "r"), ("thr", "e"), ("thre", "e"), ("▁", "three")]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefhinorstw.,"]
    tokens += [first + second for first, second in merges]
    vocabulary = {token: place for place, token in enumerate(dict.fromkeys(tokens))}
    core = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    core.normalizer = normalizers.Sequence(  # type: ignore[assignment]
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    core.decoder = decoders.Sequence(  # type: ignore[assignment]
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    core.add_special_tokens(special)
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    )


def save_chain(
    folder: Path, tokenizer: PreTrainedTokenizerFast, follows: Mapping[str, str]
) -> Path:
    """A checkpoint that writes after each of these tokens the one that follows it."""
    save("llama", folder, hidden_size=64)
    tokenizer.save_pretrained(folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight", "lm_head.weight")):
            tensor.zero_()
    embedding = torch.nn.functional.normalize(tensors["model.embed_tokens.weight"])
    for first, second in follows.items():
        one, other = tokenizer.convert_tokens_to_ids([first, second])
        tensors["lm_head.weight"][other] += 4 * embedding[one]
    save_file(tensors, file, metadata={"format": "pt"})
    return folder
