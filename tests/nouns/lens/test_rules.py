"""Which layers a lens may read, and what an attribution counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from steerserve.nouns.lens import rules as lens
from steerserve.rules.saes.attachment import SaeChoice
from tests.refusals import refusal_of


@pytest.mark.parametrize(
    ("layers", "param"),
    [
        (None, None),
        ((0, 3), None),
        ((3, 0), None),
        ((0, 4), "layers[1]"),
        ((-1,), "layers[0]"),
        ((1, 2, 1), "layers[2]"),
    ],
)
def test_layers_are_those_of_the_model_once_each(
    layers: tuple[int, ...] | None, param: str | None
) -> None:
    if param is None:
        lens.check_layers(layers, 4)
        return
    refused = refusal_of(lens.check_layers, layers, 4)
    assert (refused.code, refused.param) == ("INVALID_PARAMETER", param)


@pytest.mark.parametrize(
    ("site", "layer", "expected"),
    [
        ("resid_post", 3, False),
        ("mlp_out", 3, False),
        ("resid_post", 2, True),
        ("resid_pre", 3, True),
        ("resid_mid", 3, True),
        ("attn_out", 3, True),
        ("embed", 0, True),
    ],
)
def test_the_direct_path_is_the_only_one_behind_the_last_part(
    site: str, layer: int, expected: bool
) -> None:
    assert lens.is_direct_only(site, layer, 4) is expected


def test_the_share_of_nothing_is_not_a_number() -> None:
    assert lens.explained(1.0, 4.0) == 0.25
    assert lens.explained(1.0, -4.0) == -0.25
    assert lens.explained(1.0, 0.0) is None


def sae(sae_id: str, layer: int) -> Any:
    return SimpleNamespace(sae_id=sae_id, layer=layer, is_named=sae_id.__eq__)


@pytest.mark.parametrize(
    ("choice", "found"),
    [
        (SaeChoice("b"), ("b", 1)),
        (SaeChoice("a", 2), ("a", 2)),
        (SaeChoice(None, 2), ("a", 2)),
        (SaeChoice("a"), "layer"),
        (SaeChoice(), "sae_id"),
        (SaeChoice("c"), None),
    ],
)
def test_one_sae_must_be_meant(choice: SaeChoice, found: tuple[str, int] | str | None) -> None:
    attached = [sae("a", 1), sae("a", 2), sae("b", 1)]
    if isinstance(found, tuple):
        only = choice.only(attached)
        assert (only.sae_id, only.layer) == found
        return
    refused = refusal_of(choice.only, attached)
    expected = ("INVALID_PARAMETER", found) if found else ("SAE_NOT_ATTACHED", None)
    assert (refused.code, refused.param) == expected
