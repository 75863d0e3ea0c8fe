"""Patches of a text with values of another: each equals a pass of the library's model with a hook of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from steerserve.messages import Patch, Patched
from steerserve.rules.inference.patches import Cell, Metric
from steerserve.rules.saes.sites import (
    RESID_MID,
    RESID_PRE,
)
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.sae import sites
from tests.worker import models
from tests.worker.running import Bench, hooked, open_checkpoint, site_of, words

BASE, SOURCE = words(30), words(30, 40)
TARGET, AGAINST = 7, 9
DIFFERENCE = Metric("logit_difference", TARGET, AGAINST)
KL = Metric("kl")
NEAR = 2e-4

Open = Callable[[str], Checkpoint]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Open:
    held: dict[str, Checkpoint] = {}
    root: Path = tmp_path_factory.mktemp("patching")

    def of(variant: str) -> Checkpoint:
        if variant not in held:
            models.save(variant, root / variant)
            held[variant] = open_checkpoint(root / variant)
        return held[variant]

    return of


class Hooks:
    """The library's model in plain passes, with hooks of the test's own."""

    def __init__(self, model: Checkpoint, base: list[int], source: list[int]) -> None:
        self.model = model
        self.base = base
        self.source = source

    def logits(self, ids: list[int]) -> Tensor:
        found: Tensor = self.model.model(input_ids=torch.tensor([ids]), use_cache=False).logits
        return found[0, -1].float()

    def values(self, ids: list[int], name: str, layer: int) -> Tensor:
        """The tensor of a site's module [T, width]."""
        kept: list[Tensor] = []
        site = site_of(self.model, layer, name)
        with hooked(site, lambda x: kept.append(x.detach().clone())):
            self.logits(ids)
        return kept[0].view(len(ids), -1)

    def patched(self, cell: Cell, pairs: dict[int, int] | None = None) -> Tensor:
        site = site_of(self.model, cell.layer, cell.site)
        new = self.values(self.source, cell.site, cell.layer)
        if cell.site == RESID_MID:
            new = new + self.values(self.source, RESID_PRE, cell.layer) / site.scale
            new = new.clone()
            residual = self.values(self.base, RESID_PRE, cell.layer)
        columns = slice(None)
        if cell.head is not None:
            dim = site.width // site.heads
            columns = slice(cell.head * dim, (cell.head + 1) * dim)

        def write(value: Tensor) -> Tensor:
            changed = value.clone()
            flat = changed.view(len(self.base), -1)
            for at in cell.positions:
                its = new[(pairs or {}).get(at, at)]
                if cell.site == RESID_MID:
                    its = its - residual[at] / site.scale
                flat[at, columns] = its[columns]
            return changed

        with hooked(site, write):
            return self.logits(self.base)


def swept(model: Checkpoint, base: list[int], source: list[int], **fields: Any) -> Patched:
    bench = Bench(model)
    goal = Patch(**{"metric": DIFFERENCE, "noise": [], "source": source, **fields})
    bench.patch(1, base, goal)
    bench.run()
    assert not bench.refused
    return bench.patched[1]


def texts(model: Checkpoint) -> tuple[list[int], list[int]]:
    base, source = (model.encode(text, special=True) for text in (BASE, SOURCE))
    size = min(len(base), len(source), 20)
    return base[:size], source[:size]


def cells_of(model: Checkpoint, tokens: int) -> list[Cell]:
    """Cells at every site of the model, the last position, one in the middle, all of them, and one head."""
    found = []
    for name, width in sites.widths(model.model, model.layers).items():
        assert width
        for layer in (0, model.layers - 1):
            with ExitStack():
                try:
                    site = site_of(model, layer, name)
                except Exception:
                    continue
            found += [Cell(name, layer, (tokens - 1,)), Cell(name, layer, (tokens // 2,))]
            found += [Cell(name, layer, tuple(range(tokens))), Cell(name, layer, (2, tokens - 3))]
            if site.heads:
                found += [Cell(name, layer, (tokens - 2,), head) for head in range(site.heads)]
    return found


@pytest.mark.parametrize("variant", [*models.SERVED, "bloom", "mamba", "falcon_alibi", "jamba"])
def test_each_patch_equals_a_hook(opened: Open, variant: str) -> None:
    model = opened(variant)
    base, source = texts(model)
    cells = cells_of(model, len(base))
    assert len(cells) > 10
    found = swept(model, base, source, cells=cells, noise=cells[::5])
    own = Hooks(model, base, source)

    def metric(logits: Tensor) -> float:
        return float(logits[TARGET] - logits[AGAINST])

    near = partial(pytest.approx, rel=NEAR, abs=NEAR)
    assert found.corrupt == near(metric(own.logits(base)))
    assert found.clean == near(metric(own.logits(source)))
    assert found.cells == near([metric(own.patched(cell)) for cell in cells])
    assert found.noise == near([found.corrupt] * len(cells[::5]))
