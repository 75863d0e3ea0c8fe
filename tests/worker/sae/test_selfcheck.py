"""The check at attach: its figures at every kind of site, the choice of centring, and its warnings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from steerserve.messages import Claims, Overrides
from steerserve.rules.saes.sites import SITES
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.sae import selfcheck, sites
from steerserve.worker.sae.canonical import Sae
from tests.refusals import refusal_of
from tests.worker import models
from tests.worker.running import open_checkpoint, site_of, with_bos

HIDDEN = 32


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Its stream has a mean, the same at every position."""
    model = open_checkpoint(models.save("gpt2", tmp_path_factory.mktemp("gpt2")))
    model.model.transformer.wpe.weight.data += 3.0
    return model


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    model = open_checkpoint(models.save("llama", tmp_path_factory.mktemp("llama")))
    model.model.model.embed_tokens.weight.data += 3.0
    return model


def claims(**fields: Any) -> Claims:
    plain: dict[str, Any] = {
        "format": "saelens",
        "architecture": "standard",
        "d_in": HIDDEN,
        "d_sae": 2 * HIDDEN,
        "dtype": "float32",
        "hook_name": "blocks.1.hook_resid_pre",
        "site": "resid_pre",
        "layer": 1,
        "model_name": None,
        "l0": None,
        "size_bytes": 1,
    }
    return Claims(**{**plain, **fields})


def exact(width: int, decoder: Tensor | None = None) -> Sae:
    """Every direction and its opposite; reconstructs anything, seen through `decoder`."""
    eye = torch.eye(width)
    rows = eye if decoder is None else decoder
    return Sae(
        torch.cat([eye, -eye], 1),
        torch.zeros(2 * width),
        torch.cat([rows, -rows]),
        torch.zeros(width),
        "relu",
    )


def knows_no_mean() -> Sae:
    """Reconstructs what has no mean over d_in, and leaves the mean of anything else out."""
    return exact(HIDDEN, torch.eye(HIDDEN) - 1 / HIDDEN)


@pytest.mark.parametrize("variant", ["gpt2", "llama"])
def test_a_perfect_sae_has_no_warning_at_any_site(
    request: pytest.FixtureRequest, variant: str
) -> None:
    model: Checkpoint = request.getfixturevalue(variant)
    widths = sites.widths(model.model, model.layers)
    assert SITES.keys() <= widths.keys()
    for name in SITES:
        width = widths[name]
        site = site_of(model, 0, name)
        found = selfcheck.examine(model, exact(width), site, claims(hook_name=None, l0=width))
        assert found.warnings == [], name
        assert found.check["fvu"] < 1e-6
        assert found.check["l0"] == pytest.approx(width, rel=0.1)


def test_the_figures_are_those_of_the_text_behind_its_first_token(gpt2: Checkpoint) -> None:
    site = site_of(gpt2, 1, "resid_pre")
    ids = [gpt2.tokenizer.bos_token_id, *gpt2.encode(selfcheck.TEXT, special=True)]
    ids = ids[: gpt2.model_max_context]
    with torch.inference_mode():
        out = gpt2.model(input_ids=torch.tensor([ids]), output_hidden_states=True)
    x = out.hidden_states[1][0, 1:]
    check = selfcheck.examine(gpt2, knows_no_mean(), site, claims(hook_name=None)).check
    mean = x.mean(-1, keepdim=True)
    expected = mean.expand_as(x).pow(2).sum() / (x - x.mean(0)).pow(2).sum()
    assert check["fvu"] == pytest.approx(float(expected), rel=1e-3)
    assert check["residual_norm"] == pytest.approx(float(x.norm(dim=-1).median()), rel=1e-5)
    fires = torch.cat([x > 0, x < 0], -1)
    assert check["features_fired"] == int(fires.any(0).sum())
    assert check["tokens"] == len(x)
    assert not any("dead" in name for name in check)


def test_a_tokenizer_that_begins_texts_itself_is_not_helped_twice(
    gpt2: Checkpoint, tmp_path: Path
) -> None:
    other = open_checkpoint(with_bos(models.save("gpt2", tmp_path)))
    other.model.transformer.wpe.weight.data += 3.0
    assert other.encode("a", special=True)[0] == 0
    expected, found = (
        selfcheck.examine(model, exact(HIDDEN), site_of(model, 1, "resid_pre"), claims()).check
        for model in (gpt2, other)
    )
    assert found == expected


@pytest.mark.parametrize(
    ("site", "hook_name"),
    [
        ("resid_pre", "blocks.1.hook_resid_pre"),
        ("resid_mid", "blocks.1.hook_resid_mid"),
        ("resid_post", "blocks.1.hook_resid_post"),
    ],
)
def test_an_unmarked_sae_is_centred_where_that_is_clearly_better(
    gpt2: Checkpoint, site: str, hook_name: str
) -> None:
    found = selfcheck.examine(
        gpt2, knows_no_mean(), site_of(gpt2, 1, site), claims(hook_name=hook_name, site=site)
    )
    assert found.sae.is_centred
    assert found.check["fvu"] < 1e-6
    (warning,) = found.warnings
    assert "centred" in warning
    assert "0.00 of the variance" in warning


def test_an_sae_that_knows_the_mean_is_not_centred(gpt2: Checkpoint) -> None:
    found = selfcheck.examine(gpt2, exact(HIDDEN), site_of(gpt2, 1, "resid_pre"), claims())
    assert not found.sae.is_centred
    assert found.warnings == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"is_centred": False}, Overrides()),
        ({"hook_name": "transformer.h.1"}, Overrides()),
        ({"hook_name": None}, Overrides()),
        ({}, Overrides(is_centred=False)),
    ],
)
def test_what_the_checkpoint_or_the_operator_says_of_centring_stands(
    gpt2: Checkpoint, fields: dict[str, Any], said: Overrides
) -> None:
    site = site_of(gpt2, 1, "resid_pre")
    found = selfcheck.examine(gpt2, knows_no_mean(), site, claims(**fields), said)
    assert not found.sae.is_centred
    assert any("variance" in warning for warning in found.warnings)


def test_the_neurons_of_an_mlp_are_never_centred(gpt2: Checkpoint) -> None:
    site = site_of(gpt2, 1, "mlp_in")
    said = claims(hook_name="blocks.1.mlp.hook_in", site="mlp_in")
    assert not selfcheck.examine(gpt2, knows_no_mean(), site, said).sae.is_centred


def test_a_stream_that_rms_norm_reads_is_never_centred(llama: Checkpoint) -> None:
    site = site_of(llama, 1, "resid_pre")
    found = selfcheck.examine(llama, knows_no_mean(), site, claims())
    assert not found.sae.is_centred
    marked = replace(exact(HIDDEN), is_centred=True)
    sae, (warning,) = selfcheck.suited(llama, marked, site)
    assert not sae.is_centred
    assert "never" in warning
    assert selfcheck.suited(llama, marked, site, Overrides(is_centred=True)) == (marked, [])


@pytest.mark.parametrize(("name", "stays"), [("resid_post", True), ("mlp_neurons", False)])
def test_only_what_writes_into_the_stream_is_centred(
    gpt2: Checkpoint, name: str, stays: bool
) -> None:
    site = site_of(gpt2, 1, name)
    marked = replace(exact(site.width), is_centred=True)
    sae, warnings = selfcheck.suited(gpt2, marked, site)
    assert (sae.is_centred, bool(warnings)) == (stays, not stays)


def test_an_unknown_norm_factor_is_measured_and_not_applied(gpt2: Checkpoint) -> None:
    site = site_of(gpt2, 1, "resid_pre")
    kept: list[Tensor] = []
    handle = site.hook(lambda value: kept.append(value.clone()))
    plain = selfcheck.examine(gpt2, exact(HIDDEN), site, claims()).check
    handle.remove()
    c = HIDDEN**0.5 / float(kept[0][0, 1:].norm(dim=-1).mean())
    sae = replace(exact(HIDDEN), is_calibrated=False)
    found = selfcheck.examine(gpt2, sae, site, claims())
    assert found.check == pytest.approx(plain)
    (warning,) = found.warnings
    assert f"{c:.4g}" in warning
    assert "norm_factor" in warning


def test_a_sparsity_far_from_the_claim_is_warned_about(gpt2: Checkpoint) -> None:
    site = site_of(gpt2, 1, "resid_pre")
    (warning,) = selfcheck.examine(gpt2, exact(HIDDEN), site, claims(l0=5.0)).warnings
    assert "claims 5" in warning


def test_decoder_rows_that_are_zero_are_warned_about(gpt2: Checkpoint) -> None:
    sae = exact(HIDDEN)
    sae.W_dec[3] = 0
    found = selfcheck.examine(gpt2, sae, site_of(gpt2, 1, "resid_pre"), claims())
    assert any("zero" in warning for warning in found.warnings)


def test_figures_that_are_no_numbers_are_told_in_a_warning_only(gpt2: Checkpoint) -> None:
    sae = exact(HIDDEN)
    sae.b_dec[0] = float("inf")
    found = selfcheck.examine(gpt2, sae, site_of(gpt2, 1, "resid_pre"), claims(hook_name=None))
    assert "fvu" not in found.check
    assert any("variance" in warning for warning in found.warnings)


def test_a_place_that_gives_no_rows_of_the_sites_width_is_refused(gpt2: Checkpoint) -> None:
    site = replace(site_of(gpt2, 1, "resid_pre"), width=5)
    refusal = refusal_of(lambda: selfcheck.examine(gpt2, exact(HIDDEN), site, claims()))
    assert refusal.code == "SAE_INCOMPATIBLE"
    assert not site.module._forward_pre_hooks
