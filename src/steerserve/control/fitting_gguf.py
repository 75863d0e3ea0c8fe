"""Where a GGUF model would go and whether it fits, found before anything is loaded or unloaded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import psutil

from steerserve.control.fitting import HOST, ReadCards
from steerserve.engine.cards import read
from steerserve.engine.llama_messages import Card as Seen
from steerserve.rules import gguf, memory_fit
from steerserve.rules.cards import Card
from steerserve.rules.gguf_header import CELLS, Header, kv_bytes_per_token
from steerserve.rules.memory_fit import MIB, Device, Needs, Plan
from steerserve.rules.placement import Wanted, select
from steerserve.settings import Settings

BATCH_TOKENS = 512
EMBED_TOKENS = 2048
EMBED_LOGIT_BYTES = 1 << 29
"""Where texts are embedded a pass takes a whole text, and its logits, which are computed for every token, this much."""
_WIDTH = 4
_MLP = 4
"""The engine computes in float32; a file does not tell the width of its MLPs, which is about so many times the hidden."""


async def plan(
    header: Header,
    seen: Sequence[Seen],
    wanted: Wanted,
    returns_mb: Mapping[str, int],
    settings: Settings,
    *,
    read_cards: ReadCards = read,
    free_host_mb: Callable[[], int] | None = None,
) -> Plan:
    """Place a model on the cards that its engine sees, or on the host where it sees none.

    Raises:
        Refusal: GPU_NOT_FOUND, INSUFFICIENT_MEMORY, SPLIT_NOT_HONOURED, INVALID_GGUF_TENSOR_SPLIT.
    """
    shares = gguf.tensor_split(settings.gguf_tensor_split, len(seen))
    known, _ = await asyncio.to_thread(read_cards) if seen else ([], None)
    cards = select(wanted, _cards(seen, known))
    needed = needs(header, settings)
    if not cards:
        free = free_host_mb() if free_host_mb else psutil.virtual_memory().available // MIB
        host = Device(HOST, "host memory", free + returns_mb.get(HOST, 0))
        return memory_fit.plan(needed, [host], wanted)
    context = settings.transformers_cuda_context_mb
    devices = [_device(card, context, returns_mb) for card in cards]
    if shares is not None and len(cards) == len(seen) > 1:
        return memory_fit.plan_in(needed, devices, wanted, shares)
    return memory_fit.plan(needed, devices, wanted)


def split(plan: Plan, cards: int) -> list[float] | None:
    """The plan as the engine's proportions over all the cards it sees; None where it sees at most one."""
    if cards < 2:
        return None
    parts = {f"cuda:{index}": 0.0 for index in range(cards)}
    for share in plan.shares:
        parts[share.device.label] = float(share.layers or 1)
    return list(parts.values())


def needs(header: Header, settings: Settings) -> Needs:
    """What a model takes. Its layers count as equally large."""
    ceiling = settings.gguf_context_length
    context = min((n for n in (header.context_length, ceiling) if n), default=0)
    least = min(settings.transformers_min_context, context or settings.transformers_min_context)
    tokens = _batch(header, settings, context)
    layers = max(1, header.layers)
    inside = max(0, header.tensor_bytes - header.embedding_bytes)
    kv = 0 if header.is_embedding_only else kv_bytes_per_token(header, settings.gguf_kv_cache_type)
    return Needs(
        layers=(inside // layers,) * layers,
        first=header.embedding_bytes + inside % layers,
        kv_per_token=-(-kv // layers),
        min_context=-(-least // CELLS) * CELLS,
        model_max_context=header.context_length or 0,
        working=memory_fit.working_bytes(
            header.hidden_size, _MLP * header.hidden_size, header.vocabulary, _WIDTH, tokens
        )
        + _logits(header, settings, tokens),
        working_tokens=tokens,
    )


def _batch(header: Header, settings: Settings, context: int) -> int:
    """Tokens of one pass, as the engine chooses them."""
    if not settings.gguf_enable_embeddings and not header.is_embedding_only:
        return BATCH_TOKENS
    most = EMBED_LOGIT_BYTES // max(1, _WIDTH * header.vocabulary)
    return min(context or EMBED_TOKENS, EMBED_TOKENS, max(BATCH_TOKENS, most))


def _logits(header: Header, settings: Settings, tokens: int) -> int:
    """What the logits of a text that is embedded take, twice."""
    is_embedding = settings.gguf_enable_embeddings or header.is_embedding_only
    return 2 * _WIDTH * header.vocabulary * tokens if is_embedding else 0


def _cards(seen: Sequence[Seen], known: Sequence[Card]) -> list[Card]:
    """The engine's cards, in its order, as the driver knows them; where that does not fit, as the engine tells them."""
    visible = sorted(
        (card for card in known if card.torch_index is not None), key=lambda c: c.torch_index or 0
    )
    if len(visible) == len(seen):
        return visible
    return [
        Card(i, card.name, card.name, card.free_bytes // MIB, 0, card.free_bytes // MIB, i)
        for i, card in enumerate(seen)
    ]


def _device(card: Card, context_mb: int, returns_mb: Mapping[str, int]) -> Device:
    label = f"cuda:{card.torch_index}"
    free = min(card.total_mb, card.free_mb + returns_mb.get(label, 0))
    return Device(label, card.name, free, context_mb, card.smi_index)
