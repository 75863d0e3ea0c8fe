"""Values that a checkpoint leaves open, and the overrides that give or replace them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from steerserve.messages import SaeSource
from steerserve.worker.sae import formats
from tests.worker.sae import checkpoints as disk
from tests.worker.sae.checkpoints import D_IN, D_SAE, Written
from tests.worker.sae.computed import X, assert_computes, refused
from tests.worker.sae.reference import How, compute

# ---------------------------------------------------------------- what is not known


@pytest.mark.parametrize(
    ("write", "options"),
    [
        (disk.llama_scope_r1, {}),
        (disk.llamascopium, {"norm_activation": "dataset-wise"}),
        (disk.llamascopium, {"norm_activation": "batch-wise"}),
        (
            disk.llamascopium,
            {
                "norm_activation": "dataset-wise",
                "norms": {"blocks.9.hook_resid_post": float("nan")},
            },
        ),
        (disk.saelens_older, {"normalize_activations": True}),
        (disk.saelens, {"normalize_activations": "expected_average_only_in"}),
    ],
)
def test_a_norm_factor_that_is_nowhere_is_warned_of_and_can_be_given(
    tmp_path: Path, write: Callable[..., Written], options: dict[str, Any]
) -> None:
    written = write(tmp_path, **options)
    claims = formats.inspect(written.source())
    assert any("uncalibrated" in warning for warning in claims.warnings)
    assert claims.normalisation == "expected_average_only_in"
    sae = formats.load(written.source())
    assert not sae.is_calibrated
    kind = "jumprelu" if "threshold" in written.arrays else "relu"
    how = How(kind, subtract=write is disk.saelens_older)
    assert_computes(sae, written.arrays, how)
    given = written.source(norm_factor=0.4)
    assert not any("uncalibrated" in warning for warning in formats.inspect(given).warnings)
    sae = formats.load(given)
    assert sae.is_calibrated
    assert_computes(sae, written.arrays, replace(how, c=0.4))


def test_a_finetuned_scaling_factor_is_in_the_decoder_rows(tmp_path: Path) -> None:
    factor = np.linspace(0.5, 2, D_SAE).astype(np.float32)
    written = disk.saelens_older(
        tmp_path, extra={"scaling_factor": factor}, finetuning_scaling_factor=True
    )
    sae = formats.load(written.source())
    features, _ = compute(X, written.arrays, How(subtract=True))
    ours, x_hat = sae.reconstruct(torch.from_numpy(X))
    np.testing.assert_allclose(ours.numpy(), features, atol=1e-5)
    wanted = (features * factor) @ written.arrays["W_dec"] + written.arrays["b_dec"]
    np.testing.assert_allclose(x_hat.numpy(), wanted, atol=1e-4, rtol=1e-5)


def test_a_batch_top_k_without_a_threshold_is_told(tmp_path: Path) -> None:
    written = disk.dictionary_learning(tmp_path, "BatchTopKSAE", threshold=-1.0)
    assert any(
        "largest features of every token" in w for w in formats.inspect(written.source()).warnings
    )


def named(names: tuple[str, str, str, str], turned: tuple[bool, bool]) -> dict[str, torch.Tensor]:
    p = disk.arrays()
    arrays = [
        p["W_enc"].T if turned[0] else p["W_enc"],
        p["b_enc"],
        p["W_dec"].T if turned[1] else p["W_dec"],
        p["b_dec"],
    ]
    return disk.tensors(dict(zip(names, arrays, strict=True)))


CANONICAL = ("W_enc", "b_enc", "W_dec", "b_dec")
SEQUENTIAL = ("encoder.0.weight", "encoder.0.bias", "decoder.weight", "decoder.bias")
OPENAI = ("encoder.weight", "latent_bias", "decoder.weight", "pre_bias")


@pytest.mark.parametrize("wrapped", ["plain", "state_dict", "autoencoder", "model"])
@pytest.mark.parametrize(
    ("names", "turned"),
    [
        (CANONICAL, (False, False)),
        (CANONICAL, (True, False)),
        (CANONICAL, (True, True)),
        (SEQUENTIAL, (True, True)),
        (OPENAI, (True, True)),
    ],
)
def test_a_dump_that_says_nothing_loads_when_it_is_told(
    tmp_path: Path, names: tuple[str, str, str, str], turned: tuple[bool, bool], wrapped: str
) -> None:
    values: Any = named(names, turned)
    written = disk.raw(tmp_path, values if wrapped == "plain" else {wrapped: values})
    claims = formats.inspect(written.source())
    assert (claims.format, claims.architecture) == ("unknown", "unknown")
    assert (claims.d_in, claims.d_sae) == (D_IN, D_SAE)
    assert claims.needs == ["activation", "subtract_b_dec"]
    refusal = refused(written.source())
    assert refusal.code == "SAE_LOAD_FAILED"
    assert refusal.details["needs"] == claims.needs
    assert all(name in refusal.message for name in (*names, "activation", "subtract_b_dec"))
    told = written.source(activation="topk", k=3, subtract_b_dec=True)
    assert formats.inspect(told).needs == []
    assert_computes(formats.load(told), disk.arrays(), How("topk", k=3, subtract=True))


def test_a_dump_needs_what_its_activation_needs(tmp_path: Path) -> None:
    written = disk.raw(tmp_path, named(CANONICAL, (False, False)))

    def needs(**overrides: Any) -> list[str]:
        return formats.inspect(written.source(subtract_b_dec=False, **overrides)).needs

    assert needs(activation="relu") == []
    assert needs(activation="topk") == ["k"]
    assert needs(activation="jumprelu") == ["threshold"]
    told = written.source(subtract_b_dec=False, activation="jumprelu", threshold=0.3)
    assert_computes(formats.load(told), disk.arrays(), How("jumprelu", threshold=0.3))
    gated = written.source(subtract_b_dec=False, activation="gated")
    assert "b_gate" in refused(gated, formats.inspect).message


def test_a_dump_with_its_configuration_needs_nothing(tmp_path: Path) -> None:
    config = {"hook_point": "blocks.2.hook_resid_post", "activation_fn_str": "relu"}
    values = {"state_dict": named(CANONICAL, (False, False)), "cfg": config}
    written = disk.raw(tmp_path, values)
    claims = formats.inspect(written.source())
    assert (claims.format, claims.layer, claims.needs) == ("saelens", 2, [])
    assert_computes(formats.load(written.source()), disk.arrays(), How(subtract=True))


def test_a_file_without_encoder_and_decoder_is_refused_with_what_it_holds(tmp_path: Path) -> None:
    written = disk.raw(tmp_path, {"transformer.wte": torch.zeros(4, 4), "lm_head": torch.zeros(2)})
    refusal = refused(written.source(activation="relu"), formats.inspect)
    assert refusal.code == "SAE_LOAD_FAILED"
    assert refusal.details["tensors"] == {"transformer.wte": [4, 4], "lm_head": [2]}
    assert "transformer.wte [4, 4]" in refusal.message


def test_of_several_files_one_must_be_named(tmp_path: Path) -> None:
    disk.raw(tmp_path, named(CANONICAL, (False, False)), "a.pt")
    written = disk.raw(tmp_path, named(CANONICAL, (False, False)), "b.pt")
    source = SaeSource(str(tmp_path), "someone/uploads")
    assert refused(source, formats.inspect).details["files"] == ["a.pt", "b.pt"]
    assert formats.inspect(written.source()).d_sae == D_SAE


def test_a_class_that_is_not_known_needs_its_activation(tmp_path: Path) -> None:
    written = disk.dictionary_learning(tmp_path, "WhollyNewSAE")
    claims = formats.inspect(written.source())
    assert (claims.architecture, claims.needs) == ("WhollyNewSAE", ["activation", "subtract_b_dec"])
    told = written.source(activation="relu", subtract_b_dec=True)
    assert_computes(formats.load(told), written.arrays, How(subtract=True))


# ---------------------------------------------------------------- what an operator says


@pytest.mark.parametrize(
    ("overrides", "how"),
    [
        ({"activation": "relu"}, How()),
        ({"activation": "topk", "k": 4}, How("topk", k=4)),
        ({"activation": "abstopk", "k": 4}, How("abstopk", k=4)),
        ({"activation": "groupmax", "k": 4}, How("groupmax", k=4)),
        ({"threshold": 0.7}, How("jumprelu", threshold=0.7)),
        ({"subtract_b_dec": True}, How("jumprelu", subtract=True)),
        ({"normalisation": "layer_norm"}, How("jumprelu", normalisation="layer_norm")),
        (
            {"normalisation": "constant_norm_rescale"},
            How("jumprelu", normalisation="constant_norm_rescale"),
        ),
        (
            {"normalisation": "expected_average_only_in", "norm_factor": 0.3},
            How("jumprelu", c=0.3),
        ),
        ({"is_centred": True}, How("jumprelu", is_centred=True)),
        (
            {"is_centred": True, "normalisation": "layer_norm"},
            How("jumprelu", is_centred=True, normalisation="layer_norm"),
        ),
    ],
)
@pytest.mark.parametrize("write", [disk.gemma_scope, disk.mistudio, disk.llamascopium])
def test_what_an_operator_says_stands_over_the_files(
    tmp_path: Path, write: Callable[..., Written], overrides: dict[str, Any], how: How
) -> None:
    written = write(tmp_path)
    assert_computes(formats.load(written.source(**overrides)), written.arrays, how)


def test_an_operator_s_factor_stands_over_the_configuration_s(tmp_path: Path) -> None:
    written = disk.llama_scope(tmp_path)
    how = How("jumprelu", c=0.5, threshold=0.52734375 * 0.5)
    assert_computes(formats.load(written.source(norm_factor=0.5)), written.arrays, how)
    told = written.source(normalisation="none", threshold=0.2)
    assert_computes(formats.load(told), written.arrays, How("jumprelu", threshold=0.2))


def test_an_operator_s_site_stands_over_the_files(tmp_path: Path) -> None:
    written = disk.saelens(tmp_path, hook_name="blocks.4.hook_somewhere")
    claims = formats.inspect(written.source(site="mlp_out"))
    assert (claims.site, claims.needs) == ("mlp_out", [])
    claims = formats.inspect(written.source(site="blocks.9.hook_resid_pre"))
    assert (claims.site, claims.layer) == ("resid_pre", 9)


@pytest.mark.parametrize(
    "overrides",
    [
        {"activation": "sigmoid"},
        {"normalisation": "batch"},
        {"site": "nowhere"},
        {"k": 0},
        {"k": 5},
        {"activation": "topk", "k": -1},
        {"threshold": float("nan")},
        {"activation": "relu", "threshold": 0.5},
        {"norm_factor": 2.0},
        {"normalisation": "expected_average_only_in", "norm_factor": 0.0},
        {"normalisation": "expected_average_only_in", "norm_factor": float("inf")},
        {"normalisation": "expected_average_only_in", "norm_factor": float("nan")},
    ],
)
@pytest.mark.parametrize("read", [formats.inspect, formats.load])
def test_an_override_that_nothing_would_read_is_refused(
    tmp_path: Path, overrides: dict[str, Any], read: Callable[[SaeSource], object]
) -> None:
    source = disk.gemma_scope(tmp_path).source(**overrides)
    assert refused(source, read).code == "VALIDATION_ERROR"


@pytest.mark.parametrize("overrides", [{"activation": "groupmax", "k": 7}, {"activation": "gated"}])
def test_an_override_that_the_tensors_do_not_fit_is_refused(
    tmp_path: Path, overrides: dict[str, Any]
) -> None:
    source = disk.gemma_scope(tmp_path).source(**overrides)
    assert refused(source).code == "SAE_LOAD_FAILED"


@pytest.mark.parametrize("factor", [1e-300, 1e300])
def test_a_factor_that_leaves_no_numbers_is_refused(tmp_path: Path, factor: float) -> None:
    source = disk.llama_scope(tmp_path).source(norm_factor=factor)
    assert refused(source).code == "SAE_LOAD_FAILED"
