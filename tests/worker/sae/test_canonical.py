"""The canonical SAE: chosen columns equal the whole, neighbours are those of all cosines, dtypes lose no range."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from steerserve.worker.sae import canonical
from steerserve.worker.sae.canonical import GateWeights, Sae, fits, kept
from tests.refusals import refusal_of
from tests.worker.slices import finished

D_IN, D_SAE = 24, 3000  # more features than one chunk holds
META = torch.device("meta")


def random(activation: str = "relu", dtype: torch.dtype = torch.float32, **more: Any) -> Sae:
    draw = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw)

    gate = (
        GateWeights(normal(D_SAE), normal(D_SAE), normal(D_SAE) / 4)
        if activation == "gated"
        else None
    )
    return Sae(
        W_enc=normal(D_IN, D_SAE).to(dtype),
        b_enc=normal(D_SAE),
        W_dec=(normal(D_SAE, D_IN) / 8).to(dtype),
        b_dec=normal(D_IN),
        activation=activation,
        threshold=normal(D_SAE).abs() if activation == "jumprelu" else None,
        gate=gate,
        k=30 if activation in canonical.NEEDS_K else None,
        **more,
    )


def rows(n: int = 7) -> torch.Tensor:
    return torch.randn(n, D_IN, generator=torch.Generator().manual_seed(6)) * 2 + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("more", [{}, {"subtract_b_dec": True, "is_centred": True}])
@pytest.mark.parametrize("normalisation", canonical.NORMALISATIONS)
@pytest.mark.parametrize("activation", canonical.ACTIVATIONS)
def test_chosen_columns_are_those_of_the_whole(
    activation: str, normalisation: str, more: dict[str, bool], dtype: torch.dtype
) -> None:
    sae = random(activation, dtype, normalisation=normalisation, **more)
    x = rows()
    whole = sae.encode(x)
    assert whole.dtype == torch.float32
    order = [2999, 0, 7, 1024, 1023, 7, *whole[0].topk(5).indices.tolist()]
    for features in (order, torch.tensor(order)):
        torch.testing.assert_close(
            sae.encode_columns(x, features), whole[:, order], atol=2e-5, rtol=1e-5
        )
    assert sae.encode_columns(x[0], order).shape == (len(order),)
    assert sae.encode_columns(x[None], order).shape == (1, 7, len(order))


@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3)])
@pytest.mark.parametrize("activation", ["relu", "topk", "jumprelu", "gated"])
@torch.inference_mode()
def test_a_packed_encoder_gives_the_same_activations(
    activation: str, shape: tuple[int, ...]
) -> None:
    plain = random(activation)
    packed = plain.packed_encoder()
    assert packed.packed is not None or not torch.backends.mkldnn.is_available()
    draw = torch.Generator().manual_seed(3)
    values = torch.randn(*shape, plain.d_in, generator=draw)
    torch.testing.assert_close(packed.encode(values), plain.encode(values))
    if activation != "topk":
        assert torch.equal(
            packed.narrowed([4, 1]).encode(values), plain.narrowed([4, 1]).encode(values)
        )


@pytest.mark.parametrize("scale", ["scale_by_decoder_norm", "select_by_decoder_norm"])
def test_columns_of_an_sae_that_reads_decoder_norms(scale: str) -> None:
    for activation in ("topk", "relu"):
        sae = random(activation, **{scale: True})
        whole = sae.encode(rows())
        got = sae.encode_columns(rows(), [5, 9, 2000])
        torch.testing.assert_close(got, whole[:, [5, 9, 2000]], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("activation", canonical.NEEDS_K)
def test_what_chooses_among_all_features_cannot_be_narrowed(activation: str) -> None:
    with pytest.raises(ValueError, match=activation):
        random(activation).narrowed([1])


def test_an_abstopk_keeps_signs_and_k_features() -> None:
    features = random("abstopk").encode(rows())
    assert ((features != 0).sum(-1) == 30).all()
    assert (features < 0).any()


def test_a_groupmax_keeps_one_of_each_group() -> None:
    features = random("groupmax").encode(rows())
    assert ((features > 0).unflatten(-1, (30, -1)).sum(-1) <= 1).all()
    assert (features > 0).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_neighbours_have_the_largest_cosines(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canonical, "ROWS_CHUNK", 700)
    monkeypatch.setattr(canonical, "SLICE_NUMBERS", 700 * D_IN)
    sae = random(dtype=dtype)
    directions = torch.nn.functional.normalize(sae.W_dec.float(), dim=-1)
    cosines = directions @ directions[42]
    cosines[42] = -2
    indices, values = finished(sae.nearest(42, 10))
    assert indices.tolist() == cosines.topk(10).indices.tolist()
    torch.testing.assert_close(values, cosines.topk(10).values, atol=1e-6, rtol=1e-5)
    assert len(finished(sae.nearest(42, 10**6))[0]) == D_SAE - 1


def test_the_nearest_is_the_same_direction_and_a_row_of_zeros_is_near_nothing() -> None:
    sae = random()
    sae.W_dec[8] = sae.W_dec[3] * 5
    sae.W_dec[9] = 0
    indices, values = finished(sae.nearest(3, 1))
    assert (indices.item(), values.item()) == (8, pytest.approx(1, abs=1e-6))
    _, values = finished(sae.nearest(9, 4))
    assert values.tolist() == [0, 0, 0, 0]


def test_the_features_nearest_to_a_direction_may_be_any() -> None:
    sae = random()
    indices, values = finished(sae.nearest_to(sae.W_dec[3].float() * 7, 2))
    assert (int(indices[0]), float(values[0])) == (3, pytest.approx(1, abs=1e-6))
    direction = torch.randn(sae.d_in)
    directions = torch.nn.functional.normalize(sae.W_dec.float(), dim=-1)
    cosines = directions @ torch.nn.functional.normalize(direction, dim=-1)
    indices, values = finished(sae.nearest_to(direction, 10**6))
    assert len(indices) == D_SAE
    torch.testing.assert_close(values, cosines.sort(descending=True).values, atol=1e-6, rtol=1e-5)


def test_decoder_norms_are_those_of_the_rows_and_follow_a_new_decoder() -> None:
    sae = random()
    torch.testing.assert_close(sae.decoder_norms(), sae.W_dec.norm(dim=1))
    twice = replace(sae, W_dec=sae.W_dec * 2)
    torch.testing.assert_close(twice.decoder_norms(), 2 * sae.decoder_norms())


def test_a_centred_sae_ignores_the_mean_and_adds_none() -> None:
    sae = random(is_centred=True)
    x = rows()
    torch.testing.assert_close(sae.encode(x + 3.0), sae.encode(x), atol=1e-4, rtol=1e-4)
    assert abs(float(sae.direction({1: 50.0, 2: -3.0}).mean())) < 1e-5
    _, x_hat = sae.reconstruct(x)
    _, shifted = sae.reconstruct(x + 3.0)
    torch.testing.assert_close(shifted, x_hat + 3.0, atol=1e-4, rtol=1e-4)


def cast(sae: Sae, dtype: torch.dtype) -> Sae:
    return replace(sae, W_enc=kept(sae.W_enc, dtype), W_dec=kept(sae.W_dec, dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cast_keeps_biases_and_thresholds_and_halves_the_matrices(dtype: torch.dtype) -> None:
    sae = random("jumprelu")
    half = cast(sae, dtype)
    assert (half.W_enc.dtype, half.W_dec.dtype, half.dtype) == (dtype, dtype, dtype)
    assert {half.b_enc.dtype, half.b_dec.dtype, half.threshold.dtype} == {torch.float32}  # type: ignore[union-attr]
    assert half.size_bytes == sae.size_bytes - 4 * D_IN * D_SAE
    assert half.encoder_bytes == sae.encoder_bytes - 2 * D_IN * D_SAE
    widened = cast(half, torch.float32)
    torch.testing.assert_close(half.encode(rows()), widened.encode(rows()), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        half.reconstruct(rows())[1], widened.reconstruct(rows())[1], atol=1e-4, rtol=1e-5
    )


@pytest.mark.parametrize("value", [70_000.0, -70_000.0])
def test_a_cast_that_would_make_infinities_is_refused(value: float) -> None:
    sae = random()
    sae.W_dec[17, 3] = value
    assert not fits(sae.W_dec, torch.float16)
    assert fits(sae.W_dec, torch.bfloat16)
    assert refusal_of(cast, sae, torch.float16).code == "SAE_LOAD_FAILED"
    assert cast(sae, torch.bfloat16).W_dec[17, 3].isfinite()


def test_jumprelu_keeps_only_what_is_above_the_threshold() -> None:
    sae = replace(
        random("jumprelu"),
        W_enc=torch.zeros(D_IN, D_SAE),
        b_enc=torch.tensor([0.5] * D_SAE),
        threshold=torch.tensor([0.5, 0.25] * (D_SAE // 2)),
    )
    assert sae.encode(rows())[0, :2].tolist() == [0.0, 0.5]


def test_only_the_encoder_moves_when_only_it_is_asked_for() -> None:
    sae = random("jumprelu", scale_by_decoder_norm=True)
    moved = sae.encoder_to(META)
    assert {moved.W_enc.device, moved.b_enc.device, moved.b_dec.device} == {META}
    assert moved.decoder_norms().device == META
    assert moved.W_dec is sae.W_dec
    assert moved.encode(torch.zeros(3, D_IN, device=META)).shape == (3, D_SAE)
    torch.testing.assert_close(moved.direction({4: 2.0}), sae.direction({4: 2.0}))
    assert sae.encoder_to(torch.device("cpu")) is sae
