"""What a GGUF model's header says, and how much context the memory for its KV cache gives."""

from __future__ import annotations

import math
from dataclasses import dataclass

from steerserve.errors import Refusal
from steerserve.rules.gguf_types import CACHE_BYTES

CELLS = 256
"""The engine rounds its KV cache up to whole multiples of this many tokens."""

BATCH = 512
"""Tokens of one pass; a request that was cancelled runs to the end of its pass."""

EMBED_BATCH = 2048
"""The same where texts are embedded, which must fit in one pass."""

LOGITS_BYTES = 1 << 29
"""The engine computes float32 logits for every token of a text it embeds; they may take this much, and as much again to
be copied."""

_LOGIT_WIDTH = 4


@dataclass(frozen=True, slots=True)
class Header:
    """What a model's header says. Lengths in tokens, sizes in bytes; None where it says nothing.

    `kv_heads` has one number per layer; `missing_bytes` are those that the tensors need and the files do not have.
    """

    architecture: str
    name: str | None
    parameters: int
    context_length: int | None
    layers: int
    hidden_size: int
    heads: int
    kv_heads: tuple[int, ...]
    key_length: int
    value_length: int
    vocabulary: int
    longest_token: int
    label: str
    chat_template: str | None
    bos_id: int | None
    eos_id: int | None
    bos_token: str | None
    eos_token: str | None
    is_embedding_only: bool
    shards: int
    size_bytes: int
    missing_bytes: int
    tensor_bytes: int
    embedding_bytes: int


@dataclass(frozen=True, slots=True)
class Room:
    """The KV cache of a model in tokens: `context` for one row, `pool` for all rows together."""

    context: int
    pool: int


def kv_bytes_per_token(header: Header, cache_type: str) -> int:
    """Bytes of KV cache that one token takes over all layers, `cache_type` as in GGUF_KV_CACHE_TYPE."""
    elements = sum(header.kv_heads) * (header.key_length + header.value_length)
    return math.ceil(elements * CACHE_BYTES[cache_type])


def longest_context(header: Header, ceiling: int, default: int) -> int:
    """Tokens of context that the file and the ceiling (0 for none) allow; an encoder that says nothing takes one
    pass."""
    named = header.context_length or (BATCH if header.is_embedding_only else 0)
    return min((n for n in (named, ceiling) if n), default=default)


def pass_tokens(header: Header, context: int, *, embeds: bool) -> int:
    """Tokens of one pass of a model with so much context; `embeds` says whether it is started to embed texts.

    An encoder reads a whole text at once, and has no logits that bound it.
    """
    if header.is_embedding_only:
        return context
    if not embeds:
        return BATCH
    affordable = LOGITS_BYTES // (_LOGIT_WIDTH * max(1, header.vocabulary))
    return min(context, EMBED_BATCH, max(BATCH, affordable))


def logits_bytes(header: Header, tokens: int, *, embeds: bool) -> int:
    """Bytes that the logits of a pass over a text to embed take, and their copy; an encoder has none."""
    if not embeds or header.is_embedding_only:
        return 0
    return 2 * _LOGIT_WIDTH * header.vocabulary * tokens


def least_cache_bytes(header: Header, cache_type: str, ceiling: int, least: int) -> int:
    """Bytes of the KV cache of the least context; `ceiling` is GGUF_CONTEXT_LENGTH, 0 for none."""
    tokens = min(least, longest_context(header, ceiling, least))
    return -(-tokens // CELLS) * CELLS * kv_bytes_per_token(header, cache_type)


def room(
    header: Header, *, kv_bytes: int, cache_type: str, ceiling: int, slots: int, least: int
) -> Room:
    """The context that is served and the cache that it is served from.

    Args:
        kv_bytes: memory for the cache.
        ceiling: GGUF_CONTEXT_LENGTH, 0 for none.
        slots: rows that run at once; the cache never exceeds a context for each.
        least: the context that must fit, lowered to what the model and the ceiling allow.

    Raises:
        Refusal: INSUFFICIENT_MEMORY.
    """
    wanted = longest_context(header, ceiling, least)
    most = -(-wanted // CELLS) * CELLS * slots
    each = kv_bytes_per_token(header, cache_type)
    pool = min(most, kv_bytes // each // CELLS * CELLS) if each else most
    context = min(wanted, pool)
    least = min(least, wanted)
    if context < least:
        raise Refusal(
            "INSUFFICIENT_MEMORY",
            f"the KV cache holds {pool} tokens here; at least {least} are needed",
            min_context_tokens=least,
            model_max_context_tokens=header.context_length,
        )
    return Room(context, pool)
