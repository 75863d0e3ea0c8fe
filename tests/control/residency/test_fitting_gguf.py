"""Where a GGUF model would go: its header, the engine's cards and the driver's come together here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from steerserve.control.residency import fitting_gguf
from steerserve.engines.gguf.messages import LlamaCard
from steerserve.errors import Refusal
from steerserve.rules.models.gguf_header import Header
from steerserve.rules.residency.gpus import Card
from steerserve.rules.residency.memory_fit import PlacementPlan
from steerserve.rules.residency.placement import GpuRequest
from steerserve.rules.units import MIB
from steerserve.settings import Settings

HEADER = Header(
    architecture="llama", name=None, parameters=1, context_length=8192, layers=4, hidden_size=256,
    heads=4, kv_heads=(2, 2, 2, 2), key_length=64, value_length=64, vocabulary=1000, longest_token=4,
    label="Q8_0", chat_template=None, bos_id=1, eos_id=2, bos_token="<s>", eos_token="</s>",
    is_embedding_only=False, shards=1, size_bytes=1, missing_bytes=0, tensor_bytes=500 * MIB,
    embedding_bytes=100 * MIB,
)  # fmt: skip


def settings(**fields: Any) -> Settings:
    return Settings(transformers_cuda_context_mb=100, transformers_min_context=1024, **fields)


def planned(
    *free: int, known: list[Card] | None = None, returns: dict[str, int] | None = None
) -> PlacementPlan:
    return fitting_gguf.plan(
        HEADER,
        [LlamaCard(f"CUDA{i}", mb * MIB) for i, mb in enumerate(free)],
        GpuRequest(),
        returns or {},
        settings(),
        known=known or [],
        free_host_mb=lambda: 10_000,
    )


def test_what_the_driver_knows_of_a_card_counts() -> None:
    known = [Card(3, "GPU-3", "Some Card", 10_000, 6_000, 4_000, torch_index=0)]
    (share,) = planned(2_000, known=known, returns={"cuda:0": 1_000}).shares
    assert (share.device.name, share.device.free_mb, share.device.index) == ("Some Card", 5_000, 3)


def test_where_the_driver_knows_none_the_engine_is_asked_and_memory_comes_back() -> None:
    with pytest.raises(Refusal) as caught:
        planned(300)
    assert caught.value.code == "INSUFFICIENT_MEMORY"
    (share,) = planned(300, returns={"cuda:0": 600}).shares
    assert (share.device.label, share.device.free_mb) == ("cuda:0", 900)


def test_a_model_without_cards_goes_to_the_host() -> None:
    assert planned().devices == ["cpu"]


def test_an_encoder_reads_its_whole_context_at_once() -> None:
    encoder = replace(HEADER, is_embedding_only=True, vocabulary=250_000)
    needs = fitting_gguf.needs(encoder, settings())
    assert (needs.working_tokens, needs.kv_per_token) == (8192, 0)
    # 8,192 tokens with 20 float32 tensors as wide as the hidden size; no logits but those of 32 rows
    assert 160 * MIB <= needs.working < 300 * MIB


def test_texts_to_embed_have_logits_for_every_token() -> None:
    without = fitting_gguf.needs(HEADER, settings(gguf_enable_embeddings=False))
    embeds = fitting_gguf.needs(HEADER, settings(gguf_enable_embeddings=True))
    assert (without.working_tokens, embeds.working_tokens) == (512, 2048)
    assert embeds.working > 4 * without.working * 0.9
