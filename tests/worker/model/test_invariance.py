"""The digest by which engines are known to compute the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from steerserve.rules.inference import stepping
from steerserve.worker.model import invariance, kept_checks
from steerserve.worker.model.checkpoint import Checkpoint
from tests.worker.compiled import OWN_PRODUCTS
from tests.worker.running import open_checkpoint

Folder = Callable[[str], Path]


def test_engines_with_the_same_weights_have_the_same_probe(folder: Folder) -> None:
    assert invariance.probe(open_checkpoint(folder("llama"))) == invariance.probe(
        open_checkpoint(folder("llama"))
    )


def test_one_other_bit_of_a_weight_is_another_probe(folder: Folder) -> None:
    model = open_checkpoint(folder("llama"))
    before = invariance.probe(model)
    with torch.no_grad():
        weight = model.model.model.norm.weight
        weight[0] = torch.nextafter(weight[0], weight.new_tensor(torch.inf))
    assert invariance.probe(model) != before


@OWN_PRODUCTS
def test_where_one_row_has_other_bits_than_two_no_pass_has_one(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert open_checkpoint(folder("llama_wide")).width in stepping.WIDTHS
    # each load makes the check anew
    monkeypatch.setattr(kept_checks, "read", lambda _: None)
    checked = invariance.varies

    def of_single_rows(model: Checkpoint) -> str | None:
        return "single rows" if model.width == 1 else checked(model)

    monkeypatch.setattr(invariance, "varies", of_single_rows)
    model = open_checkpoint(folder("llama_wide"))
    assert (model.width, model.varies) == (2, None)
    monkeypatch.setattr(invariance, "varies", lambda _: "all passes")
    model = open_checkpoint(folder("llama_wide"))
    assert (model.width, model.varies) == (stepping.WIDTH, "all passes")
