"""Weights of 8 and 4 bits by compiled functions: exact products, rows of their own bits, and what stays as it is."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from steerserve.rules.models.compilers import COMPILERS
from steerserve.worker.model import native, packing
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.model.coded import CodedWeight, Codes
from steerserve.worker.model.forwards import compiled
from steerserve.worker.model.unembedding import Unembedding
from tests.worker import models
from tests.worker.running import next_logits, open_checkpoint, words

WIDE: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
DTYPES = [torch.float32, torch.bfloat16]

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)), reason="there is no C++ compiler"
)


def library() -> Any:
    """The library bitsandbytes. Every worker of the suite collects this file, and the import takes a second."""
    return importlib.import_module("bitsandbytes")


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def eight_bits(width: int, size: int, has_bias: bool = False) -> Any:
    """A layer as bitsandbytes holds it, and its weight as bitsandbytes makes it plain, in float32."""
    layer = library().nn.Linear8bitLt(size, width, bias=has_bias, has_fp16_weights=False)
    layer.weight.data = rows(width, size)
    layer.weight = layer.weight.to("cpu")
    plain = library().functional.int8_vectorwise_dequant(layer.weight.CB, layer.weight.SCB)
    return layer.requires_grad_(False), plain


def four_bits(
    width: int, size: int, has_bias: bool = False, kind: str = "nf4", *, is_nested: bool = True
) -> Any:
    layer = library().nn.Linear4bit(
        size, width, bias=has_bias, quant_type=kind, compress_statistics=is_nested
    )
    layer.weight.data = rows(width, size)
    layer.weight = layer.weight.to("cpu")
    plain = (
        library().functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state).float()
    )
    return layer.requires_grad_(False), plain


def packed(layer: nn.Module, dtype: torch.dtype) -> nn.Module:
    assert packing.pack_codes(nn.ModuleList([layer]), dtype) == 1
    return layer


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "size"), [(50, 64), (300, 1024), (7, 128)])
@pytest.mark.parametrize("made", ["int8", "nf4", "fp4", "nf4 without nested scales"])
@torch.inference_mode()
def test_a_product_is_that_of_the_librarys_plain_weight_and_each_row_has_its_own_bits(
    dtype: torch.dtype, width: int, size: int, made: str
) -> None:
    if made == "int8":
        layer, weight = eight_bits(width, size, has_bias=True)
    else:
        layer, weight = four_bits(width, size, True, made[:3], is_nested=" " not in made)
    packed(layer, dtype)
    layer.bias.data.normal_()
    step = 2.0**-15 * float(weight.abs().max())
    torch.testing.assert_close(layer.weight.float(), weight, rtol=2.0**-8, atol=step)
    given = rows(40, size).to(dtype)
    found = layer(given)
    assert found.dtype == dtype
    products = given.double().abs() @ weight.double().abs().t()
    exact = given.double() @ weight.double().t() + layer.bias.double()
    # the numbers of a table are read within 2^-16 of the largest in their block
    off = size * 2**-23 if made == "int8" else size * 2**-23 + 2**-12
    rounding = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-23
    assert ((found - exact).abs() <= off * products + rounding * found.double().abs()).all()
    for count in range(1, 41):
        assert torch.equal(layer(given[:count]), found[:count]), count
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert torch.equal(layer(given.repeat(20, 1))[:40], found)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("made", [eight_bits, four_bits])
@torch.inference_mode()
def test_layers_that_read_the_same_rows_share_a_weight_and_keep_their_products(made: Any) -> None:
    model, alone = nn.Module(), []
    for name, width in (("q_proj", 32), ("k_proj", 14), ("v_proj", 6)):
        model.add_module(name, made(width, 128, has_bias=True)[0])
        alone.append(packed(made(width, 128)[0], torch.float32))
    layers = list(model.children())
    biases = [layer.bias.clone() for layer in layers]
    assert packing.pack_codes(model, torch.float32) == 3
    (held,) = packing.native_weights(model)
    assert held.nbytes == sum(w.nbytes for w in (held.panels, held.scales))
    given = rows(4, 128)
    for layer, own, bias in zip(layers, alone, biases, strict=True):
        torch.testing.assert_close(layer(given), own(given) + bias)
        assert torch.equal(layer.weight, own.weight)
    joined = packing.together(layers, given)
    assert joined is not None
    assert torch.equal(joined, torch.cat([layer(given) for layer in layers], -1))


def test_what_the_product_does_not_fit_stays_with_the_library() -> None:
    odd = eight_bits(16, 100)[0]
    whole = four_bits(32, 96)[0]  # blocks of 64 go over the ends of rows
    plain, meta = nn.Linear(64, 8), nn.Linear(64, 8, device="meta")
    for layer in (odd, whole, plain, meta):
        before = type(layer)
        assert packing.pack_codes(nn.ModuleList([layer]), torch.float32) == 0
        assert type(layer) is before
    assert Codes.rounded(torch.tensor([[1.0, torch.nan]])) is None


@torch.inference_mode()
def test_a_weight_in_8_bits_is_within_half_a_step_of_the_plain_one() -> None:
    weight = rows(20, 64)
    weight[3] = 0
    codes = Codes.rounded(weight)
    assert codes is not None
    held = CodedWeight.pack(codes, torch.float32)
    assert held is not None
    step = weight.abs().amax(1, keepdim=True) / 127
    assert ((held.to_dense() - weight).abs() <= 0.5001 * step).all()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose output embedding is its token embedding."""
    made = tmp_path_factory.mktemp("tied") / "qwen2"
    return models.save("qwen2", made, dtype=torch.bfloat16, tie_word_embeddings=True, **WIDE)


def logits(model: Checkpoint) -> Tensor:
    texts = [model.encode(words(30, n), special=True) for n in range(4)]
    return torch.stack([next_logits(model, ids) for ids in texts]).float()


@pytest.mark.parametrize(("quantization", "bound"), [("Q8", 0.1), ("Q4", 0.7)])
def test_a_loaded_model_is_as_near_to_full_precision_as_with_the_library(
    folder: Path, monkeypatch: pytest.MonkeyPatch, quantization: str, bound: float
) -> None:
    plain, ours = open_checkpoint(folder), open_checkpoint(folder, quantization)
    held = list(packing.native_weights(ours.model))
    # for each layer q, k and v, o, gate and up, and down; and the head
    assert len(held) == 4 * ours.layers + 1
    assert all(isinstance(weight, CodedWeight) for weight in held)
    told = compiled(ours.model, ours.functions)
    assert told is not None
    assert told.are_used
    assert (ours.rounds_rows, ours.varies, ours.row_step) == (False, None, 1)
    monkeypatch.setattr(native, "kernels", lambda: None)
    library_model = open_checkpoint(folder, quantization)
    assert not any(isinstance(w, CodedWeight) for w in packing.native_weights(library_model.model))
    assert library_model.rounds_rows == (quantization == "Q8")
    truth = logits(plain)
    own, theirs = (
        float((logits(model) - truth).square().mean().sqrt() / truth.std())
        for model in (ours, library_model)
    )
    assert own < bound
    assert own < 1.1 * theirs


@torch.inference_mode()
def test_the_unembedding_of_a_tied_model_reads_the_plain_embedding(folder: Path) -> None:
    model = open_checkpoint(folder, "Q8")
    assert isinstance(model.model.get_output_embeddings(), packing.PackedLinear)
    assert Unembedding(model).weight() is model.model.get_input_embeddings().weight
