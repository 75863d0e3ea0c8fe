"""Edits equal their formulas: of features and directions, at positions, under conditions, for the rows that asked and
no others."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs
from torch import Tensor

from steerserve.messages import Follow, Overlay, Suppressed
from steerserve.parts.activations.form import Tap
from steerserve.rules.steering.edits import (
    KINDS,
    RAW,
    RESIDUAL,
    UNIT,
    UNITS,
    AllOf,
    AnyOf,
    Condition,
    Edit,
    Feature,
    Target,
    When,
    ordered,
)
from steerserve.rules.steering.live import Live
from steerserve.rules.steering.placed import Modifiers
from steerserve.rules.steering.positions import Positions, Selection
from steerserve.rules.steering.vector import Direction
from steerserve.worker.hooks.edits import SiteEdits
from steerserve.worker.hooks.parts import Part, Span
from steerserve.worker.hooks.places import NO_CATCHES
from steerserve.worker.hooks.readings import Directions
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.rows.steering import RowSteering, TokenFacts
from steerserve.worker.sae import sites
from steerserve.worker.sae.canonical import GateWeights, Sae
from tests import asking
from tests.refusals import refusal_of
from tests.worker import models
from tests.worker.positions import drawn_positions, selected
from tests.worker.running import (
    Bench,
    altered,
    open_checkpoint,
    random_sae,
    recomputed,
    site_of,
    words,
)

Loaded = Callable[[str], Checkpoint]
KEY = "sae@0"
WIDTH = 32
SAE = random_sae(WIDTH)
D_SAE = SAE.d_sae


def edit(op: str, feature: int, value: float = 0.0, strength: float = 1.0, **more: Any) -> Edit:
    return Edit(Feature(KEY, feature), KINDS[op].target(value), strength, **more)


def direction(
    seed: int, layer: int = 0, site: str = sites.RESID_POST, width: int = WIDTH
) -> Direction:
    numbers = np.random.default_rng(seed).normal(size=width) * 2
    return Direction(layer, site, numbers.astype("<f4").tobytes())


def of(op: str, at: Direction, value: float = 1.0, **more: Any) -> Edit:
    """An edit of a direction, as the contract has it."""
    if op == "swap":
        return Edit(at, Target(factor=2.0), **more)
    if op == "ablate":
        return Edit(at, Target(factor=1.0 - value), **more)
    return Edit(at, KINDS[op].target(value), **more)


ALL = [
    edit("set", 3, 2.5),
    edit("at_least", 7, 4.0),
    edit("at_most", 11, 0.5),
    edit("scale", 12, -1.5),
    edit("ablate", 20),
    edit("set", 40, 6.0, strength=0.5),
]
OTHERS = [edit("ablate", 5), edit("at_least", 9, 8.0)]


def kinds(sae: Sae) -> dict[str, Sae]:
    """SAEs of every kind with the weights of this one."""
    source = torch.Generator().manual_seed(1)
    gate = GateWeights(*(torch.randn(sae.d_sae, generator=source) for _ in range(3)))
    return {
        "relu": sae,
        "jumprelu": replace(sae, activation="jumprelu", threshold=torch.full((sae.d_sae,), 1.5)),
        "gated": replace(sae, activation="gated", gate=gate),
        "topk": replace(sae, activation="topk", k=6),
        "abstopk": replace(sae, activation="abstopk", k=16),
        "groupmax": replace(sae, activation="groupmax", k=12),
        "layer_norm": replace(sae, normalisation="layer_norm"),
        "constant_norm_rescale": replace(sae, normalisation="constant_norm_rescale"),
        "input_scale": replace(sae, input_scale=0.25),
        "subtract_b_dec": replace(sae, subtract_b_dec=True),
        "decoder_norm": replace(sae, scale_by_decoder_norm=True, activation="topk", k=6),
        "chosen_by_decoder_norm": replace(sae, select_by_decoder_norm=True, activation="topk", k=6),
        "centred": replace(sae, is_centred=True),
        "bfloat16": replace(sae, W_enc=sae.W_enc.bfloat16(), W_dec=sae.W_dec.bfloat16()),
    }


SAES = kinds(SAE)


def by_the_long_way(sae: Sae, x: Tensor, edits: Sequence[Edit]) -> Tensor:
    """What edits of features change of rows x [T, width], in float64: encode, edit, decode, and add back the error of
    the reconstruction."""
    wide = {
        name: value.double()
        for name in ("W_enc", "b_enc", "W_dec", "b_dec", "threshold")
        if isinstance(value := getattr(sae, name), Tensor)
    }
    row, scale = x.double(), torch.ones((), dtype=torch.float64)
    if sae.is_centred:
        row = row - row.mean(-1, keepdim=True)
    if sae.normalisation == "layer_norm":
        scale = row.std(-1, keepdim=True)
        row = (row - row.mean(-1, keepdim=True)) / (scale + 1e-5)
    if sae.normalisation == "constant_norm_rescale":
        scale = row.norm(dim=-1, keepdim=True) / math.sqrt(WIDTH)
        row = row / scale
    row = row * sae.input_scale - (wide["b_dec"] if sae.subtract_b_dec else 0.0)
    pre = row @ wide["W_enc"]
    norms = wide["W_dec"].norm(dim=-1)
    if sae.gate is not None:
        magnitude = pre * sae.gate.r_mag.double().exp() + sae.gate.b_mag.double()
        acts = (pre + sae.gate.b_gate.double() > 0) * magnitude.relu()
    else:
        pre = (pre + wide["b_enc"]) * (norms if sae.scale_by_decoder_norm else 1.0)
        acts = pre.relu()
        if sae.activation == "jumprelu":
            acts = acts * (pre > wide["threshold"])
        if sae.activation in ("topk", "abstopk"):
            assert sae.k is not None
            ranked = pre * norms if sae.select_by_decoder_norm else pre
            if sae.activation == "abstopk":
                ranked, acts = ranked.abs(), pre
            acts = acts * (ranked >= ranked.topk(sae.k).values[:, -1:])
        if sae.activation == "groupmax":
            assert sae.k is not None
            groups = acts.view(len(x), sae.k, -1)
            acts = (groups * (groups == groups.amax(-1, keepdim=True))).view(len(x), -1)

    def decoded(features: Tensor) -> Tensor:
        raw = features / norms if sae.scale_by_decoder_norm else features
        made = (raw @ wide["W_dec"] + wide["b_dec"]) / sae.input_scale * scale
        return made - made.mean(-1, keepdim=True) if sae.is_centred else made

    change = torch.zeros_like(row)
    for one in edits:
        assert isinstance(one.at, Feature)
        a, edited = acts[:, one.at.index], acts.clone()
        t = one.target
        edited[:, one.at.index] = (a * t.factor + t.offset).clamp(t.low, t.high)
        change += one.strength * (decoded(edited) - decoded(acts))
    return change


def project(at: Direction) -> Tensor:
    """v / |v|, float64."""
    v = torch.from_numpy(np.frombuffer(at.data, "<f4").astype(np.float64))
    return v / v.norm()


def changed(
    x: Tensor, edits: Sequence[Edit], sae: Sae | None = None, *, keeps_norm: bool = False
) -> Tensor:
    """The value x [T, width], float64, after edits at one site, by their formulas."""
    y = x.double()
    for one in edits:
        if not one.is_added:
            continue
        if isinstance(one.at, Feature):
            assert sae is not None
            row = sae.W_dec[one.at.index].double() / sae.input_scale
            y = y + one.target.offset * (row - row.mean() if sae.is_centred else row)
        else:
            unit, raw = (
                project(one.at),
                torch.from_numpy(np.frombuffer(one.at.data, "<f4").astype(np.float64)),
            )
            length = x.double().norm(dim=-1, keepdim=True)
            y = y + one.target.offset * {RAW: raw, UNIT: unit, RESIDUAL: length * unit}[one.unit]
    for one in edits:
        if one.is_added:
            continue
        if isinstance(one.at, Feature):
            assert sae is not None
            y = y + by_the_long_way(sae, x, [one])
            continue
        unit = project(one.at)
        p = y @ unit
        t = one.target
        after = (p * t.factor + t.offset).clamp(t.low, t.high)
        written = unit if one.to is None else project(one.to) - unit
        y = y + one.strength * (after - p)[:, None] * written
    if keeps_norm:
        moved = (y != x.double()).any(-1, keepdim=True)
        kept = y * x.double().norm(dim=-1, keepdim=True) / y.norm(dim=-1, keepdim=True)
        y = torch.where(moved, kept, y)
    return y


def made(x: Tensor, edits: Sequence[Edit], sae: Sae, **more: Any) -> Tensor:
    """What the kernel changes of one row x [T, width]."""
    part = Part(0, RowSteering(Suppressed()), edits=tuple(edits), **more)
    work = SiteEdits([part], {KEY: sae}, Directions(), x.device)
    span = Span([0], [len(x)])
    return change_of(work, x[None], span)[0]


def change_of(work: SiteEdits, value: Tensor, span: Span) -> Tensor:
    """What is added to all rows of the value of a site."""
    moved, _ = work.change(value, span, {}, work.masks(span, value.shape[1]))
    assert moved is not None
    change = moved.of_all_rows(len(value)).change
    assert change is not None
    return change


V, U = direction(1), direction(2)
OF_DIRECTIONS = [
    *(of("add", V, 1.5, unit=unit) for unit in UNITS),
    of("set", V, 4.0),
    of("at_least", V, 3.0),
    of("at_most", V, -1.0),
    of("scale", V, -0.5),
    of("ablate", V),
    of("ablate", V, 0.25, strength=0.5),
    of("swap", V, to=U),
]
LISTS: list[list[Edit]] = [
    *([one] for one in (*ALL, *OF_DIRECTIONS, edit("add", 3, 2.0))),
    ALL,
    OTHERS,
    OF_DIRECTIONS,
    [*ALL, *OF_DIRECTIONS, *OTHERS],
    [of("ablate", V), edit("set", 3, 2.5), of("set", U, 2.0), of("at_most", V, 0.5)],
]


@pytest.mark.parametrize("name", SAES)
def test_every_kind_equals_its_formula(name: str) -> None:
    sae = SAES[name]
    x = torch.randn(70, WIDTH, generator=torch.Generator().manual_seed(2)) * 3
    for edits in LISTS:
        for keeps_norm in (False, True):
            change = made(x, ordered(edits), sae, modifiers=Modifiers(preserve_norm=keeps_norm))
            expected = (changed(x, edits, sae, keeps_norm=keeps_norm) - x.double()).float()
            assert change.dtype == torch.float32
            bound = 1e-4 * max(1.0, float(expected.abs().max()))
            torch.testing.assert_close(change, expected, rtol=1e-4, atol=bound)
            assert float(expected.abs().max()) > 0.1


TOKENS, WIDE = 66, 520
"""A prompt, and the width of a site at which several threads share the work of a pass."""

WIDE_SAES = kinds(random_sae(WIDE))


def prompt_parts(sae: Sae) -> list[Part]:
    """Rows of a pass: with every kind of edit, with edits under conditions, and with one edit."""
    v, u, w = (direction(seed, width=WIDE) for seed in (1, 2, 3))
    of_directions = [
        *(of("add", v, 1.5, unit=unit) for unit in UNITS),
        of("set", v, 4.0),
        of("at_most", u, -1.0),
        of("ablate", v, 0.25, strength=0.5),
        of("swap", v, to=u),
    ]
    gates = [Condition(Feature(KEY, 9), above=0.5), Condition(w, below=0.3)]
    gated = [
        edit("set", 4, 5.0, when=gates[0]),
        of("ablate", u, when=gates[1]),
        edit("scale", 6, 2.0, when=AllOf((gates[0], gates[1]))),
    ]
    values = sae.direction({3: 2.0, 5: -1.0})
    rows: list[dict[str, Any]] = [
        {"edits": ordered([*ALL, *of_directions]), "values": values},
        {
            "edits": ordered(gated),
            "reads": tuple(gates),
            "modifiers": Modifiers(preserve_norm=True),
        },
        {"edits": tuple(OTHERS)},
    ]
    return [Part(i, RowSteering(Suppressed(), [1] * TOKENS), **row) for i, row in enumerate(rows)]


def in_passes(sae: Sae, parts: Sequence[Part], x: Tensor, width: int, threads: int) -> Tensor:
    """What is changed of prompts x [rows, T, WIDE] that are read in passes of so many tokens."""
    work = SiteEdits(parts, {KEY: sae}, Directions(), x.device)
    changes, before = [], torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for first in range(0, TOKENS, width):
            value = x[:, first : first + width]
            size = value.shape[1]
            span = Span([first] * len(x), [size] * len(x))
            changes.append(change_of(work, value, span))
    finally:
        torch.set_num_threads(before)
    return torch.cat(changes, 1)


@pytest.mark.parametrize("name", WIDE_SAES)
def test_a_row_has_the_same_bits_in_passes_of_any_width_alone_and_beside_others(
    name: str,
) -> None:
    sae = WIDE_SAES[name]
    parts = prompt_parts(sae)
    x = torch.randn(len(parts), TOKENS, WIDE, generator=torch.Generator().manual_seed(2)) * 3
    whole = torch.cat(
        [
            in_passes(sae, [replace(part, row=0)], x[i : i + 1], TOKENS, 1)
            for i, part in enumerate(parts)
        ]
    )
    for width in (1, 2, 3, 5, 8, 13, 31, 32, 33, 64) if name in ("relu", "topk") else (1, 7, 33):
        found = in_passes(sae, parts, x, width, threads=2 if width in (13, 33) else 1)
        assert torch.equal(found.view(torch.int32), whole.view(torch.int32)), width


BFLOAT16 = 2.0**-8
"""The most by which a rounding to bfloat16 moves a number, as a part of it: half of the place of the last of 8 bits."""


@dataclass(frozen=True, slots=True)
class Passed:
    """The values of a site in one pass [T, width], float64: what the model computed, and what the next layer got."""

    before: Tensor
    after: Tensor

    def check(self, expected: Tensor, *, rounded: Tensor | float = 0.0) -> None:
        """Hold the change to `expected` [T, width], float64: the bound of float32 arithmetic, and one rounding of the
        sum. `rounded` is what was rounded by itself before it was added."""
        wanted = self.before + expected
        single = 1e-4 * expected.abs() + 1e-4 * max(1.0, float(expected.abs().max()))
        error = single + BFLOAT16 * torch.as_tensor(rounded).abs()
        bound = error + BFLOAT16 * (wanted.abs() + error)
        assert bool(((self.after - wanted).abs() <= bound).all())
        assert bool((expected.abs() > 4 * bound).any())


@contextmanager
def passing(model: Checkpoint, bench: Bench) -> Iterator[Callable[[Overlay], Passed]]:
    """What a prefill pass makes of the residual stream after block 0, with an SAE attached there."""
    held: dict[bool, Tensor] = {}

    def keep(value: Tensor, is_after: bool) -> None:
        held.setdefault(is_after, value[0].double())

    before = site_of(model, 0, sites.RESID_POST).hook(lambda value: keep(value, False))
    after = site_of(model, 1, sites.RESID_PRE).hook(lambda value: keep(value, True))

    def ran(plan: Overlay) -> Passed:
        held.clear()
        answer = bench.ask(1, words(70), plan=plan, max_tokens=1)
        bench.run()
        size = len(answer.row.prompt)
        return Passed(held[False][:size], held[True][:size])

    try:
        yield ran
    finally:
        before.remove()
        after.remove()


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A model in bfloat16."""
    folder = tmp_path_factory.mktemp("half") / "llama"
    return open_checkpoint(models.save("llama", folder, dtype=torch.bfloat16))


@pytest.mark.parametrize("name", SAES)
def test_in_a_bfloat16_model_every_kind_is_its_formula_rounded_once(
    half: Checkpoint, name: str
) -> None:
    sae, bench = SAES[name], Bench(half)
    with passing(half, bench) as ran, bench.attached(KEY, sae):
        for edits in LISTS:
            for keeps_norm in (False, True):
                made = ran(asked(*edits, keeps_norm=keeps_norm))
                made.check(changed(made.before, edits, sae, keeps_norm=keeps_norm) - made.before)


def test_in_a_bfloat16_model_what_is_only_added_is_rounded_before_and_after_the_sum(
    half: Checkpoint,
) -> None:
    bench, values = Bench(half), {3: 2.0, 7: -5.0}
    with passing(half, bench) as ran, bench.attached(KEY, SAE):
        made = ran(asked(values=values))
        edits = [edit("add", feature, value) for feature, value in values.items()]
        expected = changed(made.before, edits, SAE) - made.before
        made.check(expected, rounded=expected)


def test_positions_where_nothing_moves_keep_their_bits() -> None:
    sae = replace(SAE, b_enc=torch.full((D_SAE,), -1e6))
    x = torch.randn(9, WIDTH)
    far = [edit("ablate", 3), edit("at_most", 4, 1.0), of("at_most", V, 1e6)]
    for keeps_norm in (False, True):
        assert not made(x, far, sae, modifiers=Modifiers(preserve_norm=keeps_norm)).any()


def asked(
    *edits: Edit, values: dict[int, float] | None = None, keeps_norm: bool = False
) -> Overlay:
    return Overlay(
        None, {KEY: values} if values else {}, ordered(edits), Modifiers(preserve_norm=keeps_norm)
    )


PLANS = [asked(*ALL), Suppressed(), asked(*OTHERS, values={5: -3.0}), asked(values={3: 2.0})]


@pytest.mark.parametrize("variant", ["llama", "gpt2", "gemma3", "opt"])
def test_at_every_site_edited_rows_write_what_the_plain_model_writes_with_the_edit(
    loaded: Loaded, variant: str
) -> None:
    model = loaded(variant)
    for name in sites.widths(model.model, model.layers):
        site = site_of(model, 0, name)
        sae, bench = random_sae(site.width), Bench(model)
        with bench.attached(KEY, sae, 0, name):
            answer = bench.ask(1, words(40), plan=asked(*ALL), max_tokens=8)
            bench.run()
        handle = site.hook(
            lambda value, sae=sae: (by_the_long_way(sae, value[0], ALL)[None]).to(value.dtype)
        )
        try:
            assert recomputed(model, words(40), 8) == answer.tokens, name
        finally:
            handle.remove()


@pytest.mark.parametrize("variant", ["llama", "gpt2"])
@pytest.mark.parametrize("seed", [None, 7])
def test_edited_rows_of_a_batch_equal_their_own_runs(
    loaded: Loaded, variant: str, seed: int | None
) -> None:
    model = loaded(variant)
    options: dict[str, Any] = {
        "max_tokens": 8,
        "seed": seed,
        "temperature": 0.0 if seed is None else 1.0,
    }
    found = []
    for together in (False, True):
        bench = Bench(model)
        with bench.attached(KEY, random_sae(model.config.hidden_size)):
            answers = []
            for i, plan in enumerate(PLANS):
                answers.append(bench.ask(i, words(16 + 9 * i, i), plan=plan, **options))
                if not together:
                    bench.run()
            bench.run()
        found.append([answer.tokens for answer in answers])
    assert found[0] == found[1]
    assert len({tuple(tokens) for tokens in found[0]}) == len(PLANS)


def test_a_tap_after_steering_reads_the_edited_value(loaded: Loaded) -> None:
    model, sae = loaded("llama"), random_sae(WIDTH)
    bench = Bench(model)
    read = {}
    with bench.attached(KEY, sae):
        for number, is_before in enumerate((True, False)):
            tap = Tap(KEY, [3], 1, "all", is_before, 10_000)
            bench.ask(number, words(20), plan=asked(edit("set", 3, 5.0)), tap=tap, max_tokens=4)
            bench.run()
            read[is_before] = [dict(one.features)[3] for one in bench.readings[number]]
    # the activation that is written is 5; what the encoder reads afterwards follows from the decoder row
    slope = float(SAE.W_dec[3] @ SAE.W_enc[:, 3])
    assert len(read[True]) == len(read[False]) > 20
    for before, after in zip(read[True], read[False], strict=True):
        if before > 0:
            assert after == pytest.approx(
                max(0.0, before + (5 - before) * slope), rel=1e-3, abs=1e-2
            )


def test_edits_are_refused_where_their_sae_their_site_or_their_position_is_missing(
    loaded: Loaded,
) -> None:
    bench = Bench(loaded("llama"))
    prompt = [5, 6, 7]
    with bench.attached(KEY, SAE):
        for plan, code in (
            (asked(Edit(Feature("other@1", 1), Target(factor=0.0))), "SAE_NOT_ATTACHED"),
            (asked(of("ablate", direction(1, 99))), "SAE_INCOMPATIBLE"),
            (asked(of("ablate", direction(1, width=8))), "INVALID_PARAMETER"),
            (
                asked(edit("ablate", 1, positions=Positions(Selection(prompt_positions=(3,))))),
                "INVALID_PARAMETER",
            ),
        ):
            refusal = refusal_of(bench.steering.prepare, RowSteering(plan, prompt))
            assert refusal.code == code


# ------------------------------------------------------------- positions and conditions


@dataclass
class Case:
    """Edits of one row at two sites, and what a plain model with hooks of the test's own does for them."""

    edits: list[Edit]
    values: dict[int, float] = field(default_factory=dict)
    keeps_norm: bool = False
    acted: dict[int, set[int]] = field(default_factory=dict)

    @property
    def plan(self) -> Overlay:
        return asked(*self.edits, values=self.values, keeps_norm=self.keeps_norm)


class Hand:
    """A plain model in which a case is made by hand, over the whole text at each step."""

    def __init__(self, model: Checkpoint, sae: Sae, case: Case, size: int) -> None:
        self._model, self._sae, self._case, self._size = model, sae, case, size
        self.ids: list[int] = []
        self._read: dict[Feature | Direction, Tensor] = {}

    @contextmanager
    def hooked(self) -> Iterator[None]:
        with ExitStack() as undo:
            for layer, site in SITES_OF_CASES:
                place = site_of(self._model, layer, site)
                handle = place.hook(lambda value, at=(layer, site): self._act(value, at))
                undo.callback(handle.remove)
            yield

    def _act(self, value: Tensor, at: tuple[int, str]) -> Tensor | None:
        x = value[0].double()
        self._note(x, at)
        y = x.clone()
        here = [one for one in self._case.edits if _place(one.at) == at]
        values = self._case.values if at == SITES_OF_CASES[0] else {}
        for q in range(len(x)):
            acting = [one for one in here if self._acts(one, q)]
            row = x[q : q + 1]
            added = sum(
                (v * self._sae.W_dec[f].double() for f, v in values.items()), torch.zeros(())
            )
            # all that is added comes first
            acting.sort(key=lambda one: not one.is_added)
            moved = _after(row, [], self._sae, added)
            for count, one in enumerate(acting, 1):
                before, moved = moved, _after(row, acting[:count], self._sae, added)
                if bool((moved != before).any()):
                    self._case.acted.setdefault(one.number, set()).add(q)
            if self._case.keeps_norm and bool((moved != row).any()):
                moved = moved * row.norm() / moved.norm()
            y[q] = moved[0]
        return (y - x)[None].to(value.dtype) if bool((y != x).any()) else None

    def _note(self, x: Tensor, at: tuple[int, str]) -> None:
        for one in self._case.edits:
            for reads in _reads(one.when):
                if _place(reads) == at:
                    if isinstance(reads, Feature):
                        pre = (
                            x @ self._sae.W_enc[:, reads.index].double()
                            + self._sae.b_enc[reads.index].double()
                        )
                        self._read[reads] = pre.relu()
                    else:
                        self._read[reads] = x @ project(reads)

    def _acts(self, one: Edit, q: int) -> bool:
        return selected(one.positions, q, self._size, self.ids) and (
            one.when is None or self._holds(one.when, q)
        )

    def _holds(self, when: When, q: int) -> bool:
        if isinstance(when, AnyOf | AllOf):
            held = [self._holds(one, q) for one in when.conditions]
            return any(held) if isinstance(when, AnyOf) else all(held)
        read = self._read[when.reads]
        fired = read > when.above if when.above is not None else read < when.below
        if when.over == "token":
            start = 0 if when.hold is None else max(0, q - when.hold + 1)
            return bool(fired[start : q + 1].any())
        prompt = read[: self._size]
        one = {"prompt_max": prompt.max(), "prompt_mean": prompt.mean(), "last_prompt": prompt[-1]}[
            when.over
        ]
        is_true = one > when.above if when.above is not None else one < when.below
        return q >= self._size and bool(is_true)


def _after(x: Tensor, acting: Sequence[Edit], sae: Sae, added: Tensor) -> Tensor:
    """The value after `added` and the edits: those that add first, then the others, all reading activations of x."""
    adds = [one for one in acting if one.is_added]
    others = [one for one in acting if not one.is_added]
    y = changed(x, adds, sae) + added
    for one in others:
        of_feature = isinstance(one.at, Feature)
        y = y + by_the_long_way(sae, x, [one]) if of_feature else changed(y, [one], sae)
    return y


def _reads(when: When | None) -> list[Feature | Direction]:
    if when is None:
        return []
    if isinstance(when, Condition):
        return [when.reads]
    return [reads for one in when.conditions for reads in _reads(one)]


SITES_OF_CASES = ((0, sites.RESID_POST), (1, sites.MLP_OUT), (1, sites.RESID_POST))


def _place(at: Feature | Direction) -> tuple[int, str]:
    return SITES_OF_CASES[0] if isinstance(at, Feature) else (at.layer, at.site)


def drawn(source: random.Random, ids: Sequence[int]) -> Case:
    """A random list of edits with positions and conditions."""
    edits = []
    for number in range(source.randint(1, 5)):
        layer, site = source.choice(SITES_OF_CASES)
        v, u = direction(source.randint(0, 9), layer, site), direction(20, layer, site)
        more: dict[str, Any] = {"positions": drawn_positions(source, ids), "number": number}
        if source.random() < 0.5:
            more["when"] = _when(source, SITES_OF_CASES.index((layer, site)))
        feature = edit(
            source.choice(["add", "set", "at_least", "at_most", "scale"]),
            source.randrange(D_SAE),
            source.uniform(-6, 6),
            **more,
        )
        if source.random() < 0.5 and (layer, site) == SITES_OF_CASES[0]:
            edits.append(feature)
            continue
        op = source.choice(["add", "add", "set", "at_least", "at_most", "scale", "ablate", "swap"])
        if op == "add":
            more["unit"] = source.choice(UNITS)
        if op == "swap":
            more["to"] = u
        edits.append(of(op, v, source.uniform(0.2, 2.0), **more))
    values = {source.randrange(D_SAE): 2.5} if source.random() < 0.4 else {}
    return Case(edits, values, source.random() < 0.3)


def _when(source: random.Random, latest: int, depth: int = 0) -> When:
    if depth < 2 and source.random() < 0.3:
        kind = source.choice([AnyOf, AllOf])
        return kind((_when(source, latest, depth + 1), _when(source, latest, depth + 1)))
    place = source.randint(0, latest)
    reads: Feature | Direction = direction(30 + source.randint(0, 3), *SITES_OF_CASES[place])
    if place == 0 and source.random() < 0.5:
        reads = Feature(KEY, source.randrange(D_SAE))
    over = source.choice(["token", "token", "token", "prompt_max", "prompt_mean", "last_prompt"])
    hold = source.choice([1, 1, 2, 5, None]) if over == "token" else 1
    bound = source.uniform(-0.6, 1.2)
    if source.random() < 0.7:
        return Condition(reads, above=bound, over=over, hold=hold)
    return Condition(reads, below=bound, over=over, hold=hold)


@pytest.mark.parametrize("variant", ["llama", "gpt2", "gemma3"])
def test_random_edits_at_positions_under_conditions_are_what_a_plain_model_does_by_hand(
    loaded: Loaded, variant: str
) -> None:
    model = loaded(variant)
    source = random.Random(variant)
    bench = Bench(model, prefix_tokens=2048)
    cases = []
    with bench.attached(KEY, SAE):
        for number in range(24):
            text = words(source.choice([3, 20, 70]), number)
            ids = model.encode(text, special=True)
            case = drawn(source, ids)
            answer = bench.ask(number, text, plan=case.plan, counted=(), max_tokens=7)
            cases.append((text, ids, case, answer))
        bench.run()
    for text, ids, case, answer in cases:
        hand = Hand(model, SAE, case, len(ids))
        out: list[int] = []
        with hand.hooked():
            for _ in range(7):
                hand.ids = [*ids, *out]
                case.acted.clear()
                logits = model.model(input_ids=torch.tensor([hand.ids]), use_cache=False).logits
                out.append(int(logits[0, -1].argmax()))
                if out[-1] in model.end_tokens:
                    break
        assert answer.tokens == out, (text, case)
        told = {acts.number: acts for acts in asking.acts(answer.pieces[-1])}
        for one in case.edits:
            passed = len(ids) + len(out) - 1
            expected = sum(
                selected(one.positions, q, len(ids), [*ids, *out]) for q in range(passed)
            )
            assert told[one.number].evaluated == expected, (one, text)
            acted = case.acted.get(one.number, set())
            assert told[one.number].acted == len(acted), (one, text)
            at = told[one.number].at or []
            assert {q for first, last in at for q in range(first, last + 1)} == acted
            if acted:
                assert (told[one.number].first, told[one.number].last) == (min(acted), max(acted))


def test_random_rows_of_a_batch_equal_their_own_runs_byte_for_byte(loaded: Loaded) -> None:
    model = loaded("llama")
    found = []
    for together in (False, True):
        source = random.Random(5)
        bench = Bench(model, kv_tokens=16_384)
        with bench.attached(KEY, SAE):
            answers = []
            for number in range(32):
                text = words(source.choice([3, 20, 70]), number)
                case = drawn(source, model.encode(text, special=True))
                answers.append(
                    bench.ask(
                        number, text, plan=case.plan, max_tokens=12, seed=number, temperature=1.0
                    )
                )
                if not together:
                    bench.run()
            bench.run()
        found.append([answer.tokens for answer in answers])
    assert found[0] == found[1]


def test_an_edit_after_a_text_acts_from_the_token_that_completes_the_text() -> None:
    out: list[int] = []
    facts = TokenFacts(decode=lambda ids: "".join(chr(i) for i in ids))
    row = RowSteering(Suppressed(), [1, 2], out, facts)
    after = edit("ablate", 1, positions=Positions(Selection(after_text="ab")))
    for token in b"xabxab":
        out.append(token)
    assert row.mask(after, 0, 9) == [False, False, False, False, True, True, True, True, False]


def test_tokens_are_decoded_once_however_many_texts_are_looked_for() -> None:
    """Otherwise each token of everybody waits for the long texts of one request."""
    counted = 0

    def decode(ids: list[int]) -> str:
        nonlocal counted
        counted += len(ids)
        # two of the tokens are the halves of one character
        return bytes(ids).decode(errors="replace")

    written = "".join(f"{number} é " for number in range(100))
    out: list[int] = []
    row = RowSteering(Suppressed(), [1, 2], out, TokenFacts(decode=decode))
    texts = ["é", "é 7", " ", written[:300], *(f"x{number}" * 150 for number in range(20))]
    edits = [edit("ablate", 1, positions=Positions(Selection(after_text=text))) for text in texts]
    for token in written.encode():
        out.append(token)
        acts = [(row.mask(one, 2 + len(out) - 1, 1) or [False])[0] for one in edits]
        so_far = bytes(out).decode(errors="replace")
        assert acts == [text in so_far for text in texts]
    assert counted < 20 * len(out)


def test_the_beginning_token_is_spared_by_adds_in_parts_of_the_residual_norm() -> None:
    facts = TokenFacts(beginning=7)
    row = RowSteering(Suppressed(), [7, 3, 4], [], facts)
    assert row.mask(of("add", V, 0.5, unit=RESIDUAL), 0, 3) == [False, True, True]
    assert row.mask(of("add", V, 0.5), 0, 3) is None
    named = Positions(Selection(names=("all",), prompt_positions=(0,)))
    assert row.mask(of("add", V, 0.5, unit=RESIDUAL, positions=named), 0, 3) == [True, True, True]


# ------------------------------------------------------------- kept prefixes, live edits, recorded counts


GENERATED = Positions(Selection(names=("generated",)))


def test_kept_prefixes_are_shared_as_far_as_rows_are_steered_alike(
    folder: Callable[[str], Path], tmp_path: Path
) -> None:
    model = open_checkpoint(
        altered(folder("llama"), tmp_path / "wide", max_position_embeddings=2048)
    )
    text = words(450)
    size = len(model.encode(text, special=True))
    later = asked(edit("set", 3, 6.0, positions=GENERATED))
    window = asked(edit("set", 3, 6.0, positions=Positions(Selection(prompt_window=(280, 290)))))
    cases = (
        # what was asked before, what is asked now, how many positions the prefix has
        (Suppressed(), later, size - 1),
        (later, Suppressed(), size - 1),
        (Suppressed(), window, 280),
        (window, window, size - 1),
        (asked(*ALL), asked(*ALL[:-1]), 0),
        (asked(*ALL), asked(*reversed(ALL), edit("scale", 1, 1.0)), size - 1),
        (asked(edit("scale", 3, 1.0)), Suppressed(), size - 1),
        (
            Suppressed(),
            asked(
                edit(
                    "set",
                    3,
                    6.0,
                    positions=GENERATED,
                    when=Condition(V, above=0.0, over="prompt_max"),
                )
            ),
            0,
        ),
        (asked(values={3: 2.0}), asked(edit("ablate", 1, positions=GENERATED), values={3: 2.0}), 0),
    )
    for before, now, expected in cases:
        bench = Bench(model, prefix_tokens=2048)
        with bench.attached(KEY, SAE):
            bench.ask(1, text, plan=before, max_tokens=6)
            bench.run()
            row = bench.ask(2, text, plan=now, max_tokens=6).row
            reuse = bench.batch._shared._reuse
            reuse.join(row)
            # what is exact is taken over in whole widths of passes
            assert reuse.start(row) == expected // model.width * model.width, (before, now)
            bench.run()
            again = bench.answers[2, 0].tokens
            assert again == alone_with(model, text, now), (before, now)


def alone_with(model: Checkpoint, text: str, plan: Overlay | Suppressed) -> list[int]:
    bench = Bench(model)
    with bench.attached(KEY, SAE):
        answer = bench.ask(1, text, plan=plan, max_tokens=6)
        bench.run()
    return answer.tokens


def test_rows_that_follow_are_edited_by_the_live_edits_from_the_next_pass_on(
    loaded: Loaded,
) -> None:
    model = loaded("llama")
    edits = ordered([edit("set", 3, 6.0), of("ablate", V)])
    bench = Bench(model)
    with bench.attached(KEY, SAE):
        bench.steering.set_live(Live(1, True, edits=edits))
        follows = bench.ask(1, words(20), plan=Follow(), max_tokens=8)
        bench.run()
        bench.steering.set_live(Live(1, False, edits=edits))
        off = bench.ask(2, words(20), plan=Follow(), max_tokens=8)
        bench.run()
        own = bench.ask(3, words(20), plan=asked(*edits), max_tokens=8)
        plain = bench.ask(4, words(20), plan=Suppressed(), max_tokens=8)
        bench.run()
        changes = bench.ask(5, words(20), plan=Follow(), max_tokens=30, seed=1, temperature=1.0)
        keeps = bench.ask(6, words(20), plan=asked(*edits), max_tokens=30, seed=1, temperature=1.0)
        bench.batch.step()
        bench.steering.set_live(Live(2, True, edits=edits))
        bench.run()
    assert follows.tokens == own.tokens != plain.tokens == off.tokens
    assert [answer.pieces[-1].is_changed for answer in (follows, own, changes, keeps)] == [
        False,
        False,
        True,
        False,
    ]


def test_what_an_operator_sets_meanwhile_is_not_counted_as_what_the_row_began_with(
    loaded: Loaded,
) -> None:
    """The row begins with two edits and two values. The operator leaves one of each, and sets others."""
    bench = Bench(loaded("llama"))
    stays, goes = edit("set", 3, 6.0, number=0), edit("at_most", 4, 0.0, number=1)
    added = (edit("add", 7, 2.0, number=2), edit("add", 8, 2.0, number=3))
    plan = Overlay(1, {KEY: {7: 2.0, 8: 2.0}}, ordered([stays, goes]))
    moved = structs.replace(stays, number=1)
    later = ordered([edit("set", 5, 6.0, number=0), moved, edit("at_most", 4, 1.0, number=2)])
    with bench.attached(KEY, SAE):
        bench.steering.set_live(Live(1, True, plan.values, edits=plan.edits))
        plans = (Follow(), plan, structs.replace(plan, epoch=None))
        answers = [
            bench.ask(number, words(20), plan=one, counted=added, max_tokens=9)
            for number, one in enumerate(plans)
        ]
        while len(answers[-1].tokens) < 4:
            bench.batch.step()
        written = [len(answer.tokens) for answer in answers]
        bench.steering.set_live(Live(2, True, {KEY: {7: 2.0, 8: 5.0}}, edits=later))
        bench.run()
    for plan_, answer, count in zip(plans, answers, written, strict=True):
        passed = len(answer.row.prompt) - 1
        whole, part = passed + len(answer.tokens), passed + count
        assert part < whole
        if plan_ is plans[-1]:
            part = whole
        told = {acts.number: acts.evaluated for acts in asking.acts(answer.pieces[-1])}
        assert told == {0: whole, 1: part, 2: whole, 3: part}


def test_added_values_are_counted_where_they_are_added(loaded: Loaded) -> None:
    bench = Bench(loaded("llama"))
    counted = (edit("add", 3, 2.0, number=0), edit("add", 4, -1.0, number=1))
    with bench.attached(KEY, SAE):
        plain = bench.ask(1, words(20), plan=asked(values={3: 2.0, 4: -1.0}), max_tokens=5)
        bench.run()
        told = bench.ask(
            2, words(20), plan=asked(values={3: 2.0, 4: -1.0}), counted=counted, max_tokens=5
        )
        bench.run()
    assert told.tokens == plain.tokens
    assert not asking.acts(plain.pieces[-1])
    positions = len(told.row.prompt) + len(told.tokens) - 1
    for acts in asking.acts(told.pieces[-1]):
        assert (acts.evaluated, acts.acted, acts.first, acts.last) == (
            positions,
            positions,
            0,
            positions - 1,
        )
        assert acts.max_change > 0
    assert len(asking.acts(told.pieces[-1])) == 2


def test_rows_in_another_order_keep_what_was_prepared_for_them(loaded: Loaded) -> None:
    """Rows change their places in a pass as they grow."""
    plans = (
        asked(*ALL),
        asked(*OTHERS, of("ablate", direction(4))),
        asked(edit("set", 1, 3.0, when=Condition(Feature(KEY, 2), above=0.0))),
    )
    rows = [RowSteering(plan, (1, 2, 3), (4,)) for plan in plans]
    spans = [(3, 1)] * len(rows)
    value = torch.randn(len(rows), 1, WIDTH, generator=torch.Generator().manual_seed(3)) * 3
    bench = Bench(loaded("llama"))

    def changed(order: Sequence[int]) -> tuple[SiteEdits, Tensor]:
        ordered_rows = [rows[at] for at in order]
        (site,) = bench.steering.planner.plan_pass(ordered_rows, spans, NO_CATCHES).sites.values()
        work = site.edits
        assert work is not None
        span = Span(*zip(*spans, strict=True))
        return work, change_of(work, value[list(order)], span)

    with bench.attached(KEY, SAE, 0):
        first, expected = changed((0, 1, 2))
        assert not torch.equal(expected[0], expected[1])
        for order in ((2, 0, 1), (2, 1, 0), (0, 1, 2)):
            work, change = changed(order)
            assert work is first
            assert torch.equal(change, expected[list(order)])
        (fewer,) = bench.steering.planner.plan_pass(rows[:2], spans[:2], NO_CATCHES).sites.values()
        assert fewer.edits is not first
