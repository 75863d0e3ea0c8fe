"""The digest by which engines are known to compute the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from steerserve.worker.model import invariance
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
