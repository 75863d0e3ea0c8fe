"""Whether a GGUF model fits the memory, and on which devices. Both are decided before anything is loaded or
unloaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from steerserve.control.residency import fitting
from steerserve.engines.gguf.messages import LlamaCard
from steerserve.rules.models import gguf, gguf_header
from steerserve.rules.models.gguf_header import CELLS, Header, kv_bytes_per_token
from steerserve.rules.residency import memory_fit
from steerserve.rules.residency.gpus import Card
from steerserve.rules.residency.memory_fit import PlacementPlan
from steerserve.rules.residency.memory_needs import Needs, working_bytes
from steerserve.rules.residency.placement import GpuRequest, select
from steerserve.rules.units import MIB
from steerserve.settings import Settings

_WIDTH = 4
_MLP = 4
"""The engine computes in float32 (`_WIDTH` bytes). The header of a file does not tell the width of the MLPs; it counts
as `_MLP` times the hidden size."""


def plan(
    header: Header,
    seen: Sequence[LlamaCard],
    wanted: GpuRequest,
    returns_mb: Mapping[str, int],
    settings: Settings,
    *,
    known: Sequence[Card],
    free_host_mb: Callable[[], int] | None = None,
) -> PlacementPlan:
    """Place a model on the GPUs that its engine sees, or on the host if the engine sees none. `known` are the GPUs
    that the driver knows.

    Raises:
        Refusal: GPU_NOT_FOUND, INSUFFICIENT_MEMORY, SPLIT_NOT_HONOURED, INVALID_GGUF_TENSOR_SPLIT.
    """
    shares = gguf.tensor_split(settings.gguf_tensor_split, len(seen))
    cards = select(wanted, _cards(seen, known, returns_mb))
    needed = needs(header, settings)
    if not cards:
        return memory_fit.plan(needed, [fitting.host(free_host_mb, returns_mb)], wanted)
    context = settings.transformers_cuda_context_mb
    devices = [fitting.device(card, context, returns_mb) for card in cards]
    if shares is not None and len(cards) == len(seen) > 1:
        return memory_fit.plan_in(needed, devices, wanted, shares)
    return memory_fit.plan(needed, devices, wanted)


def split(plan: PlacementPlan, cards: int) -> list[float] | None:
    """The proportions of the plan over all cards that the engine sees; None if the engine sees at most one card."""
    if cards < 2:
        return None
    parts = {f"cuda:{index}": 0.0 for index in range(cards)}
    for share in plan.shares:
        parts[share.device.label] = float(share.layers or 1)
    return list(parts.values())


def needs(header: Header, settings: Settings) -> Needs:
    """The memory that a model takes. All its layers count as equally large."""
    least = settings.transformers_min_context
    context = gguf_header.longest_context(header, settings.gguf_context_length, least)
    embeds = settings.gguf_enable_embeddings or header.is_embedding_only
    tokens = gguf_header.pass_tokens(header, context, embeds=embeds)
    layers = max(1, header.layers)
    inside = max(0, header.tensor_bytes - header.embedding_bytes)
    kv = 0 if header.is_embedding_only else kv_bytes_per_token(header, settings.gguf_kv_cache_type)
    # the engine never makes a cache that is larger than all its slots can use
    most = -(-context // CELLS) * CELLS * settings.max_concurrent_requests * kv
    return Needs(
        layers=(inside // layers,) * layers,
        first=header.embedding_bytes + inside % layers,
        kv_per_token=-(-kv // layers),
        kv_step=CELLS,
        kv_named=min(settings.kv_cache_mb * MIB, most),
        min_context=-(-min(least, context) // CELLS) * CELLS,
        model_max_context=header.context_length or 0,
        working=working_bytes(
            header.hidden_size, _MLP * header.hidden_size, header.vocabulary, _WIDTH, tokens
        )
        + gguf_header.logits_bytes(header, tokens, embeds=embeds),
        working_tokens=tokens,
    )


def _cards(
    seen: Sequence[LlamaCard], known: Sequence[Card], returns_mb: Mapping[str, int]
) -> list[Card]:
    """The cards of the engine, in the engine's order, with the figures of the driver. If the driver knows another
    number of cards, the figures are the engine's, which do not include the whole memory of a card."""
    visible = sorted(
        (card for card in known if card.torch_index is not None), key=lambda c: c.torch_index or 0
    )
    if len(visible) == len(seen):
        return visible
    cards = []
    for i, card in enumerate(seen):
        free = card.free_bytes // MIB
        total = free + returns_mb.get(f"cuda:{i}", 0)
        cards.append(Card(i, card.name, card.name, total, total - free, free, i))
    return cards
