"""Whether an SAE fits the loaded model at a layer."""

from __future__ import annotations

import pytest

from steerserve.errors import Refusal
from steerserve.rules import attachment
from steerserve.rules.attachment import Claim, Verdict

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
    with pytest.raises(Refusal) as refused:
        attachment.check(verdict, claim, 8)
    assert refused.value.code == "SAE_INCOMPATIBLE"
    assert refused.value.details["d_in"] == 16
    assert refused.value.details["hidden_size"] == 8
    assert refused.value.details["errors"] == list(verdict.errors)


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
    attachment.check(verdict, claim, 8)


@pytest.mark.parametrize(
    ("claimed", "names"),
    [
        ("gpt2-small", ("GPT2-Small",)),
        ("google/gemma-2-2b", ("gemma-2-2b-it",)),
        ("org/tiny", ("my name", "someone/tiny")),
        (None, ("anything",)),
    ],
)
def test_the_family_is_recognised_by_any_name_of_the_model(
    claimed: str | None, names: tuple[str, ...]
) -> None:
    assert judge(Claim(8, 2, claimed, "resid_post"), names=names).warnings == ()


def test_every_error_and_warning_is_told_at_once() -> None:
    verdict = judge(Claim(16, 1, "huge", None), layer=9)
    assert (len(verdict.errors), len(verdict.warnings)) == (2, 3)
