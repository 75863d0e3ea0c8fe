"""`replace` writes the values of its source at its positions, to the last bit, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from steerserve.errors import Refusal
from steerserve.messages import Overlay, Suppressed
from steerserve.parts.activations_raw.form import ACTIVATIONS_RAW, RawReads, RawSite
from steerserve.rules.saes.sites import ORDER, RESID_POST, Z
from steerserve.rules.steering.edits import Condition, Edit, Source, Target, direction_target
from steerserve.rules.steering.placed import Modifiers
from steerserve.rules.steering.positions import ALL, Positions, Selection
from steerserve.rules.steering.vector import Direction
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.sae import sites
from tests import asking
from tests.worker.running import Bench, generated, random_sae, site_of, words

Loaded = Callable[[str], Checkpoint]
LIMIT = 1 << 30
IDS = list(range(5, 17))


def source(width: int, rows: int = 1, seed: int = 0) -> Tensor:
    """Values [rows, width] that a bfloat16 holds, of very different sizes."""
    numbers = np.random.default_rng(seed)
    sizes = 10.0 ** numbers.uniform(-4, 1, size=(rows, width))
    values = torch.from_numpy(numbers.normal(size=(rows, width)) * sizes)
    return values.bfloat16().float()


def replaced(
    values: Tensor, layer: int = 1, site: str = RESID_POST, way: float = 1.0, **more: Any
) -> Edit:
    heads = more.pop("heads", ())
    at = Direction(layer, site, values.numpy().astype("<f4").tobytes())
    target = direction_target("replace", way)
    return Edit(at, target, source=Source(len(values), heads), **more)


def at(*places: int, **fields: Any) -> Positions:
    return Positions(Selection(prompt_positions=places, **fields))


def read(*places: tuple[str, int]) -> RawReads:
    asked = tuple(RawSite("", site, layer) for site, layer in places)
    return RawReads(asked, ALL, False, "float32", False, LIMIT, LIMIT)


def plan(*edits: Edit, modifiers: Modifiers = Modifiers()) -> Overlay:
    return Overlay(None, {}, edits, modifiers)


def values_of(
    model: Checkpoint,
    edits: Sequence[Edit],
    *places: tuple[str, int],
    modifiers: Modifiers = Modifiers(),
    **more: Any,
) -> list[Tensor]:
    """The values [positions, width] at these sites where the edits steer, beside a plain row."""
    bench = Bench(model)
    plain = bench.ask(1, words(9), max_tokens=5, plan=Suppressed())
    steered = plan(*edits, modifiers=modifiers) if edits else Suppressed()
    asked = {"ids": IDS, "max_tokens": 4, "plan": steered, "raw": read(*places), **more}
    answer = bench.ask(2, "", **asked)
    bench.run()
    assert bench.refused == {}
    assert plain.tokens == generated(model, words(9), 5)
    chunk = ACTIVATIONS_RAW.read(answer.pieces[-1].parts)
    assert chunk is not None
    found = []
    for one in chunk.values:
        numbers = np.frombuffer(one.data, "<f4").reshape(len(chunk.positions), -1)
        found.append(torch.from_numpy(numbers.copy()))
    return found


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "mixtral", "granite"])
def test_each_site_has_the_values_of_the_source_at_the_positions(loaded: Loaded, name: str) -> None:
    """Where the model adds the value of a site to others, or multiplies it, up to one rounding."""
    model = loaded(name)
    widths = sites.widths(model.model, model.layers)
    for site in (site for site in ORDER if site in widths):
        layer = 0 if site == "embed" else 1
        wanted = source(widths[site], 2, seed=len(site))
        edit = replaced(wanted, layer, site, positions=at(3, 7))
        (after,) = values_of(model, [edit], (site, layer))
        (before,) = values_of(model, [], (site, layer))
        place = site_of(model, layer, site)
        if place.scale == 1.0 and not place.has_residual:
            assert torch.equal(after[[3, 7]], wanted)
        else:
            size = before.abs().max()
            assert (after[[3, 7]] - wanted).abs().max() <= 2**-6 * max(size, wanted.abs().max())
        others = [place for place in range(7) if place != 3]
        assert torch.equal(after[others], before[others])


def test_one_value_is_written_at_every_position_and_decode_step(llama: Checkpoint) -> None:
    wanted = source(site_of(llama, 1).width)
    (after,) = values_of(llama, [replaced(wanted)], (RESID_POST, 1))
    assert len(after) == len(IDS) + 3
    assert torch.equal(after, wanted.expand_as(after))


def test_the_next_layers_read_what_was_written(llama: Checkpoint) -> None:
    """A hook of the test's own in the model's code gives the same values behind the edit."""
    wanted = source(site_of(llama, 0).width, 2)
    edit = replaced(wanted, 0, positions=at(2, 5))
    (after,) = values_of(llama, [edit], (RESID_POST, 1))
    found: list[Tensor] = []

    def write(value: Tensor) -> Tensor:
        changed = value.clone()
        changed[0, [2, 5]] = wanted.to(value.dtype)
        return changed - value

    def keep(value: Tensor) -> None:
        found.append(value[0].clone())

    first, second = site_of(llama, 0), site_of(llama, 1)
    hooks = [first.hook(write), second.hook(keep)]
    with torch.inference_mode():
        llama.model(input_ids=torch.tensor([IDS]), use_cache=False)
    for hook in hooks:
        hook.remove()
    torch.testing.assert_close(after[: len(IDS)], found[0].float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("way", "strength"), [(0.25, 1.0), (1.0, 1.0), (1.5, 1.0), (0.5, 1.5)])
def test_a_part_of_the_way_is_gone(llama: Checkpoint, way: float, strength: float) -> None:
    wanted = source(site_of(llama, 1).width)
    edit = replaced(wanted, way=way, positions=at(4), strength=strength)
    (before,) = values_of(llama, [], (RESID_POST, 1))
    (after,) = values_of(llama, [edit], (RESID_POST, 1))
    expected = before[4] + strength * way * (wanted[0] - before[4])
    torch.testing.assert_close(after[4], expected, rtol=2**-7, atol=2**-7)


def test_only_the_heads_that_are_named_are_written(llama: Checkpoint) -> None:
    site = site_of(llama, 1, Z)
    size = site.width // site.heads
    wanted = source(site.width)
    (before,) = values_of(llama, [], (Z, 1))
    edit = replaced(wanted, 1, Z, positions=at(4), heads=(0, 2))
    (after,) = values_of(llama, [edit], (Z, 1))
    expected = before[4].clone()
    for head in (0, 2):
        expected[head * size : (head + 1) * size] = wanted[0, head * size : (head + 1) * size]
    assert torch.equal(after[4], expected)


def test_other_edits_of_the_site_are_made_before_and_after_it(llama: Checkpoint) -> None:
    """What is added is replaced too, and a later ablation reads the replaced value."""
    width = site_of(llama, 1).width
    wanted, along = source(width), source(width, seed=5)
    v = Direction(1, RESID_POST, along.numpy().astype("<f4").tobytes())
    edits = [
        Edit(v, Target(offset=3.0)),
        replaced(wanted, positions=at(4)),
        Edit(v, Target(factor=0.0), positions=at(4)),
    ]
    (after,) = values_of(llama, edits, (RESID_POST, 1))
    unit = along[0] / along[0].norm()
    expected = wanted[0] - (wanted[0] @ unit) * unit
    torch.testing.assert_close(after[4], expected, rtol=2**-7, atol=2**-7)


def test_the_norm_is_kept_where_that_is_asked_for(llama: Checkpoint) -> None:
    wanted = source(site_of(llama, 1).width)
    edit = replaced(wanted, positions=at(4))
    (before,) = values_of(llama, [], (RESID_POST, 1))
    (after,) = values_of(llama, [edit], (RESID_POST, 1), modifiers=Modifiers(True))
    expected = wanted[0] * before[4].norm() / wanted[0].norm()
    torch.testing.assert_close(after[4], expected, rtol=2**-7, atol=2**-6)


@pytest.mark.parametrize("bound", [-1e6, 1e6])
def test_a_condition_decides_whether_it_is_replaced(llama: Checkpoint, bound: float) -> None:
    width = site_of(llama, 1).width
    v = Direction(1, RESID_POST, source(width, seed=5).numpy().astype("<f4").tobytes())
    edit = replaced(source(width), when=Condition(v, above=bound))
    (before,) = values_of(llama, [], (RESID_POST, 1))
    (after,) = values_of(llama, [edit], (RESID_POST, 1))
    is_replaced = torch.equal(after, source(width).expand_as(after))
    assert is_replaced == (bound < 0)
    assert torch.equal(after, before) == (bound > 0)


def test_the_report_counts_where_it_acted(llama: Checkpoint) -> None:
    edit = replaced(source(site_of(llama, 1).width, 2), positions=at(3, 7))
    bench = Bench(llama)
    answer = bench.ask(1, "", ids=IDS, plan=plan(edit), counted=(), max_tokens=3)
    bench.run()
    (acts,) = asking.acts(answer.pieces[-1])
    assert (acts.evaluated, acts.acted, acts.first, acts.last) == (2, 2, 3, 7)
    assert acts.max_change > 0.1


def test_values_of_an_sae_are_read_after_it(llama: Checkpoint) -> None:
    """An SAE that is attached at the site reads the replaced value after the edits, and the value before them."""
    sae = random_sae(site_of(llama, 1).width)
    wanted = source(site_of(llama, 1).width)
    bench = Bench(llama)
    with bench.attached("sae@1", sae, 1):
        edit = replaced(wanted, positions=at(4))
        answer = bench.ask(1, "", ids=IDS, plan=plan(edit), max_tokens=2, raw=read((RESID_POST, 1)))
        bench.run()
    chunk = ACTIVATIONS_RAW.read(answer.pieces[-1].parts)
    assert chunk is not None
    numbers = np.frombuffer(chunk.values[0].data, "<f4").reshape(len(chunk.positions), -1)
    assert np.array_equal(numbers[4], wanted[0].numpy())


def refusals(model: Checkpoint) -> dict[str, Edit]:
    width, z = site_of(model, 1).width, site_of(model, 1, Z).width
    return {
        "2 positions, and the edit 3 positions of the prompt": replaced(
            source(width, 2), positions=at(1, 2, 3)
        ),
        "12 positions of the prompt and generated ones": replaced(source(width, 12)),
        "does not fit": replaced(source(width + 1)),
        "is outside": replaced(source(z), site=Z, heads=(0, 99)),
        "it has none": replaced(source(width), heads=(0,)),
    }


def test_what_does_not_fit_the_prompt_or_the_site_is_refused(llama: Checkpoint) -> None:
    for why, edit in refusals(llama).items():
        ask = partial(Bench(llama).ask, 1, "", ids=IDS, plan=plan(edit))
        with pytest.raises(Refusal, match=why):
            ask()
