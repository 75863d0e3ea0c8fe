"""SAE checkpoints: read as published, computed as the papers say, refused by code when damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from steerserve.errors import Refusal
from steerserve.messages import Claims
from steerserve.worker.sae import formats
from steerserve.worker.sae.canonical import Sae
from tests.refusals import refusal_of
from tests.worker.running import attempt, random_sae
from tests.worker.saes import (
    D_IN,
    D_SAE,
    K,
    arrays,
    config_older,
    config_v6,
    reference,
    source,
    write,
)

X = np.random.default_rng(3).normal(size=(20, D_IN)).astype(np.float32) * 3 + 0.5
KINDS = [
    ("standard", False),
    ("topk", False),
    ("topk", True),
    ("jumprelu", False),
    ("gated", False),
]


def assert_computes(sae: Sae, expected: tuple[np.ndarray, np.ndarray]) -> None:
    features, x_hat = sae.reconstruct(torch.from_numpy(X))
    assert (expected[0] != 0).any()
    np.testing.assert_allclose(features.numpy(), expected[0], atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(x_hat.numpy(), expected[1], atol=1e-5, rtol=1e-5)
    assert torch.equal(sae.encode(torch.from_numpy(X)), features)


def inspected_and_loaded(folder: Path) -> tuple[Claims, Sae]:
    return formats.inspect(source(folder)), formats.load(source(folder))


def load_code(folder: Path) -> str:
    refusal = refusal_of(inspected_and_loaded, folder)
    assert str(folder) not in refusal.message
    return refusal.code


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
    assert_computes(
        sae,
        reference(
            X, tensors, kind, normalisation=normalisation, subtract=subtract, rescale=rescale
        ),
    )


def test_topk_keeps_k_features_and_never_a_negative_one(tmp_path: Path) -> None:
    tensors = arrays("topk")
    tensors["b_enc"][:] = -3.0
    sae = formats.load(source(write(tmp_path, config_v6("topk"), tensors)))
    features = sae.encode(torch.from_numpy(X))
    assert (features >= 0).all()
    assert ((features > 0).sum(-1) <= K).all()
    assert_computes(sae, reference(X, tensors, "topk"))


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


def test_version_6_claims_are_read_from_its_metadata(tmp_path: Path) -> None:
    claims = formats.inspect(source(write(tmp_path, config_v6("topk"), arrays("topk"))))
    assert (claims.architecture, claims.d_in, claims.d_sae) == ("topk", D_IN, D_SAE)
    assert (claims.hook_name, claims.site, claims.layer) == (
        "blocks.0.hook_resid_post",
        "resid_post",
        0,
    )
    assert (claims.model_name, claims.l0) == ("llama-tiny", K)
    assert claims.size_bytes == (tmp_path / "sae_weights.safetensors").stat().st_size


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
    assert_computes(sae, reference(X, tensors, kind, subtract=subtract))


def test_a_scaling_factor_of_ones_is_ignored_and_another_refused(tmp_path: Path) -> None:
    tensors = arrays("standard")
    ones = tensors | {"scaling_factor": np.ones(D_SAE, np.float32)}
    sae = formats.load(source(write(tmp_path / "ones", config_older(), ones)))
    assert_computes(sae, reference(X, tensors, "standard", subtract=True))
    other = tensors | {"scaling_factor": np.full(D_SAE, 1.5, np.float32)}
    assert load_code(write(tmp_path / "other", config_older(), other)) == "SAE_INCOMPATIBLE"


# ---------------------------------------------------------------- damage


def edited(tensors: dict[str, np.ndarray], **changes: Any) -> dict[str, np.ndarray]:
    whole = {**tensors, **changes}
    return {name: array for name, array in whole.items() if array is not None}


def spoiled(array: np.ndarray, value: float) -> np.ndarray:
    out = array.copy()
    out.flat[3] = value
    return out


PARAMETERS = [
    ("standard", "W_enc"),
    ("standard", "W_dec"),
    ("standard", "b_enc"),
    ("standard", "b_dec"),
    ("jumprelu", "threshold"),
    ("gated", "b_gate"),
    ("gated", "b_mag"),
    ("gated", "r_mag"),
]


@pytest.mark.parametrize(("kind", "name"), PARAMETERS)
def test_a_missing_tensor_is_refused(tmp_path: Path, kind: str, name: str) -> None:
    tensors = edited(arrays(kind), **{name: None})
    assert load_code(write(tmp_path, config_v6(kind), tensors)) == "SAE_LOAD_FAILED"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("kind", "name"), PARAMETERS)
def test_a_number_that_is_not_finite_is_refused(
    tmp_path: Path, kind: str, name: str, value: float
) -> None:
    tensors = arrays(kind)
    tensors[name] = spoiled(tensors[name], value)
    assert load_code(write(tmp_path, config_v6(kind), tensors)) == "SAE_LOAD_FAILED"


@pytest.mark.parametrize(("kind", "name"), PARAMETERS)
def test_a_tensor_of_another_shape_is_refused(tmp_path: Path, kind: str, name: str) -> None:
    tensors = arrays(kind)
    tensors[name] = tensors[name][:-1]
    assert load_code(write(tmp_path, config_v6(kind), tensors)) == "SAE_LOAD_FAILED"


def test_a_decoder_that_is_no_matrix_is_refused(tmp_path: Path) -> None:
    tensors = edited(arrays("standard"), W_dec=np.zeros(D_SAE, np.float32))
    folder = write(tmp_path, config_v6("standard"), tensors)
    for read in (formats.inspect, formats.load):
        with pytest.raises(Refusal) as refused:
            read(source(folder))
        assert refused.value.code == "SAE_LOAD_FAILED"


@pytest.mark.parametrize("kept", [0, 4, 100, 3000])
def test_truncated_weights_are_refused(tmp_path: Path, kept: int) -> None:
    folder = write(tmp_path, config_v6("standard"), arrays("standard"))
    weights = folder / "sae_weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    assert load_code(folder) == "SAE_LOAD_FAILED"


def test_a_folder_without_weights_is_refused_and_names_what_is_there(tmp_path: Path) -> None:
    folder = write(tmp_path, config_v6("standard"), arrays("standard"))
    (folder / "sae_weights.safetensors").unlink()
    refusal = refusal_of(lambda: formats.inspect(source(folder)))
    assert refusal.code == "SAE_LOAD_FAILED"
    assert refusal.details["files"] == ["cfg.json"]


def test_weights_without_their_configuration_must_be_told_of(tmp_path: Path) -> None:
    folder = write(tmp_path, config_v6("standard"), arrays("standard"))
    (folder / "cfg.json").unlink()
    assert formats.inspect(source(folder)).needs == ["activation", "subtract_b_dec"]
    assert load_code(folder) == "SAE_LOAD_FAILED"


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert load_code(tmp_path / "nowhere") == "SAE_LOAD_FAILED"


def test_a_broken_configuration_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, config_v6("standard"), arrays("standard"))
    (folder / "cfg.json").write_bytes(b"{")
    assert load_code(folder) == "SAE_LOAD_FAILED"


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
    assert load_code(write(tmp_path, FOREIGN[case], tensors)) == "SAE_LOAD_FAILED"


@pytest.mark.parametrize("layer", ["three", 2.5, [1], -1])
def test_a_layer_that_is_no_index_is_refused_or_not_claimed(tmp_path: Path, layer: Any) -> None:
    config = config_older(hook_point=..., hook_point_layer=layer, activation_fn_str="relu")
    folder = write(tmp_path, config, arrays("standard"))
    claims, code = attempt(lambda: formats.inspect(source(folder)))
    assert code in (None, "SAE_LOAD_FAILED")
    assert claims is None or claims.layer is None
