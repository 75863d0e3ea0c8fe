"""Whether an SAE fits the loaded model at a layer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from steerserve.rules.saes import attachment
from steerserve.rules.saes.attachment import Claim, Verdict
from tests.refusals import refusal_of

FITTING = Claim(d_in=8, layer=2, model_name="org/tiny", site="resid_post")


def judge(claim: Claim, layer: int = 2, names: tuple[str, ...] = ("tiny-1",)) -> Verdict:
    return attachment.compatibility(claim, layer, hidden_size=8, layers=4, model_names=names)


def test_an_sae_of_this_model_and_layer_has_nothing_said_against_it() -> None:
    assert judge(FITTING) == Verdict((), ())


@pytest.mark.parametrize("layer", [-1, 4, 1000])
def test_a_layer_that_the_model_lacks_is_incompatible(layer: int) -> None:
    verdict = judge(FITTING, layer)
    assert not verdict.is_compatible
    assert f"layer {layer} is outside [0, 4)" in verdict.errors[0]


def test_another_input_width_is_incompatible_and_both_sizes_are_told() -> None:
    claim = Claim(d_in=16, layer=2, model_name=None, site="resid_post")
    verdict = judge(claim)
    refusal = refusal_of(attachment.refuse_incompatible, verdict, claim, 8)
    assert refusal.code == "SAE_INCOMPATIBLE"
    assert refusal.details["d_in"] == 16
    assert refusal.details["hidden_size"] == 8
    assert refusal.details["errors"] == list(verdict.errors)


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (Claim(8, 1, "tiny", "resid_post"), "trained on layer 1"),
        (Claim(8, 2, "org/huge", "resid_post"), "trained on 'org/huge'"),
        (Claim(8, 2, "tiny", None), "where it reads"),
    ],
)
def test_a_mismatch_of_layer_family_or_site_is_a_warning_only(claim: Claim, words: str) -> None:
    verdict = judge(claim)
    assert verdict.is_compatible
    assert len(verdict.warnings) == 1
    assert words in verdict.warnings[0]
    attachment.refuse_incompatible(verdict, claim, 8)


@pytest.mark.parametrize(
    ("claimed", "names"),
    [
        ("gpt2-small", ("GPT2-Small",)),
        ("gpt2-small", ("gpt2",)),
        ("gpt2", ("openai-community/gpt2",)),
        ("google/gemma-2-2b", ("gemma-2-2b-it",)),
        ("gemma-2-2b-it", ("google/gemma-2-2b",)),
        ("gemma-2b", ("google/gemma-1.1-2b-it", "gemma-2b-it")),
        ("meta-llama/Llama-3.1-8B", ("Meta-Llama-3.1-8B-Instruct",)),
        ("Llama3_1-8B-Base", ("meta-llama/Llama-3.1-8B",)),
        ("pythia-70m-deduped", ("EleutherAI/pythia-70m-deduped",)),
        ("pythia-70m-deduped", ("/models/pythia-70m-deduped/",)),
        ("Qwen/Qwen2.5-7B-Instruct", ("qwen2.5-7b",)),
        ("Qwen3-8B", ("Qwen3-8B-Q4_K_M",)),
        ("microsoft/phi-1_5", ("phi-1.5",)),
        ("org/tiny", ("my name", "someone/tiny")),
        ("m100", ("m100",)),
        ("org/M_100", ("m-100",)),
        ("8b", ("8B",)),
        (None, ("anything",)),
    ],
)
def test_the_family_is_recognised_by_any_name_of_the_model(
    claimed: str | None, names: tuple[str, ...]
) -> None:
    assert judge(Claim(8, 2, claimed, "resid_post"), names=names).warnings == ()


@pytest.mark.parametrize(
    ("claimed", "name"),
    [
        ("gpt2-small", "gpt2-xl"),
        ("gpt2", "distilgpt2"),
        ("gemma-2b", "gemma-2-2b"),
        ("google/gemma-2-2b", "gemma-3-1b-it"),
        ("google/gemma-2-2b", "gemma-2-9b"),
        ("meta-llama/Llama-3-8B", "Llama-3.1-8B"),
        ("meta-llama/Llama-3.1-8B", "DeepSeek-R1-Distill-Llama-8B"),
        ("pythia-70m", "pythia-160m"),
        ("Qwen3-8B", "Qwen2.5-7B"),
        ("phi-2", "phi-3-mini-4k-instruct"),
        ("llama-8b", "8b"),
        ("tiny", "model"),
        ("m100", "m101"),
        ("tiny", ""),
    ],
)
def test_another_model_is_warned_about(claimed: str, name: str) -> None:
    verdict = judge(Claim(8, 2, claimed, "resid_post"), names=(name,))
    assert verdict.is_compatible
    assert len(verdict.warnings) == 1
    assert repr(claimed) in verdict.warnings[0]
    assert repr(name) in verdict.warnings[0]


def test_every_error_and_warning_is_told_at_once() -> None:
    verdict = judge(Claim(16, 1, "huge", None), layer=9)
    assert (len(verdict.errors), len(verdict.warnings)) == (2, 3)


# ---------------------------------------------------------------- sites

WIDTHS = {"resid_post": 8, "mlp_out": 8, "hook_z": 12, "embed": 8}


def judge_at(claim: Claim, layer: int = 2) -> Verdict:
    return attachment.compatibility(
        claim, layer, hidden_size=8, layers=4, model_names=("tiny",), site_widths=WIDTHS
    )


@pytest.mark.parametrize(("site", "d_in"), [("hook_z", 12), ("mlp_out", 8), (None, 8)])
def test_the_width_is_that_of_the_saes_own_site(site: str | None, d_in: int) -> None:
    assert judge_at(Claim(d_in, 2, "tiny", site)).is_compatible


def test_another_width_than_the_sites_tells_both_and_where_it_would_fit() -> None:
    claim = Claim(12, 2, "tiny", "resid_post")
    (error,) = judge_at(claim).errors
    assert "reads 12" in error
    assert "has 8" in error
    assert "hook_z would fit" in error
    (error,) = judge_at(Claim(7, 2, "tiny", "hook_z")).errors
    assert "has 12" in error
    assert "would fit" not in error


def test_a_site_that_the_model_does_not_offer_is_incompatible() -> None:
    (error,) = judge_at(Claim(8, 2, "tiny", "resid_mid")).errors
    assert "'resid_mid'" in error
    assert "hook_z" in error


def test_without_widths_of_sites_the_hidden_size_decides() -> None:
    assert judge(Claim(8, 2, "tiny", "resid_mid")).is_compatible
    assert not judge(Claim(12, 2, "tiny", "hook_z")).is_compatible


def test_an_sae_of_the_embedding_goes_to_layer_0_only() -> None:
    claim = Claim(8, 0, "tiny", "embed")
    assert judge_at(claim, 0) == Verdict((), ())
    (error,) = judge_at(claim, 1).errors
    assert "layer 0" in error


def test_what_can_never_be_attached_says_why() -> None:
    claim = Claim(8, 2, "tiny", "mlp_in", reason="a transcoder reads one site and writes another")
    assert claim.reason in judge(claim).errors


@pytest.mark.parametrize("d_in", [None, 0])
def test_what_nothing_has_read_is_incompatible(d_in: int | None) -> None:
    claim = Claim(d_in, None, None, "resid_post")
    for verdict in (judge(claim), judge_at(claim)):
        assert len(verdict.errors) == 1
        assert refusal_of(attachment.refuse_incompatible, verdict, claim, 8).details["d_in"] == d_in


def test_overrides_that_are_missing_are_named() -> None:
    (error,) = judge(Claim(8, 2, "tiny", "resid_post", needs=("activation", "k"))).errors
    assert "activation, k" in error


def test_a_hook_name_that_nobody_knows_needs_an_override() -> None:
    claim = Claim(8, 2, "tiny", None, hook_name="blocks.2.hook_mlp_in")
    verdict = judge(claim)
    assert verdict.warnings == ()
    (error,) = verdict.errors
    assert "blocks.2.hook_mlp_in" in error
    assert "override" in error
    assert len(judge(replace(claim, needs=("site",))).errors) == 1
    assert judge(replace(claim, site="resid_post")) == Verdict((), ())
