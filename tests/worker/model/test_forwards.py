"""The shorter forward functions of modules: the library's values, and the library's own functions for other modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2Attention

from steerserve.worker.model import forwards
from tests.worker import models
from tests.worker.running import next_logits, open_checkpoint

IDS = list(range(20, 60))


def own(model: Any, name: str) -> list[bool]:
    """For each module of this class name, whether it has a function of the service."""
    kinds = [type(module) for module in model.modules() if type(module).__name__.endswith(name)]
    return [kind.forward.__module__ == forwards.__name__ for kind in kinds]


@pytest.mark.parametrize(
    "variant", ["llama", "mistral", "qwen2", "qwen3", "mixtral", "gemma2", "gemma3"]
)
def test_a_model_with_shorter_functions_answers_as_the_library_does(
    variant: str, tmp_path: Path
) -> None:
    folder = models.save(variant, tmp_path / variant)
    model = open_checkpoint(folder)
    for name in ("RMSNorm", "Attention"):
        assert own(model.model, name)
        assert all(own(model.model, name))
    library: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        plain = library(torch.tensor([IDS])).logits[0, -1]
    torch.testing.assert_close(next_logits(model, IDS), plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("variant", ["llama", "qwen2", "qwen3", "gemma2", "gemma3"])
def test_half_precision_is_as_near_to_float64_as_with_the_library(
    variant: str, tmp_path: Path
) -> None:
    folder = models.save(variant, tmp_path / variant, dtype=torch.bfloat16)
    library: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    exact: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    model = open_checkpoint(folder)
    ours, theirs = 0.0, 0.0
    with torch.inference_mode():
        for first in range(20, 260, 10):
            ids = [(first + 7 * place) % models.VOCABULARY for place in range(30)]
            true = exact(torch.tensor([ids])).logits[0, -1]
            ours += error(next_logits(model, ids), true)
            theirs += error(library(torch.tensor([ids])).logits[0, -1], true)
    assert ours <= 1.1 * theirs


def error(found: Tensor, true: Tensor) -> float:
    return float((found.double() - true).square().mean().sqrt())


def shortened(module: nn.Module, *values: Any) -> int:
    """How many modules have a function of the service, after a pass with these values."""
    dtype = next(module.parameters()).dtype
    return forwards.shorten(nn.ModuleList([module]), dtype, lambda: module(*values)).modules


class OutsideRMSNorm(LlamaRMSNorm):
    """Adds its constant outside the root."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        length = hidden_states.square().mean(-1, keepdim=True).sqrt()
        return self.weight * hidden_states / (length + self.variance_epsilon)


class ShiftedRMSNorm(LlamaRMSNorm):
    """Multiplies by two more than its weight."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states) * (2 + self.weight) / self.weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_a_module_of_another_form_keeps_its_own_function(dtype: torch.dtype) -> None:
    for kind in (OutsideRMSNorm, ShiftedRMSNorm):
        norm = kind(16).requires_grad_(False).to(dtype)
        assert shortened(norm, torch.randn(3, 16).to(dtype)) == 0
        assert type(norm) is kind


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [LlamaRMSNorm, Gemma2RMSNorm])
@torch.inference_mode()
def test_a_norm_with_some_large_weights_gives_the_values_of_the_library(
    kind: type[nn.Module], dtype: torch.dtype
) -> None:
    norm: Any = kind(32).requires_grad_(False).to(dtype)
    norm.weight.copy_(torch.linspace(-2.0, 2.0, 32))
    norm.weight[3:20] = 150.0
    rows = torch.randn(4, 32, generator=torch.Generator().manual_seed(0)).to(dtype)
    plain = norm(rows)
    assert shortened(norm, rows) == 1
    off = 2**-7 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(norm(rows), plain, rtol=off, atol=0)


def test_attention_of_another_form_keeps_its_own_function(tmp_path: Path) -> None:
    model = open_checkpoint(models.save("olmo2", tmp_path / "olmo2"))
    layer = model.model.model.layers[0].self_attn
    layer.__class__.__name__ = "LlamaAttention"
    try:
        angles = torch.ones(1, 3, layer.head_dim)
        assert shortened(layer, torch.randn(1, 3, 32), (angles, angles), None) == 2
    finally:
        layer.__class__.__name__ = "Olmo2Attention"
    assert type(layer) is Olmo2Attention


@torch.inference_mode()
def test_a_norm_keeps_nan_and_infinity_from_looking_like_numbers() -> None:
    norm = LlamaRMSNorm(16).requires_grad_(False)
    assert shortened(norm, torch.randn(3, 16)) == 1
    for value in (torch.nan, torch.inf):
        given = torch.ones(2, 16)
        given[1, 3] = value
        found = norm(given)
        assert found[0].isfinite().all()
        assert not found[1].isfinite().all()
    assert torch.equal(norm(torch.zeros(1, 16)), torch.zeros(1, 16))
