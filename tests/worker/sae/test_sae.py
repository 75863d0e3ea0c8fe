"""SAEs as SAELens writes them: computed as the papers say, and as each version of the library meant them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from steerserve.worker.sae import formats
from steerserve.worker.sae.canonical import Sae
from tests.worker.running import random_sae
from tests.worker.sae.computed import X, assert_computes, refused
from tests.worker.sae.reference import How
from tests.worker.saes import D_SAE, K, arrays, config_older, config_v6, source, write

KINDS = [
    ("standard", False),
    ("topk", False),
    ("topk", True),
    ("jumprelu", False),
    ("gated", False),
]


# ---------------------------------------------------------------- maths


@pytest.mark.parametrize("subtract", [True, False])
@pytest.mark.parametrize("normalisation", ["none", "layer_norm", "constant_norm_rescale"])
@pytest.mark.parametrize(("kind", "rescale"), KINDS)
def test_activations_and_reconstruction_equal_the_reference(
    tmp_path: Path, kind: str, rescale: bool, normalisation: str, subtract: bool
) -> None:
    tensors = arrays(kind)
    config = config_v6(kind, normalize_activations=normalisation, apply_b_dec_to_input=subtract)
    if rescale:
        config["rescale_acts_by_decoder_norm"] = True
    sae = formats.load(source(write(tmp_path, config, tensors)))
    how = How(
        "relu" if kind == "standard" else kind,
        normalisation=normalisation,
        subtract=subtract,
        scale_by_norm=rescale,
    )
    assert_computes(sae, tensors, how)


def test_topk_keeps_k_features_and_never_a_negative_one(tmp_path: Path) -> None:
    tensors = arrays("topk")
    tensors["b_enc"][:] = -3.0
    sae = formats.load(source(write(tmp_path, config_v6("topk"), tensors)))
    features = sae.encode(torch.from_numpy(X))
    assert (features >= 0).all()
    assert ((features > 0).sum(-1) <= K).all()
    assert_computes(sae, tensors, How("topk"))


def test_the_direction_is_the_sum_of_value_times_decoder_row_as_stored() -> None:
    sae = random_sae(8, 12)
    wanted = 2.5 * sae.W_dec[4] - 1.0 * sae.W_dec[0]
    torch.testing.assert_close(sae.direction({4: 2.5, 0: -1.0}), wanted, atol=1e-6, rtol=0)


def test_half_precision_weights_are_computed_in_single_precision() -> None:
    exact = random_sae(8, 12)
    half = Sae(
        *(t.bfloat16() for t in (exact.W_enc, exact.b_enc, exact.W_dec, exact.b_dec)),
        activation="relu",
    )
    widened = Sae(
        *(t.float() for t in (half.W_enc, half.b_enc, half.W_dec, half.b_dec)), activation="relu"
    )
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert torch.equal(half.encode(x), widened.encode(x.float()))


# ---------------------------------------------------------------- layouts


LAYOUTS: dict[str, tuple[dict[str, Any], str, bool]] = {
    "older, silent: subtracts": (config_older(), "standard", True),
    "older, says no": (config_older(apply_b_dec_to_input=False), "standard", False),
    "older, activation_fn_str relu": (config_older(activation_fn_str="relu"), "standard", True),
    "older, topk by activation": (
        config_older(activation_fn_str="topk", activation_fn_kwargs={"k": K}),
        "topk",
        True,
    ),
    "older, topk by activation_fn": (
        config_older(activation_fn="topk", activation_fn_kwargs={"k": K}),
        "topk",
        True,
    ),
    "5.x with a version": (config_older(sae_lens_version="5.10.7"), "standard", True),
    "6, silent: does not subtract": (
        config_v6("standard", apply_b_dec_to_input=...),
        "standard",
        False,
    ),
    "6, says yes": (config_v6("standard", apply_b_dec_to_input=True), "standard", True),
    "6 release candidate, silent": (
        config_v6(
            "standard",
            apply_b_dec_to_input=...,
            metadata={"sae_lens_version": "6.0.0-rc.1", "hook_name": "blocks.0.hook_resid_post"},
        ),
        "standard",
        False,
    ),
    "older gated": (config_older(architecture="gated"), "gated", True),
    "older jumprelu": (config_older(architecture="jumprelu"), "jumprelu", True),
    "older, normalize false": (config_older(normalize_activations=False), "standard", True),
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_a_layout_is_computed_as_its_version_meant_it(tmp_path: Path, case: str) -> None:
    config, kind, subtract = LAYOUTS[case]
    tensors = arrays(kind)
    sae = formats.load(source(write(tmp_path, config, tensors)))
    how = How("relu" if kind == "standard" else kind, subtract=subtract)
    assert_computes(sae, tensors, how)


def test_a_scaling_factor_of_ones_is_ignored(tmp_path: Path) -> None:
    tensors = arrays("standard")
    ones = tensors | {"scaling_factor": np.ones(D_SAE, np.float32)}
    sae = formats.load(source(write(tmp_path, config_older(), ones)))
    assert_computes(sae, tensors, How(subtract=True))


# ---------------------------------------------------------------- damage


def test_a_folder_without_weights_is_refused_and_names_what_is_there(tmp_path: Path) -> None:
    folder = write(tmp_path, config_v6("standard"), arrays("standard"))
    (folder / "sae_weights.safetensors").unlink()
    refusal = refused(source(folder), formats.inspect)
    assert refusal.code == "SAE_LOAD_FAILED"
    assert refusal.details["files"] == ["cfg.json"]


def test_weights_without_their_configuration_must_be_told_of(tmp_path: Path) -> None:
    folder = write(tmp_path, config_v6("standard"), arrays("standard"))
    (folder / "cfg.json").unlink()
    assert formats.inspect(source(folder)).needs == ["activation", "subtract_b_dec"]
    assert refused(source(folder)).code == "SAE_LOAD_FAILED"


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert refused(source(tmp_path / "nowhere")).code == "SAE_LOAD_FAILED"


FOREIGN: dict[str, dict[str, Any]] = {
    "no field of the format": {"hello": 1},
    "unknown architecture": config_v6("autoencoder"),
    "architecture is a list": config_v6("standard", architecture=["standard"]),
    "unknown activation": config_older(activation_fn_str="tanh-relu"),
    "unknown normalisation": config_v6("standard", normalize_activations="whitening"),
    "topk without k": config_v6("topk", k=...),
    "topk with k that is no number": config_v6("topk", k="many"),
    "topk with k of zero": config_v6("topk", k=0),
    "topk with negative k": config_v6("topk", k=-3),
    "activation arguments are a list": config_older(
        activation_fn_str="topk", activation_fn_kwargs=["k"]
    ),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_what_cannot_be_computed_is_refused(tmp_path: Path, case: str) -> None:
    tensors = arrays("topk" if "topk" in case else "standard")
    folder = write(tmp_path, FOREIGN[case], tensors)
    assert refused(source(folder)).code == "SAE_LOAD_FAILED"


@pytest.mark.parametrize("layer", ["three", 2.5, [1], -1])
def test_a_layer_that_is_no_index_is_not_claimed(tmp_path: Path, layer: Any) -> None:
    config = config_older(hook_point=..., hook_point_layer=layer, activation_fn_str="relu")
    folder = write(tmp_path, config, arrays("standard"))
    assert formats.inspect(source(folder)).layer is None
