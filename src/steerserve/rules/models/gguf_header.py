"""The header of a GGUF model, and how much context fits into the memory for the KV cache."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from steerserve.errors import Refusal
from steerserve.rules.models.gguf_types import CACHE_BYTES

CELLS = 256
"""The engine rounds its KV cache up to whole multiples of this many tokens."""

BATCH = 512
"""The tokens in one pass. A cancelled request still runs to the end of its pass."""

EMBED_BATCH = 2048
"""The most tokens in one pass of an engine that embeds texts. Each text must fit into one pass."""

LOGITS_BYTES = 1 << 29
"""The most bytes for the logits of one pass that embeds. The engine computes float32 logits for every token of such a
text, and needs as many bytes again for a copy."""

_LOGIT_WIDTH = 4


@dataclass(frozen=True, slots=True)
class FileStamp:
    """A file as its header was read. A file that was changed or replaced since then has another stamp. `changed_ns` is
    the time of the last change, in nanoseconds."""

    path: str
    device: int
    inode: int
    size: int
    changed_ns: int

    @classmethod
    def from_stat(cls, path: str, facts: os.stat_result) -> FileStamp:
        return cls(path, facts.st_dev, facts.st_ino, facts.st_size, facts.st_ctime_ns)


@dataclass(frozen=True, slots=True)
class Header:
    """The facts in a model's header. Lengths are in tokens, sizes in bytes. A fact that the header does not have is
    None.

    `kv_heads` has one number per layer. `missing_bytes` counts the bytes that the tensors need and the files do not
    have. `stamps` has one stamp per file.
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
    stamps: tuple[FileStamp, ...] = ()


@dataclass(frozen=True, slots=True)
class Room:
    """The size of a model's KV cache in tokens: `context` for one row, `pool` for all rows together."""

    context: int
    pool: int


def kv_bytes_per_token(header: Header, cache_type: str) -> int:
    """The bytes of KV cache that one token needs in all layers. `cache_type` is a value of GGUF_KV_CACHE_TYPE."""
    elements = sum(header.kv_heads) * (header.key_length + header.value_length)
    return math.ceil(elements * CACHE_BYTES[cache_type])


def longest_context(header: Header, ceiling: int, default: int) -> int:
    """The longest context in tokens that the file and the ceiling (0 for none) allow. For an encoder whose file names
    no length, it is one pass; for any other model, `default`."""
    length = header.context_length or (BATCH if header.is_embedding_only else 0)
    return min((n for n in (length, ceiling) if n), default=default)


def pass_tokens(header: Header, context: int, *, embeds: bool) -> int:
    """The tokens in one pass of a model with this context. `embeds` says whether the engine is started to embed texts.

    An encoder reads a whole text at once. It has no logits, so their memory sets no limit.
    """
    if header.is_embedding_only:
        return context
    if not embeds:
        return BATCH
    affordable = LOGITS_BYTES // (_LOGIT_WIDTH * max(1, header.vocabulary))
    return min(context, EMBED_BATCH, max(BATCH, affordable))


def logits_bytes(header: Header, tokens: int, *, embeds: bool) -> int:
    """The bytes for the logits, and for their copy, in a pass over a text to embed. An encoder has no logits."""
    if not embeds or header.is_embedding_only:
        return 0
    return 2 * _LOGIT_WIDTH * header.vocabulary * tokens


def least_cache_bytes(header: Header, cache_type: str, ceiling: int, least: int) -> int:
    """The bytes of the KV cache for the shortest useful context, `least`. `ceiling` is GGUF_CONTEXT_LENGTH, 0 for
    none."""
    tokens = min(least, longest_context(header, ceiling, least))
    return -(-tokens // CELLS) * CELLS * kv_bytes_per_token(header, cache_type)


def room(
    header: Header, *, kv_bytes: int, cache_type: str, ceiling: int, slots: int, least: int
) -> Room:
    """How many tokens of context are served, and how many tokens the cache for all rows holds.

    Args:
        kv_bytes: the memory for the cache, in bytes.
        ceiling: GGUF_CONTEXT_LENGTH, 0 for none.
        slots: how many rows run at once. The cache never holds more than one whole context for each.
        least: the context that must fit. If the model or the ceiling allow only less, that much must fit.

    Raises:
        Refusal: INSUFFICIENT_MEMORY.
    """
    longest = longest_context(header, ceiling, least)
    most = -(-longest // CELLS) * CELLS * slots
    each = kv_bytes_per_token(header, cache_type)
    pool = min(most, kv_bytes // each // CELLS * CELLS) if each else most
    context = min(longest, pool)
    least = min(least, longest)
    if context < least:
        raise Refusal(
            "INSUFFICIENT_MEMORY",
            f"the KV cache holds {pool} tokens here; at least {least} are needed",
            min_context_tokens=least,
            model_max_context_tokens=header.context_length,
        )
    return Room(context, pool)
