"""Edits at queries, keys and values: attention goes on with what they leave, and other rows keep their bits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs
from torch import Tensor

from steerserve.messages import Follow, Overlay, Suppressed
from steerserve.parts.activations_raw.form import ACTIVATIONS_RAW
from steerserve.rules.saes.sites import OPERAND_SITES, RESID_POST
from steerserve.rules.steering.edits import Condition
from steerserve.rules.steering.live import Live
from steerserve.rules.steering.positions import Positions, Selection
from steerserve.rules.steering.vector import Direction
from steerserve.worker.batch import prefix
from steerserve.worker.model.checkpoint import Checkpoint
from tests.parts.activations_raw.test_heads import WITH_HEADS, layer_of
from tests.worker.hooks.test_replace import IDS, at, plan, read, replaced, source, values_of
from tests.worker.running import Answer, Bench, generated, site_of, words

Loaded = Callable[[str], Checkpoint]


def written(model: Checkpoint, site: str, layer: int, values: Tensor, places: list[int]) -> Tensor:
    """The stream [T, hidden] after the last layer where a hook writes values [n, width] at places of IDS."""
    found: list[Tensor] = []

    def write(value: Tensor) -> Tensor:
        changed = value.clone()
        changed[0, places] = values.to(value.dtype)
        return changed - value

    with ExitStack() as hooks, torch.inference_mode():
        for place, edit in (
            (site_of(model, layer, site), write),
            (site_of(model, model.layers - 1), lambda value: found.append(value[0].clone())),
        ):
            hooks.callback(place.hook(edit).remove)
        model.model(input_ids=torch.tensor([IDS]), use_cache=False)
    return found[0].float()


@pytest.mark.parametrize("name", WITH_HEADS)
def test_attention_goes_on_with_the_values_of_the_source(loaded: Loaded, name: str) -> None:
    """As under a hook in a pass without a cache, and beside a plain row, which keeps its text."""
    model = loaded(name)
    layer, last = layer_of(model, "q"), model.layers - 1
    (plain,) = values_of(model, [], (RESID_POST, last))
    for site in OPERAND_SITES:
        wanted = source(site_of(model, layer, site).width, 2, seed=ord(site)).clamp(-1, 1)
        edit = replaced(wanted, layer, site, positions=at(3, 7))
        own, after = values_of(model, [edit], (site, layer), (RESID_POST, last))
        assert torch.equal(own[[3, 7]], wanted)
        expected = written(model, site, layer, wanted, [3, 7])
        torch.testing.assert_close(after[: len(IDS)], expected, rtol=3e-2, atol=3e-2)
        assert (after[7] - plain[7]).abs().max() > 1e-3


def test_an_edit_of_one_head_leaves_the_other_heads(llama: Checkpoint) -> None:
    for site in OPERAND_SITES:
        place = site_of(llama, 1, site)
        wanted, dim = source(place.width), place.width // place.heads
        (before,) = values_of(llama, [], (site, 1))
        (after,) = values_of(llama, [replaced(wanted, 1, site, heads=(1,))], (site, 1))
        head = slice(dim, 2 * dim)
        assert torch.equal(after[:, head], wanted[:, head].expand_as(after[:, head]))
        prompt = before[: len(IDS)].clone()
        prompt[:, head] = after[: len(IDS), head]
        assert torch.equal(after[: len(IDS)], prompt)


def bits_of(answer: Answer) -> np.ndarray[Any, Any]:
    chunk = ACTIVATIONS_RAW.read(answer.pieces[-1].parts)
    assert chunk is not None
    return np.frombuffer(chunk.values[0].data, "<f4")


@pytest.mark.parametrize("name", ["llama", "llama_wide", "gemma2", "gpt2", "falcon"])
def test_rows_beside_an_edit_in_attention_keep_their_bits(loaded: Loaded, name: str) -> None:
    model = loaded(name)
    layer, asked = layer_of(model, "k"), read((RESID_POST, model.layers - 1))
    edits = [
        replaced(source(site_of(model, layer, site).width), layer, site) for site in OPERAND_SITES
    ]
    found = []
    for is_beside in (False, True):
        bench = Bench(model, prefix_tokens=1024)
        rows = [
            bench.ask(number, words(9 + number), max_tokens=6, plan=Suppressed(), raw=asked)
            for number in range(3)
        ]
        if is_beside:
            for number in range(3, 6):
                text = words(9 + number)
                bench.ask(number, text, max_tokens=6, plan=plan(*edits), raw=asked)
        bench.run()
        assert bench.refused == {}
        found.append([bits_of(row) for row in rows])
    for alone, beside in zip(*found, strict=True):
        assert np.array_equal(alone, beside)


def test_a_row_keeps_no_beginning_that_other_rows_would_compute_otherwise(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix, "LEAST", 32)
    model = loaded("llama_wide")
    # a row that reads its prompt would take over no beginning
    asked = structs.replace(read((RESID_POST, 1)), positions=Positions(Selection(("generated",))))
    edit = replaced(source(site_of(model, 0, "k").width), 0, "k", positions=at(100))
    text = words(160)
    found = []
    for is_after in (False, True):
        bench = Bench(model, prefix_tokens=1024)
        if is_after:
            bench.ask(1, text, max_tokens=2, plan=plan(edit))
            bench.run()
        row = bench.ask(2, text, max_tokens=4, plan=Suppressed(), raw=asked)
        bench.run()
        assert bench.refused == {}
        found.append(bits_of(row))
    assert np.array_equal(*found)


def test_live_edits_in_attention_reach_rows_that_run(llama: Checkpoint) -> None:
    edits = (replaced(10 * source(site_of(llama, 0, "v").width), 0, "v"),)
    bench = Bench(llama)
    row = bench.ask(1, words(9), max_tokens=12, plan=Follow())
    while len(row.tokens) < 4:
        bench.step()
    bench.steering.set_live(Live(1, True, edits=edits))
    bench.run()
    assert bench.refused == {}
    plain = generated(llama, words(9), 12)
    assert row.tokens[:4] == plain[:4]
    assert row.tokens != plain


@pytest.mark.parametrize("site", OPERAND_SITES)
def test_a_condition_reads_what_attention_multiplies(llama: Checkpoint, site: str) -> None:
    """An edit at the output of the heads of the same layer, where a number of the operand is above a bound."""
    width = site_of(llama, 1, site).width
    numbers = torch.zeros(width)
    numbers[5] = 1.0
    reads = Direction(1, site, numbers.numpy().astype("<f4").tobytes())
    wanted = source(site_of(llama, 1, "hook_z").width)
    read_at, plain_z = values_of(llama, [], (site, 1), ("hook_z", 1))
    bound = float(read_at[: len(IDS), 5].median())
    edit = replaced(wanted, 1, "hook_z", when=Condition(reads, above=bound))
    read_now, z = values_of(llama, [edit], (site, 1), ("hook_z", 1))
    for position in range(len(IDS)):
        if abs(float(read_now[position, 5]) - bound) > 1e-2:
            expected = wanted[0] if read_now[position, 5] > bound else plain_z[position]
            torch.testing.assert_close(z[position], expected, rtol=2e-2, atol=2e-2)


def test_only_a_pass_with_a_position_of_the_edit_acts_in_attention(llama: Checkpoint) -> None:
    bench = Bench(llama)
    steering = bench.steering
    row = bench.ask(1, words(9), max_tokens=4, plan=plan(replaced(source(32), 1)))
    assert not steering.acts_in_attention(row.row.steering, 0, 9)
    ask = partial(bench.ask, max_tokens=4)
    width = site_of(llama, 1, "k").width
    edit = replaced(source(width), 1, "k", positions=at(3))
    other = ask(2, words(9), plan=Overlay(None, {}, (edit,)))
    assert steering.acts_in_attention(other.row.steering, 0, 9)
    assert not steering.acts_in_attention(other.row.steering, 4, 5)
    assert not steering.acts_in_attention(row.row.steering, 0, 9)
    bench.run()
    assert bench.refused == {}


@pytest.mark.parametrize("site", OPERAND_SITES)
def test_a_row_is_refused_where_attention_does_not_show_the_operand(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch, site: str
) -> None:
    """It does not run without the edit, and the other row goes on."""
    place = site_of(llama, 1, site)
    monkeypatch.setattr(place.module, "forward", lambda hidden_states, **_: (hidden_states, None))
    bench = Bench(llama)
    other = bench.ask(1, words(9), max_tokens=4, plan=Suppressed())
    bench.ask(2, words(9), max_tokens=4, plan=plan(replaced(source(place.width), 1, site)))
    bench.run()
    assert bench.refused.keys() == {2}
    assert bench.refused[2].code == "INTERNAL_ERROR"
    assert len(other.tokens) == 4
