from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from steerserve.rules.models import precision
from steerserve.rules.models.precision import (
    Held,
    Machine,
    Scheme,
    StoredTensor,
    choose,
    held_bytes,
)
from tests.refusals import refusal_of

HOST = Machine(packages=precision.PACKAGES)
OLD_CARD = Machine(True, (8, 0), precision.PACKAGES)
NEW_CARD = Machine(True, (9, 0), precision.PACKAGES)
BARE = Machine()


def tensor(name: str, dtype: str, *shape: int) -> StoredTensor:
    bits = {"F32": 32, "BF16": 16, "F16": 16, "F8_E4M3": 8, "I8": 8, "U8": 8, "I32": 32}[dtype]
    size = bits // 8
    for axis in shape:
        size *= axis
    return StoredTensor(name, dtype, shape, size)


Q_PROJ = tensor("model.layers.3.self_attn.q_proj.weight", "BF16", 512, 256)


@pytest.mark.parametrize(
    ("stored", "machine", "dtype"),
    [
        ("bfloat16", HOST, "bfloat16"),
        ("bfloat16", NEW_CARD, "bfloat16"),
        ("float16", HOST, "float32"),
        ("float16", NEW_CARD, "float16"),
        ("float32", NEW_CARD, "float16"),
        (None, HOST, "float32"),
    ],
)
def test_fp16_is_the_half_precision_a_checkpoint_is_stored_in(
    stored: str | None, machine: Machine, dtype: str
) -> None:
    assert choose("FP16", stored, None, machine) == Held(dtype, dtype, Scheme.PLAIN)


def test_q2_applies_to_no_plain_checkpoint() -> None:
    refusal = refusal_of(choose, "Q2", "bfloat16", None, NEW_CARD)
    assert refusal.code == "UNSUPPORTED_QUANTIZATION"
    assert refusal.details["quantization"] == "Q2"


@pytest.mark.shows("models.18")
@pytest.mark.parametrize("asked", ["FP16", "Q8", "Q4", "Q2"])
def test_an_already_quantized_checkpoint_loads_at_its_own_precision(asked: str) -> None:
    quantized = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    assert choose(asked, "bfloat16", quantized, HOST).name == "nf4"


@pytest.mark.shows("models.18")
@pytest.mark.parametrize("machine", [HOST, OLD_CARD, Machine(True, None)])
def test_fp8_doubles_where_nothing_computes_in_it(machine: Machine) -> None:
    held = choose("FP16", "bfloat16", {"quant_method": "fp8"}, machine)
    assert held.name == "fp8->bfloat16"
    assert held_bytes(tensor("model.layers.0.mlp.up_proj.weight", "F8_E4M3", 64, 32), held) == 4096
    scale = tensor("model.layers.0.mlp.up_proj.weight_scale_inv", "F32", 1, 1)
    assert held_bytes(scale, held) == 0


@pytest.mark.shows("models.18")
def test_fp8_stays_on_a_card_that_computes_in_it() -> None:
    held = choose("FP16", "bfloat16", {"quant_method": "fp8"}, NEW_CARD)
    assert held.name == "fp8"
    assert held_bytes(tensor("model.layers.0.mlp.up_proj.weight", "F8_E4M3", 64, 32), held) == 2048


def test_mxfp4_is_expanded_without_its_kernels() -> None:
    quantized = {"quant_method": "mxfp4"}
    bare = choose("FP16", "bfloat16", quantized, Machine(True, (9, 0)))
    assert bare.name == "mxfp4->bfloat16"
    blocks = tensor("model.layers.0.mlp.experts.down_proj_blocks", "U8", 4, 64, 2, 16)
    assert held_bytes(blocks, bare) == 4 * 64 * 2 * 16 * 2 * 2
    assert choose("FP16", "bfloat16", quantized, NEW_CARD).name == "mxfp4"


@pytest.mark.parametrize(
    ("quantized", "machine", "word"),
    [
        ({"quant_method": "gptq"}, BARE, "optimum and gptqmodel"),
        ({"quant_method": "awq"}, BARE, "gptqmodel"),
        ({"quant_method": "compressed-tensors"}, BARE, "compressed_tensors"),
        ({"quant_method": "hqq"}, BARE, "hqq"),
        ({"load_in_8bit": True}, BARE, "bitsandbytes"),
        ({"quant_method": "eetq"}, HOST, "card"),
        ({"quant_method": "homemade"}, NEW_CARD, "homemade"),
    ],
)
def test_a_quantized_checkpoint_that_cannot_be_read_is_refused_by_name(
    quantized: dict[str, Any], machine: Machine, word: str
) -> None:
    refusal = refusal_of(choose, "FP16", "bfloat16", quantized, machine)
    assert refusal.code == "UNSUPPORTED_QUANTIZATION"
    assert word in refusal.message


@pytest.mark.parametrize("asked", ["Q8", "Q4"])
def test_quantizing_needs_its_package(asked: str) -> None:
    assert refusal_of(choose, asked, "bfloat16", None, BARE).details["missing"] == ["bitsandbytes"]


def test_only_linear_weights_of_layers_are_quantized() -> None:
    held = choose("Q8", "bfloat16", None, HOST)
    assert held_bytes(Q_PROJ, held) == 512 * 256 + 4 * 512
    for name, shape in [
        ("lm_head.weight", (512, 256)),
        ("model.embed_tokens.weight", (512, 256)),
        ("model.layers.3.input_layernorm.weight", (256,)),
        ("model.layers.3.self_attn.q_proj.bias", (512,)),
        ("model.layers.3.mlp.experts.7.up_proj.weight", (512, 256)),
        ("model.layers.3.mlp.experts.gate_up_proj", (4, 512, 256)),
    ]:
        stored = tensor(name, "F32", *shape)
        assert held_bytes(stored, held) == stored.size_bytes // 2, name


def test_four_bits_take_half_a_byte_and_their_scales() -> None:
    held = choose("Q4", "bfloat16", None, HOST)
    count = 512 * 256
    # 16 and 256 values of the two code books
    assert held_bytes(Q_PROJ, held) == count // 2 + count // 64 + 4 * (count // 64 // 256) + 1088


def test_compiled_functions_of_a_host_read_wide_scales_and_a_head_in_8_bits() -> None:
    packed = Machine(packages=precision.PACKAGES, has_compiler=True)
    count = 512 * 256
    for asked, size in (("Q8", count + 4 * 512), ("Q4", count // 2 + 4 * (count // 64))):
        held = choose(asked, "bfloat16", None, packed)
        assert held_bytes(Q_PROJ, held) == size
        assert precision.head_bytes(1000, 256, held) == 1000 * (256 + 4)
    stored = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    scales = tensor("model.layers.0.mlp.up_proj.weight.absmax", "U8", 2048)
    assert held_bytes(scales, choose("FP16", "bfloat16", stored, packed)) == 4 * 2048
    assert held_bytes(scales, choose("FP16", "bfloat16", stored, HOST)) == 2048
    for asked, machine in (
        ("FP16", packed),
        ("Q8", HOST),
        ("Q8", replace(NEW_CARD, has_compiler=True)),
    ):
        held = choose(asked, "bfloat16", None, machine)
        assert not held.is_packed
        assert precision.head_bytes(1000, 256, held) == 1000 * 256 * 2


def test_a_shape_that_four_bits_do_not_fit_stays_plain() -> None:
    odd = tensor("model.layers.0.mlp.up_proj.weight", "BF16", 512, 100)
    assert held_bytes(odd, choose("Q4", "bfloat16", None, HOST)) == odd.size_bytes


def test_precisions_are_ordered_by_size() -> None:
    sizes = [held_bytes(Q_PROJ, choose(q, "bfloat16", None, HOST)) for q in ("FP16", "Q8", "Q4")]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == Q_PROJ.size_bytes


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.layers.12.mlp.up_proj.weight", 12),
        ("h.3.attn.c_attn.weight", 3),
        ("transformer.h.0.ln_1.weight", 0),
        ("transformer.blocks.5.ffn.up_proj.weight", 5),
        ("bert.encoder.layer.1.output.dense.weight", 1),
        ("model.language_model.layers.2.mlp.up_proj.weight", 2),
        ("model.vision_tower.encoder.layers.9.mlp.fc1.weight", None),
        ("lm_head.weight", None),
        ("model.layers.999999.up_proj.weight", 999_999),
        ("model.layers.1000000.up_proj.weight", None),
        (f"model.layers.{'9' * 5000}.up_proj.weight", None),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_tensor_knows_its_layer(name: str, layer: int | None) -> None:
    assert tensor(name, "BF16", 2, 2).layer == layer


def test_quantization_is_found_where_checkpoints_name_it() -> None:
    inner = {"quant_method": "fp8"}
    assert precision.quantization_config({"quantization_config": inner}) == inner
    assert precision.quantization_config({"compression_config": inner}) == inner
    assert precision.quantization_config({"text_config": {"quantization_config": inner}}) == inner
    assert precision.quantization_config({"quantization_config": None, "text_config": 3}) is None


def test_loading_experts_stages_one_layer_of_them() -> None:
    held = choose("FP16", "bfloat16", None, HOST)
    experts = tuple(
        tensor(f"model.layers.{layer}.mlp.experts.{e}.up_proj.weight", "BF16", 64, 32)
        for layer in range(2)
        for e in range(4)
    )
    assert precision.staging_bytes((*experts, Q_PROJ), held) == 4 * 64 * 32 * 2
    assert precision.staging_bytes((Q_PROJ,), held) == 0
    assert precision.staging_bytes((Q_PROJ,), choose("Q4", "bfloat16", None, HOST)) > 0
