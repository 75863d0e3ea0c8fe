"""Packed linear layers: the same products and the same hooks as plain layers, and which layers stay plain."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from steerserve.rules.models.compilers import COMPILERS
from steerserve.rules.saes.sites import SITES, Z
from steerserve.worker.model import native, packing
from steerserve.worker.model.native import compiling
from tests.worker import models
from tests.worker.running import hooked, next_logits, open_checkpoint, site_of

ROOM = 1 << 40
DTYPES = [dtype for dtype in (torch.float32, torch.bfloat16) if packing.can_pack(dtype)]
HALF = pytest.mark.skipif(
    "fbgemm" not in torch.backends.quantized.supported_engines, reason="FBGEMM is for x86"
)

COMPILED = pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)), reason="there is no C++ compiler"
)


def packed(layer: nn.Module, free: int = ROOM) -> nn.Module:
    layer.requires_grad_(False)
    packing.pack(nn.ModuleList([layer]), lambda: free)
    return layer


def rows(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [True, False])
@torch.inference_mode()
def test_a_packed_layer_gives_the_plain_product(dtype: torch.dtype, has_bias: bool) -> None:
    layer = nn.Linear(96, 50, bias=has_bias).to(dtype)
    weight = layer.weight.detach().clone()
    packed(layer)
    assert type(layer) is packing.PackedLinear
    given = rows(dtype, 3, 5, 96)
    for value in (
        given,
        given[0],
        given[0, 0],
        given.transpose(0, 1),
        given[:, :1].expand(3, 4, 96),
    ):
        bias = layer.bias.float() if has_bias else None
        exact = functional.linear(value.float(), weight.float(), bias)
        off = 1e-5 if dtype == torch.float32 else 1e-2
        torch.testing.assert_close(layer(value).float(), exact, rtol=off, atol=off)


@pytest.mark.parametrize("dtype", DTYPES)
@torch.inference_mode()
def test_the_packed_layer_of_gpt2_gives_the_plain_product(dtype: torch.dtype) -> None:
    layer = Conv1D(50, 96).to(dtype)
    layer.bias.data.normal_()
    given = rows(dtype, 3, 5, 96)
    plain = layer(given)
    torch.testing.assert_close(packed(layer)(given), plain)
    assert type(layer) is packing.PackedConv1D


@pytest.mark.parametrize("dtype", DTYPES)
@torch.inference_mode()
def test_the_weight_of_a_packed_layer_can_still_be_read(dtype: torch.dtype) -> None:
    for layer in (nn.Linear(96, 48).to(dtype), Conv1D(48, 96).to(dtype)):
        weight = layer.weight.detach().clone()
        packed(layer)
        assert torch.equal(layer.weight, weight)
        held = [*layer.parameters(), *packing.native_weights(layer)]
        assert sum(each.nbytes for each in held) == (weight.numel() + 48) * weight.element_size()
        assert {(each.device, each.dtype) for each in layer.parameters()} == {
            (weight.device, dtype)
        }


@HALF
@pytest.mark.parametrize(
    ("dtype", "size"),
    [(torch.float16, 2.0**-8), (torch.float16, 2.0**15)]
    + [(torch.bfloat16, 2.0**power) for power in (-100, -3, 0, 20, 80)],
)
@torch.inference_mode()
def test_native_weights_are_held_as_they_are_whatever_their_size(
    dtype: torch.dtype, size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "_BLOCK_ELEMENTS", 64 * 20)
    weight = (rows(torch.float32, 50, 64).clamp(-1, 1) * size).to(dtype)
    weight[3, 5], weight[40] = size, 0
    tiny = (rows(torch.float32, 64) * size * 2.0**-60).to(dtype)
    held = packing.HalfWeight.pack(torch.cat([weight, tiny[None]]))
    assert held is not None
    assert len(held.blocks) == 3
    kept = held.to_dense()
    assert torch.equal(kept[:50], weight)
    assert (kept[50] - tiny).abs().max() <= size * 2.0**-39
    given, bias = rows(torch.float32, 5, 64), rows(torch.float32, 51)
    found = held.multiply(given, None)
    bound = 64 * 2**-23 * (given.double().abs() @ weight.double().abs().t())
    assert ((found[:, :50].double() - given.double() @ weight.double().t()).abs() <= bound).all()
    torch.testing.assert_close(held.multiply(given, bias), found + bias)


@HALF
@torch.inference_mode()
def test_a_layer_without_a_bias_tells_its_device_and_its_dtype() -> None:
    layer = packed(nn.Linear(8, 8, bias=False).bfloat16())
    own = next(layer.parameters())
    assert (own.device.type, own.dtype) == ("cpu", torch.bfloat16)


@HALF
@torch.inference_mode()
def test_numbers_of_float16_in_float32_are_held_as_float16_only_where_each_of_them_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without compiled kernels."""
    monkeypatch.setattr(native, "kernels", lambda: None)
    monkeypatch.setattr(packing, "_has_kernels", lambda dtype: dtype == torch.float32)
    given = rows(torch.float32, 5, 64)
    for off in (0.0, 2.0**-14):
        layer = nn.Linear(64, 50)
        layer.weight.data = rows(torch.float16, 50, 64).float()
        layer.weight.data[7, 9] = 1 + off
        plain = layer(given)
        packed(layer)
        assert isinstance(layer.packed, packing.HalfWeight) == (off == 0)
        assert layer.weight[7, 9] == 1 + off
        torch.testing.assert_close(layer(given), plain)


@HALF
def test_a_half_weight_that_is_not_finite_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "kernels", lambda: None)
    for value in (float("nan"), float("inf")):
        layer = nn.Linear(8, 8).bfloat16()
        layer.weight.data[3, 4] = value
        assert packing.HalfWeight.pack(layer.weight.data) is None
        if not packing._has_kernels(torch.bfloat16):
            assert type(packed(layer)) is nn.Linear


@HALF
@pytest.mark.parametrize("has_bias", [True, False])
@torch.inference_mode()
def test_layers_that_read_the_same_rows_give_the_products_that_each_gives_alone(
    has_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "_has_kernels", lambda dtype: False)
    model = nn.Module()
    for name, width in (("q_proj", 14), ("k_proj", 6), ("v_proj", 12)):
        model.add_module(name, nn.Linear(32, width, bias=has_bias).bfloat16())
    layers = list(model.children())
    weights = [layer.weight.detach().clone() for layer in layers]
    one, other = rows(torch.bfloat16, 2, 4, 32), rows(torch.bfloat16, 2, 4, 32) * 2
    plain = {given: [layer(given) for layer in layers] for given in (one, other)}
    packed(model)
    for calls in (
        [(one, 0), (one, 1), (one, 2), (other, 0), (other, 1), (other, 2)],
        [(one, 0), (other, 1), (one, 2), (one, 1), (one, 1), (other, 2), (one, 0), (other, 0)],
    ):
        for given, place in calls:
            torch.testing.assert_close(layers[place](given), plain[given][place])
    for layer, weight in zip(layers, weights, strict=True):
        assert isinstance(layer.packed, packing.JointPart)
        assert torch.equal(layer.weight, weight)
    assert sum(held.nbytes for held in packing.native_weights(model)) == 32 * 32 * 2


@HALF
@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX2", reason="these are the kernels for AVX2"
)
@torch.inference_mode()
def test_the_bits_of_a_row_do_not_depend_on_the_rows_beside_it() -> None:
    held = packing.HalfWeight.pack(rows(torch.bfloat16, 300, 1000))
    assert held is not None
    given = rows(torch.bfloat16, 300, 1000)
    alone = torch.cat([held.multiply(row[None], None) for row in given])
    for count in range(1, 301):
        assert torch.equal(held.multiply(given[:count], None), alone[:count]), count


@pytest.fixture(params=[True, False], ids=["as compiled here", "without pairs"])
def each_product(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The product of this processor, and the one of processors without an instruction for pairs."""
    kernels = native.kernels()
    if request.param or kernels is None:
        return
    if not kernels.has_pairs:
        pytest.skip("this processor has no instruction for pairs")
    monkeypatch.setattr(compiling, "_FLAGS", (*compiling._FLAGS, "-mno-avx512bf16"))
    plain = native.Kernels(compiling.library())
    assert not plain.has_pairs
    monkeypatch.setattr(native, "kernels", lambda: plain)


@COMPILED
@pytest.mark.usefixtures("each_product")
@pytest.mark.parametrize("numbers", [torch.bfloat16, torch.float16, torch.float32])
@torch.inference_mode()
def test_the_compiled_product_is_exact_and_each_row_has_its_own_bits(numbers: torch.dtype) -> None:
    """Numbers of float16 are those of a weight in float32."""
    dtype = torch.bfloat16 if numbers == torch.bfloat16 else torch.float32
    for width, size in ((300, 1000), (7, 8), (16, 64)):
        weight, bias = rows(numbers, width, size).to(dtype), rows(dtype, width)
        held = packing.PanelWeight.pack(weight)
        assert held is not None
        assert held.panels.dtype == numbers
        assert torch.equal(held.to_dense(), weight)
        given = rows(dtype, 40, size)
        found = held.multiply(given, bias)
        exact = given.double() @ weight.double().t() + bias.double()
        bound = size * 2**-23 * (given.double().abs() @ weight.double().abs().t())
        rounding = 2**-8 if dtype == torch.bfloat16 else 2**-24
        assert ((found - exact).abs() <= bound + found.double().abs() * rounding).all()
        for count in range(41):
            assert torch.equal(held.multiply(given[:count], bias), found[:count]), count
        threads = torch.get_num_threads()
        torch.set_num_threads(3)
        assert torch.equal(held.multiply(given.repeat(20, 1), bias)[:40], found)
        torch.set_num_threads(threads)


@COMPILED
@torch.inference_mode()
def test_a_product_of_float32_rounds_less_than_a_sum_from_front_to_end() -> None:
    """Of 1,536 numbers such a sum is 7e-7 from the product in float64."""
    weight, given = rows(torch.float32, 96, 1536), rows(torch.float32, 40, 1536)
    held = packing.PanelWeight.pack(weight)
    assert held is not None
    exact = given.double() @ weight.double().t()
    assert (held.multiply(given, None) - exact).norm() <= 2**-22 * exact.norm()


@COMPILED
def test_a_compiled_product_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = native.kernels()
    assert kernels is not None
    product = kernels.multiply
    monkeypatch.setattr(kernels, "multiply", lambda rows, *by: product(rows.flip(-1), *by))
    layer, given = nn.Linear(64, 50), rows(torch.float32, 5, 64)
    plain = layer(given)
    packed(layer)
    assert not isinstance(getattr(layer, "packed", None), packing.PanelWeight)
    torch.testing.assert_close(layer(given), plain)


@COMPILED
@torch.inference_mode()
def test_products_of_several_callers_at_once_have_the_bits_of_one_caller() -> None:
    held = packing.PanelWeight.pack(rows(torch.bfloat16, 600, 800))
    assert held is not None
    given = rows(torch.bfloat16, 4, 800)
    found = held.multiply(given, None)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with ThreadPoolExecutor(3) as callers:
            for made in callers.map(lambda _: held.multiply(given, None), range(200)):
                assert torch.equal(made, found)
    finally:
        torch.set_num_threads(threads)


@COMPILED
@pytest.mark.usefixtures("each_product")
@torch.inference_mode()
def test_the_compiled_product_keeps_nan_and_infinity_in_their_places() -> None:
    weight = rows(torch.bfloat16, 20, 8)
    weight[4, 2], weight[18, 7] = torch.nan, torch.inf
    held = packing.PanelWeight.pack(weight)
    assert held is not None
    given = rows(torch.bfloat16, 3, 8).abs()
    given[1, 0] = torch.nan
    found = held.multiply(given, None)
    plain = functional.linear(given, weight)
    assert torch.equal(found.isnan(), plain.isnan())
    assert torch.equal(found.isinf(), plain.isinf())


def test_layers_of_other_kinds_and_dtypes_stay_plain() -> None:
    class Own(nn.Linear):
        pass

    for layer in (Own(8, 8), nn.Linear(8, 8).double(), nn.Linear(8, 8, device="meta")):
        before = type(layer)
        assert packing.pack(nn.ModuleList([layer]), lambda: ROOM) == 0
        assert type(layer) is before


@torch.inference_mode()
def test_a_tied_weight_is_packed_only_where_a_copy_leaves_most_of_the_memory_free() -> None:
    def tied() -> nn.Module:
        model = nn.Module()
        model.embedding, model.head = nn.Embedding(40, 8), nn.Linear(8, 40, bias=False)
        model.head.weight = model.embedding.weight
        return model.requires_grad_(False)

    size = 40 * 8 * 4
    short, ample = tied(), tied()
    assert packing.pack(short, lambda: size * 8 - 1) == 0
    assert short.head.weight is short.embedding.weight
    table = ample.embedding.weight.clone()
    assert packing.pack(ample, lambda: size * 8) == 1
    assert torch.equal(ample.embedding.weight, table)
    given = rows(torch.float32, 3, 8)
    torch.testing.assert_close(ample.head(given), given @ table.T)


@pytest.mark.parametrize("variant", ["llama", "gpt2", "qwen2"])
def test_a_loaded_model_is_packed_and_answers_as_the_library_does(
    variant: str, tmp_path: Path
) -> None:
    folder = models.save(variant, tmp_path / variant)
    model = open_checkpoint(folder)
    kinds = {type(layer) for layer in model.model.modules()}
    assert kinds & {packing.PackedLinear, packing.PackedConv1D}
    assert not kinds & {nn.Linear, Conv1D}
    library: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = list(range(20, 40))
    with torch.inference_mode():
        plain = library(torch.tensor([ids])).logits[0, -1]
    torch.testing.assert_close(next_logits(model, ids), plain, rtol=1e-4, atol=1e-4)
    assert model.parameters == library.num_parameters()
    assert model.vocabulary == plain.shape[0]


@torch.inference_mode()
def test_a_site_inside_a_packed_layer_is_read_and_changed(tmp_path: Path) -> None:
    model = open_checkpoint(models.save("llama", tmp_path / "llama"))
    ids = list(range(20, 40))
    before = next_logits(model, ids)
    for name in SITES:
        values: list[Tensor] = []
        site = site_of(model, 0, name)
        with hooked(site, lambda value, values=values: values.append(value.clone())):
            assert torch.equal(next_logits(model, ids), before)
        assert [value.shape[-1] for value in values] == [site.width]
    with hooked(site_of(model, 0, Z), torch.ones_like):
        assert not torch.equal(next_logits(model, ids), before)
