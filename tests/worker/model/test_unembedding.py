"""The way from the last layer to the logits, against the library's own forward pass and against float64."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from steerserve.worker.model import unembedding
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.model.layers import decoder_layers
from steerserve.worker.model.unembedding import Unembedding
from tests.refusals import refusal_of
from tests.worker import models
from tests.worker.conftest import Loaded
from tests.worker.running import STORY, open_checkpoint
from tests.worker.slices import finished

TRIED = [
    *models.SERVED,
    *"bloom mpt rwkv jamba lfm2 falcon_h1 qwen3_5 recurrent_gemma openai_gpt".split(),
]
ONE_MORE = ("gemma2", "gemma3_text", "recurrent_gemma", "qwen3_5_text")
"""Architectures whose norms multiply by 1 + weight."""

NEAR: Any = {"atol": 1e-5, "rtol": 1e-5}


@contextmanager
def random_norm(model: Checkpoint) -> Iterator[None]:
    """While open, the weights and biases of the final norm are random, because fresh models have ones and zeros."""
    norm = Unembedding(model).norm
    kept = {} if norm is None else {k: v.clone() for k, v in norm.state_dict().items()}
    draw = torch.Generator().manual_seed(3)
    if norm is not None:
        for parameter in norm.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw))
    try:
        yield
    finally:
        if norm is not None:
            norm.load_state_dict(kept)


def last_stream(model: Checkpoint, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The stream behind the last layer [1, T, hidden] and the logits [1, T, vocabulary] of the library's pass."""
    kept: list[Tensor] = []

    def keep(_: nn.Module, __: Any, output: Any) -> None:
        kept.append(output[0] if isinstance(output, tuple | list) else output)

    handle = decoder_layers(model.model, model.layers)[1][-1].register_forward_hook(keep)
    try:
        logits = model.model(input_ids=ids, use_cache=False).logits
    finally:
        handle.remove()
    return kept[0], logits


def story(model: Checkpoint) -> Tensor:
    return torch.tensor([model.encode(STORY, special=True)[:24]])


@pytest.mark.parametrize("variant", TRIED)
def test_logits_of_last_layer_are_those_of_model(loaded: Loaded, variant: str) -> None:
    model = loaded(variant)
    with random_norm(model):
        stream, logits = last_stream(model, story(model))
        mine = Unembedding(model).logits(stream)
    torch.testing.assert_close(mine, logits.float(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("variant", TRIED)
def test_scores_are_those_of_weights_in_float64(loaded: Loaded, variant: str) -> None:
    model = loaded(variant)
    directions = torch.randn(3, model.hidden_size, generator=torch.Generator().manual_seed(1))
    with random_norm(model):
        mine = Unembedding(model)
        found = torch.cat([scores for _, scores in mine.scores(directions)], dim=1)
        expected = reference(model, directions)
    assert found.shape == (3, model.vocabulary)
    torch.testing.assert_close(found.double(), expected, **NEAR)


def reference(model: Checkpoint, directions: Tensor) -> Tensor:
    """What directions add to the logits, by the formulas of the architectures, in float64."""
    kind, rows = model.config.model_type, directions.double()
    if (norm := Unembedding(model).norm) is not None:
        if "LayerNorm" in type(norm).__name__:
            rows = rows - rows.mean(-1, keepdim=True)
        rows = rows * (norm.state_dict()["weight"].double() + (kind in ONE_MORE))
    scores = rows @ model.model.get_output_embeddings().weight.double().t()
    return cast(Tensor, scores - scores.mean(-1, keepdim=True))


@pytest.mark.parametrize("variant", ["gemma2", "gpt2"])
def test_extremes_are_largest_and_smallest_over_blocks_of_the_vocabulary(
    loaded: Loaded, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(variant)
    monkeypatch.setattr(unembedding, "BLOCK_ELEMENTS", 32 * 50)
    monkeypatch.setattr(unembedding, "DIRECTIONS_AT_ONCE", 2)
    directions = torch.randn(5, model.hidden_size, generator=torch.Generator().manual_seed(1))
    tokens, values = finished(Unembedding(model).extremes(directions, 7))
    scores = reference(model, directions)
    torch.testing.assert_close(values[:, 0].double(), scores.topk(7).values, **NEAR)
    torch.testing.assert_close(values[:, 1].double(), -(-scores).topk(7).values, **NEAR)
    for row, found in zip(scores, tokens, strict=True):
        assert found[0].tolist() == row.topk(7).indices.tolist()
        assert found[1].tolist() == (-row).topk(7).indices.tolist()


def test_gain_of_half_precision_norm_is_not_rounded(tmp_path: Path) -> None:
    folder = models.save("gemma2", tmp_path / "half", dtype=torch.bfloat16)
    model = open_checkpoint(folder)
    norm: Any = Unembedding(model).norm
    norm.weight.copy_(torch.linspace(-0.5, 0.5, model.hidden_size))
    gain = Unembedding(model).gain
    torch.testing.assert_close(gain, 1 + norm.weight.float(), atol=1e-6, rtol=1e-6)


def test_head_that_reads_another_width_is_refused(tmp_path: Path) -> None:
    model = open_checkpoint(models.save("opt", tmp_path / "narrow", word_embed_proj_dim=16))
    assert refusal_of(Unembedding, model).code == "SAE_INCOMPATIBLE"
