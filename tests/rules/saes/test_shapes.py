"""Every name that a loaded file's parts may have is known before it is fetched, too."""

from __future__ import annotations

import pytest

from steerserve.rules.models.precision import StoredTensor
from steerserve.rules.saes import shapes as sae_shapes
from steerserve.rules.saes.shapes import NAMES, Width

WIDTH = Width(4, 8, "float32")


def tensors(encoder: str, decoder: str, before: str = "") -> list[StoredTensor]:
    """Both matrices and both biases; linear modules store theirs the other way round."""
    shape = (4, 8) if decoder.endswith(".weight") else (8, 4)
    stored = {encoder: shape[::-1], decoder: shape, "b_enc": (8,), "b_dec": (4,)}
    return [StoredTensor(before + name, "F32", axes, 0) for name, axes in stored.items()]


@pytest.mark.parametrize("before", ["", "sae.", "module.", "_orig_mod.sae."])
@pytest.mark.parametrize("decoder", NAMES["W_dec"])
@pytest.mark.parametrize("encoder", NAMES["W_enc"])
def test_every_pair_of_names_tells_the_width(encoder: str, decoder: str, before: str) -> None:
    assert sae_shapes.width_of(tensors(encoder, decoder, before)) == WIDTH


def test_two_tensors_never_get_one_name() -> None:
    stored = ["module.W_enc", "W_enc", "module.W_dec"]
    assert sae_shapes.plain_names(stored) == {name: name for name in stored}
    assert sae_shapes.plain_names(["_orig_mod.module.a", "b"]) == {
        "a": "_orig_mod.module.a",
        "b": "b",
    }
