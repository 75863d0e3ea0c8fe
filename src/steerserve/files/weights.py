"""The weights in a model folder, and how the configuration says they are used. No tensor is read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from steerserve.files import local
from steerserve.rules.models.precision import StoredTensor, quantization_config

_INPUT_EMBEDDING = re.compile(
    r"(?:^|\.)(?:embed_tokens|wte|word_embeddings|embed_in|tok_embeddings)\.weight$"
)
_OUTPUT_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output)\.weight$")
_CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
LAYERS_MAXIMUM = 1 << 12
COUNT_MAXIMUM = 1 << 24
"""The largest accepted number in a configuration, above all existing vocabularies and contexts. The bound matters
because these numbers are multiplied, and lists are made with such a length."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes that a configuration names. `kv_values` counts the numbers that the KV cache keeps for one token in one
    layer: the keys and values of all heads."""

    layers: int
    hidden: int
    intermediate: int
    vocabulary: int
    kv_values: int
    max_context: int


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a checkpoint. If the weights are pickles, `tensors` is empty and only their size `pickled_bytes`
    is known, because reading a pickle runs its code. `dtype` is the dtype that the configuration names."""

    architecture: str | None
    dtype: str | None
    quantized: dict[str, object] | None
    tensors: tuple[StoredTensor, ...]
    pickled_bytes: int
    shape: ModelShape
    is_tied: bool

    @property
    def head(self) -> StoredTensor | None:
        """The output head; None if it is not a tensor of its own."""
        heads = [t for t in self.tensors if t.layer is None and _OUTPUT_HEAD.search(t.name)]
        return heads[0] if heads and not self.is_tied else None


class UnlikelyFigure(ValueError):
    """The configuration has a number that no model has."""


def read_weights(path: Path) -> Weights:
    """The weights of a model folder. The call blocks while it reads the headers.

    Raises:
        Refusal: INVALID_LOCAL_PATH.
    """
    config = local.configuration(path)
    files = local.weight_files(path)
    stored = local.stored_tensors(files)
    with local.reading(path):
        pickled = sum(f.stat().st_size for f in files if f.suffix != ".safetensors")
    try:
        return weights_of(config, stored, pickled)
    except UnlikelyFigure as error:
        raise local.bad_path(str(error), str(path)) from None


def weights_of(
    config: Mapping[str, object], tensors: Sequence[StoredTensor], pickled_bytes: int = 0
) -> Weights:
    """The weights that a configuration and the headers of its files describe.

    Raises:
        UnlikelyFigure: a number in the configuration is impossible.
    """
    text = _text(config)
    is_tied = _is_tied(config, tensors)
    stored = tuple(
        tensor
        for tensor in tensors
        if not is_tied or tensor.layer is not None or not _OUTPUT_HEAD.search(tensor.name)
    )
    dtype = text.get("dtype") or text.get("torch_dtype")
    dtype = dtype or config.get("dtype") or config.get("torch_dtype")
    return Weights(
        architecture=local.architecture(config),
        dtype=(local.dtype(dtype) or "").removeprefix("torch.") or None,
        quantized=quantization_config(config),
        tensors=stored,
        pickled_bytes=pickled_bytes,
        shape=_shape(text, stored),
        is_tied=is_tied,
    )


def _text(config: Mapping[str, object]) -> Mapping[str, object]:
    """The part of a configuration that describes the language model."""
    for key in ("text_config", "decoder"):
        inner = config.get(key)
        if isinstance(inner, Mapping):
            return inner
    return config


def _is_tied(config: Mapping[str, object], stored: Sequence[StoredTensor]) -> bool:
    """Whether the input embedding is also the output head: the configuration says so, or the weights have no head."""
    if any(_OUTPUT_HEAD.search(t.name) for t in stored if t.layer is None):
        return config.get("tie_word_embeddings") is True
    return True


def _shape(text: Mapping[str, object], stored: Sequence[StoredTensor]) -> ModelShape:
    hidden = _count(text, "hidden_size", "n_embd", "d_model")
    heads = _count(text, "num_attention_heads", "n_head", "n_heads", "num_heads")
    layers = _count(text, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    held = 1 + max((t.layer for t in stored if t.layer is not None), default=-1)
    if 0 < held < layers:
        raise UnlikelyFigure(f"the configuration names {layers} layers, the weights have {held}")
    layers = layers or held
    embeddings = [t for t in stored if _INPUT_EMBEDDING.search(t.name)]
    if any(len(t.shape) != 2 for t in embeddings):
        raise UnlikelyFigure(f"{embeddings[0].name[:200]} is no matrix")
    rows = embeddings[0].shape[0] if embeddings else 0
    return ModelShape(
        layers=_bounded("layers", layers, LAYERS_MAXIMUM),
        hidden=hidden,
        intermediate=_intermediate(text, hidden),
        vocabulary=_count(text, "vocab_size")
        or _bounded("rows of the embedding", rows, COUNT_MAXIMUM),
        kv_values=_kv_values(text, hidden, heads),
        max_context=_count(text, *_CONTEXT_NAMES) or 2048,
    )


def _intermediate(text: Mapping[str, object], hidden: int) -> int:
    """The width of the largest activation in an MLP. With experts, it is the sum over the experts that one token
    passes."""
    wide = _count(text, "intermediate_size", "n_inner", "ffn_dim") or 4 * hidden
    experts = max(1, _count(text, "num_experts_per_tok"))
    each = _count(text, "moe_intermediate_size")
    return max(wide, experts * (each or (wide if experts > 1 else 0)))


def _kv_values(text: Mapping[str, object], hidden: int, heads: int) -> int:
    if not heads:
        return 0
    # compressed keys and values are cached in their expanded form, per head
    if _count(text, "kv_lora_rank"):
        names = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        return heads * sum(_count(text, name) for name in names)
    width = _count(text, "head_dim") or hidden // heads
    is_multi_query = text.get("multi_query") is True and not text.get("new_decoder_architecture")
    kv_heads = 1 if is_multi_query else _count(text, "num_key_value_heads", "num_kv_heads")
    return 2 * (kv_heads or heads) * width


def _count(text: Mapping[str, object], *names: str) -> int:
    """The first of the fields that holds a positive whole number; 0 if none does.

    Raises:
        UnlikelyFigure: the number is more than COUNT_MAXIMUM.
    """
    for name in names:
        value = text.get(name)
        if type(value) is int and value > 0:
            return _bounded(name, value, COUNT_MAXIMUM)
    return 0


def _bounded(what: str, value: int, most: int) -> int:
    if value > most:
        raise UnlikelyFigure(f"the folder claims more than {most} for its {what}")
    return value
