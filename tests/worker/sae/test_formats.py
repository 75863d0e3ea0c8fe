"""Every published SAE format computes what an independent reference computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from steerserve.worker.sae import formats
from tests.worker.sae import checkpoints as disk
from tests.worker.sae.checkpoints import D_IN, D_SAE, K, Written
from tests.worker.sae.computed import assert_computes
from tests.worker.sae.reference import How

C = 4 / 17.125  # sqrt(d_in) / the average norm that Llama Scope's configuration holds

Case = tuple[Callable[..., Written], dict[str, Any], How]


def saelens(kind: str, how: How, **config: Any) -> Case:
    return disk.saelens, {"kind": kind, **config}, how


def lm(dict_class: str, how: How, **config: Any) -> Case:
    return disk.dictionary_learning, {"dict_class": dict_class, **config}, how


CASES: dict[str, Case] = {
    "saelens 6 abstopk": saelens("abstopk", How("abstopk")),
    "saelens 6 abstopk rescaled": saelens(
        "abstopk", How("abstopk", scale_by_norm=True), rescale_acts_by_decoder_norm=True
    ),
    "saelens 6 matryoshka, never converted": saelens(
        "matryoshka_batchtopk", How("jumprelu"), p=disk.arrays("jumprelu"), k=7.0
    ),
    "saelens 6 with a constant scale": saelens(
        "standard",
        How(c=0.25),
        normalize_activations="constant_scalar_rescale",
        activation_normalization_factor=0.25,
    ),
    "saelens 6 centred": saelens(
        "jumprelu",
        How("jumprelu", is_centred=True),
        metadata={"model_from_pretrained_kwargs": {"center_writing_weights": True}},
    ),
    "older, centred, with layer norm": (
        disk.saelens_older,
        {
            "normalize_activations": "layer_norm",
            "model_from_pretrained_kwargs": {"center_writing_weights": True},
        },
        How(subtract=True, is_centred=True, normalisation="layer_norm"),
    ),
    "mistudio jumprelu": (disk.mistudio, {}, How("jumprelu")),
    "mistudio topk": (disk.mistudio, {"kind": "topk"}, How("topk")),
    "mistudio subtracts": (
        disk.mistudio,
        {"kind": "standard", "apply_b_dec_to_input": True},
        How(subtract=True),
    ),
    "gemma scope": (disk.gemma_scope, {}, How("jumprelu")),
    "gemma scope, lower case": (disk.gemma_scope, {"lower": True}, How("jumprelu")),
    "gemma scope, compressed": (disk.gemma_scope, {"compressed": True}, How("jumprelu")),
    "gemma scope 2": (disk.gemma_scope_2, {}, How("jumprelu")),
    "gemma scope 2, no config": (disk.gemma_scope_2, {"has_config": False}, How("jumprelu")),
    "llama scope": (disk.llama_scope, {}, How("jumprelu", c=C, threshold=0.52734375 * C)),
    "llama scope, standardised": (
        disk.llama_scope,
        {"norm_activation": "inference"},
        How("jumprelu", threshold=0.52734375),
    ),
    "llama scope, top-k": (
        disk.llama_scope,
        {"act_fn": "topk", "top_k": K},
        How("topk", c=C, select_by_norm=True),
    ),
    "llamascopium": (disk.llamascopium, {}, How("jumprelu")),
    "llamascopium, scaled": (
        disk.llamascopium,
        {"norm_activation": "dataset-wise", "norms": {"blocks.9.hook_resid_post": 8.0}},
        How("jumprelu", c=0.5),
    ),
    "llamascopium, gate on the norms": (
        disk.llamascopium,
        {
            "sparsity_include_decoder_norm": True,
            "norm_activation": "dataset-wise",
            "norms": {"blocks.9.hook_resid_post": 8.0},
        },
        How("jumprelu", c=0.5, select_by_norm=True),
    ),
    "llamascopium, top-k by the norms": (
        disk.llamascopium,
        {"act_fn": "topk", "sparsity_include_decoder_norm": True},
        How("topk", select_by_norm=True),
    ),
    "llamascopium, batch top-k": (
        disk.llamascopium,
        {"act_fn": "batchtopk", "norm_activation": "token-wise"},
        How("topk", normalisation="constant_norm_rescale"),
    ),
    "llamascopium in checkpoints": (
        disk.llamascopium,
        {"act_fn": "relu", "weights": "checkpoints/final.safetensors"},
        How(),
    ),
    "dictionary_learning standard": lm("AutoEncoder", How(subtract=True)),
    "dictionary_learning new": lm("AutoEncoderNew", How()),
    "dictionary_learning gated": lm("GatedAutoEncoder", How("gated", subtract=True)),
    "dictionary_learning jumprelu": lm("JumpReluAutoEncoder", How("jumprelu")),
    "dictionary_learning topk": lm("AutoEncoderTopK", How("topk", subtract=True)),
    "dictionary_learning batch top-k": lm(
        "BatchTopKSAE", How("jumprelu", subtract=True, threshold=0.4)
    ),
    "dictionary_learning batch top-k, unset": lm(
        "BatchTopKSAE", How("topk", subtract=True), threshold=-1.0
    ),
    "dictionary_learning matryoshka": lm(
        "MatryoshkaBatchTopKSAE", How("jumprelu", subtract=True, threshold=0.4)
    ),
    "sparsify": (disk.sparsify, {}, How("topk", subtract=True)),
    "sparsify signed": (disk.sparsify, {"signed": True}, How("abstopk", subtract=True)),
    "sparsify groupmax": (
        disk.sparsify,
        {"activation": "groupmax", "k": 8},
        How("groupmax", subtract=True, k=8),
    ),
    "goodfire": (disk.goodfire, {}, How()),
    "qresearch": (disk.qresearch, {"dtype": torch.float32}, How()),
    "qwen scope": (disk.qwen_scope, {}, How("topk")),
    "attention": (disk.attention, {}, How(subtract=True)),
}
HALF: dict[str, Case] = {
    "llama scope": (
        disk.llama_scope,
        {"dtype": torch.bfloat16},
        How("jumprelu", c=C, threshold=0.52734375 * C),
    ),
    "sparsify": (disk.sparsify, {"dtype": torch.bfloat16}, How("topk", subtract=True)),
    "qresearch": (disk.qresearch, {}, How()),
    "saelens": saelens("jumprelu", How("jumprelu"), dtype=torch.float16),
}


@pytest.mark.parametrize("case", CASES)
def test_a_format_computes_as_its_library_does(tmp_path: Path, case: str) -> None:
    write, options, how = CASES[case]
    written = write(tmp_path, **options)
    sae = formats.load(written.source())
    assert_computes(sae, written.arrays, how)
    assert sae.is_calibrated


@pytest.mark.parametrize("case", HALF)
def test_half_precision_weights_compute_what_they_hold(tmp_path: Path, case: str) -> None:
    write, options, how = HALF[case]
    written = write(tmp_path, **options)
    sae = formats.load(written.source())
    assert sae.W_enc.dtype == sae.W_dec.dtype == options.get("dtype", torch.bfloat16)
    assert sae.b_enc.dtype == sae.b_dec.dtype == torch.float32
    held = {n: _rounded(a, sae.dtype) for n, a in written.arrays.items()}
    assert_computes(sae, held, how)


def _rounded(array: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    return torch.from_numpy(np.array(array)).to(dtype).float().numpy()


def test_decoder_norms_of_a_scaled_checkpoint_are_those_in_the_model_s_own_units(
    tmp_path: Path,
) -> None:
    written = disk.llama_scope(tmp_path)
    sae = formats.load(written.source())
    wanted = np.linalg.norm(written.arrays["W_dec"], axis=1) / C
    np.testing.assert_allclose(sae.decoder_norms().numpy(), wanted, rtol=1e-5)
    np.testing.assert_allclose(
        sae.direction({3: 2.0}).numpy(), 2 * written.arrays["W_dec"][3] / C, rtol=1e-5
    )


def test_an_embedding_sae_reads_embeddings_that_the_model_scales(tmp_path: Path) -> None:
    written = disk.gemma_scope(tmp_path, inside="embedding/width_4k/average_l0_44")
    arrays, root = dict(written.arrays), np.float32(D_IN**0.5)
    arrays["W_enc"], arrays["W_dec"] = arrays["W_enc"] / root, arrays["W_dec"] * root
    assert_computes(formats.load(written.source()), arrays, How("jumprelu"))
    claims = formats.inspect(written.source())
    assert (claims.site, claims.layer, claims.hook_name) == ("embed", 0, "hook_embed")


# ---------------------------------------------------------------- orientation


@pytest.mark.parametrize("which", [("W_enc",), ("W_dec",), ("W_enc", "W_dec")])
def test_orientation_is_told_by_the_biases_not_by_the_names(
    tmp_path: Path, which: tuple[str, ...]
) -> None:
    p = disk.arrays()
    stored = {name: a.T if name in which else a for name, a in p.items()}
    written = disk.saelens(tmp_path, p=stored, d_in=D_IN, d_sae=D_SAE)
    assert_computes(formats.load(written.source()), p, How())


def test_a_square_checkpoint_is_read_as_its_family_stores_it(tmp_path: Path) -> None:
    p = disk.arrays(d_sae=D_IN)
    for number, written in enumerate(
        (
            disk.saelens(tmp_path / "a", p=p),
            disk.qwen_scope(tmp_path / "b", p=p),
            disk.sparsify(tmp_path / "c", p=p),
        )
    ):
        how = (How(), How("topk"), How("topk", subtract=True))[number]
        assert_computes(formats.load(written.source()), p, how)
