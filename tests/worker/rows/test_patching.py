"""Patches of a text with values of another: each equals a pass of the library's model with a hook of the test's own."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from steerserve.errors import Refusal
from steerserve.messages import Patch, Patched
from steerserve.nouns.patches.rules import Cell, Metric
from steerserve.rules.saes.sites import (
    ATTN_OUT,
    EMBED,
    MLP_NEURONS,
    RESID_MID,
    RESID_POST,
    RESID_PRE,
    Z,
)
from steerserve.worker import memory
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.rows import patching
from steerserve.worker.rows.layer_runs import LayerRuns
from steerserve.worker.sae import sites
from steerserve.worker.sae.sites import find
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

    def __init__(
        self, model: Checkpoint, base: list[int], source: list[int], own: Any = None
    ) -> None:
        self.model = own or model.model
        self.layers = model.layers
        self.base = base
        self.source = source

    def logits(self, ids: list[int]) -> Tensor:
        found: Tensor = self.model(input_ids=torch.tensor([ids]), use_cache=False).logits
        return found[0, -1].float()

    def values(self, ids: list[int], name: str, layer: int) -> Tensor:
        """The tensor of a site's module [T, width]."""
        kept: list[Tensor] = []
        site = find(self.model, self.layers, name, layer)
        with hooked(site, lambda x: kept.append(x.detach().clone())):
            self.logits(ids)
        return kept[0].view(len(ids), -1)

    def patched(self, cell: Cell, pairs: dict[int, int] | None = None) -> Tensor:
        site = find(self.model, self.layers, cell.site, cell.layer)
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
    for name in sites.widths(model.model, model.layers):
        for layer in (0, model.layers - 1):
            try:
                site = site_of(model, layer, name)
            except Refusal:
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


def test_the_last_mlp_runs_at_the_last_position_only(opened: Open) -> None:
    model = opened("llama")
    base, source = texts(model)
    seen: list[tuple[int, int]] = []
    layers: Any = model.model.model.layers
    hook = layers[-1].mlp.down_proj.register_forward_hook(
        lambda _, args, __: seen.append(tuple(args[0].shape[:2]))
    )
    cells = [Cell(RESID_PRE, 0, (2,)), Cell(RESID_POST, 0, (2,)), Cell(EMBED, 0, (2,))]
    try:
        swept(model, base, source, cells=cells)
    finally:
        hook.remove()
    assert (3, 1) in seen
    assert all(runs == 1 for runs, tokens in seen if tokens > 1)


def test_runs_in_small_parts_give_the_same_figures(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = opened("gemma2")
    base, source = texts(model)
    cells = cells_of(model, len(base))
    whole = swept(model, base, source, cells=cells)
    monkeypatch.setattr(patching, "MOST_TOKENS", 16)  # fewer than the text has
    monkeypatch.setattr(patching, "STREAM_BYTES", 4096)
    monkeypatch.setattr(patching, "MOST_LOGITS", 3 * models.VOCABULARY)
    monkeypatch.setattr(patching, "BLOCKS_KEPT", 2)
    parts = swept(model, base, source, cells=cells)
    assert parts.cells == pytest.approx(whole.cells, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("variant", ["llama", "gpt2", "gemma3", "mixtral"])
def test_a_model_in_bfloat16_is_patched_in_float32(tmp_path: Path, variant: str) -> None:
    models.save(variant, tmp_path / "single")
    half = AutoModelForCausalLM.from_pretrained(tmp_path / "single", dtype=torch.bfloat16)
    half.save_pretrained(models.save(variant, tmp_path / "half"))
    model = open_checkpoint(tmp_path / "half")
    assert model.dtype == torch.bfloat16
    base, source = texts(model)
    cells = [Cell(RESID_POST, layer, (at,)) for layer in range(2) for at in (2, len(base) - 2)]
    cells += [Cell(MLP_NEURONS, 1, (3, 4)), Cell(EMBED, 0, (5,))] * (variant != "mixtral")
    found = swept(model, base, source, cells=cells, noise=cells)
    exact: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "half", dtype=torch.float32)
    own = Hooks(model, base, source, exact)
    values = [float(one[TARGET] - one[AGAINST]) for one in (own.patched(cell) for cell in cells)]
    assert found.cells == pytest.approx(values, rel=1e-3, abs=1e-3)
    assert max(abs(one - found.corrupt) for one in found.noise) < 1e-4


@pytest.mark.parametrize("variant", ["llama", "mamba"])
def test_equal_texts_give_exactly_the_metric_of_the_text(opened: Open, variant: str) -> None:
    model = opened(variant)
    base, _ = texts(model)
    cells = cells_of(model, len(base))
    found = swept(model, base, base, cells=cells)
    assert {*found.cells} == {found.clean} == {found.corrupt}
    assert {*swept(model, base, base, cells=cells, metric=KL).cells} == {0.0}


@pytest.mark.parametrize("variant", models.SERVED)
def test_rows_that_share_passes_are_run_layer_by_layer(
    opened: Open, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def whole(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(patching.Whole, "read", whole)
    model = opened(variant)
    swept(model, *texts(model), cells=[Cell(RESID_POST, 0, (3,))])


def test_layers_that_give_other_logits_are_not_used(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = opened("llama")
    base, source = texts(model)
    cells = [Cell(RESID_POST, 0, (3,))]
    right = swept(model, base, source, cells=cells)
    plain = LayerRuns.call

    def wrong(self: LayerRuns, layer: int, *given: Any) -> Any:
        stream, pair = plain(self, layer, *given)
        return stream * 2, pair

    monkeypatch.setattr(LayerRuns, "call", wrong)
    found = swept(model, base, source, cells=cells)
    assert found.cells == pytest.approx(right.cells, rel=NEAR, abs=NEAR)


def test_positions_of_the_source_are_paired(opened: Open) -> None:
    model = opened("gpt2")
    base, source = texts(model)
    pairs = {3: 1, 5: 9}
    cells = [Cell(RESID_PRE, 1, (3,)), Cell(EMBED, 0, (3, 5)), Cell(ATTN_OUT, 0, (5, 4))]
    found = swept(model, base, source, cells=cells, pairs=pairs)
    own = Hooks(model, base, source)
    values = [own.patched(cell, pairs) for cell in cells]
    wanted = [float(one[TARGET] - one[AGAINST]) for one in values]
    assert found.cells == pytest.approx(wanted, rel=NEAR, abs=NEAR)


def test_a_cancelled_sweep_leaves_the_batch_and_others_their_text(opened: Open) -> None:
    model = opened("llama")
    base, source = texts(model)
    alone = Bench(model)
    text = alone.ask(2, words(20), max_tokens=12)
    alone.run()
    cells = [Cell(Z, 1, (at,), head) for at in range(len(base)) for head in range(4)]
    bench = Bench(model)
    bench.patch(1, base, Patch(source=source, cells=cells, noise=[], metric=DIFFERENCE))
    beside = bench.ask(2, words(20), max_tokens=12)
    for _ in range(4):
        bench.step()
    (row,) = bench.live_rows(1)
    goal = weakref.ref(row.goal)
    del row
    gc.disable()
    try:
        bench.batch.cancel(1)
        assert goal() is None, "the states of the sweep are kept until a collection of garbage"
    finally:
        gc.enable()
    assert not bench.live_rows(1)
    bench.run()
    assert beside.text == text.text
    assert 1 not in bench.patched


def test_a_patch_that_breaks_the_model_is_refused(opened: Open) -> None:
    model = opened("llama")
    base, source = texts(model)
    with hooked(site_of(model, 1, RESID_POST), lambda x: x * torch.nan):
        bench = Bench(model)
        cells = [Cell(RESID_POST, 0, (3,))]
        bench.patch(1, base, Patch(source=source, cells=cells, noise=[], metric=DIFFERENCE))
        bench.run()
    assert bench.refused[1].code == "NON_FINITE_LOGITS"


def test_values_without_memory_for_them_are_refused(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = opened("llama")
    base, source = texts(model)
    monkeypatch.setattr(memory, "free", lambda _: 1000)
    bench = Bench(model)
    cells = [Cell(RESID_POST, 0, (3,))]
    bench.patch(1, base, Patch(source=source, cells=cells, noise=[], metric=DIFFERENCE))
    bench.run()
    assert bench.refused[1].code == "INSUFFICIENT_MEMORY"
