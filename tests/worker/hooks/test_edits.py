"""Edits of features: every kind equals its formula, for the rows that asked, and for no others."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from steerserve.errors import Refusal
from steerserve.messages import Overlay, Suppressed, Tap
from steerserve.rules.steering.edits import KINDS, Edit, Feature, Target, ordered
from steerserve.worker.hooks.edits import RowEdits
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.sae import sites
from steerserve.worker.sae.canonical import GateWeights, Sae
from tests.worker.running import Bench, random_sae, recomputed, site_of, words

Loaded = Callable[[str], Checkpoint]
KEY = "sae@0"
WIDTH = 32
SAE = random_sae(WIDTH)
D_SAE = SAE.d_sae


def edit(op: str, feature: int, value: float = 0.0, strength: float = 1.0) -> Edit:
    return Edit(Feature(KEY, feature), KINDS[op].target(value), strength)


ALL = [
    edit("set", 3, 2.5),
    edit("at_least", 7, 4.0),
    edit("at_most", 11, 0.5),
    edit("scale", 12, -1.5),
    edit("ablate", 20),
    edit("set", 40, 6.0, strength=0.5),
]
OTHERS = [edit("ablate", 5), edit("at_least", 9, 8.0)]


def gated() -> Sae:
    source = torch.Generator().manual_seed(1)
    b_gate, b_mag, r_mag = (torch.randn(D_SAE, generator=source) for _ in range(3))
    return replace(SAE, activation="gated", gate=GateWeights(b_gate, b_mag, r_mag))


SAES = {
    "relu": SAE,
    "jumprelu": replace(SAE, activation="jumprelu", threshold=torch.full((D_SAE,), 1.5)),
    "gated": gated(),
    "topk": replace(SAE, activation="topk", k=6),
    "groupmax": replace(SAE, activation="groupmax", k=12),
    "layer_norm": replace(SAE, normalisation="layer_norm"),
    "constant_norm_rescale": replace(SAE, normalisation="constant_norm_rescale"),
    "input_scale": replace(SAE, input_scale=0.25),
    "subtract_b_dec": replace(SAE, subtract_b_dec=True),
    "decoder_norm": replace(SAE, scale_by_decoder_norm=True, activation="topk", k=6),
    "bfloat16": replace(SAE, W_enc=SAE.W_enc.bfloat16(), W_dec=SAE.W_dec.bfloat16()),
}


def reference(sae: Sae, x: Tensor, edits: list[Edit]) -> Tensor:
    """The change of rows x [T, width], in float64, by the long way: encode, edit, decode, and add back the error of the
    reconstruction."""
    wide = {
        name: value.double()
        for name in ("W_enc", "b_enc", "W_dec", "b_dec", "threshold")
        if isinstance(value := getattr(sae, name), Tensor)
    }
    row, scale = x.double(), torch.ones((), dtype=torch.float64)
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
        if sae.activation == "topk":
            assert sae.k is not None
            acts = acts * (pre >= pre.topk(sae.k).values[:, -1:])
        if sae.activation == "groupmax":
            assert sae.k is not None
            groups = acts.view(len(x), sae.k, -1)
            acts = (groups * (groups == groups.amax(-1, keepdim=True))).view(len(x), -1)

    def decoded(features: Tensor) -> Tensor:
        raw = features / norms if sae.scale_by_decoder_norm else features
        return (raw @ wide["W_dec"] + wide["b_dec"]) / sae.input_scale * scale

    change = torch.zeros_like(row)
    for one in edits:
        a, edited = acts[:, one.feature], acts.clone()
        t = one.target
        edited[:, one.feature] = (a * t.factor + t.offset).clamp(t.low, t.high)
        change += one.strength * (decoded(edited) - decoded(acts))
    return change


@pytest.mark.parametrize("name", SAES)
def test_every_kind_is_encoding_editing_decoding_and_adding_the_error_back(name: str) -> None:
    sae = SAES[name]
    x = torch.randn(70, WIDTH, generator=torch.Generator().manual_seed(2)) * 3
    for edits in (*([one] for one in ALL), ALL, OTHERS):
        change = RowEdits(edits, sae, x.device).change(x)
        expected = reference(sae, x, edits).float()
        assert change.dtype == torch.float32
        torch.testing.assert_close(change, expected, rtol=1e-4, atol=1e-4 * float(x.abs().max()))
        assert float(expected.abs().max()) > 0.1


def test_an_edit_that_adds_is_the_decoder_row_whatever_the_activation_is() -> None:
    x = torch.randn(5, WIDTH)
    change = RowEdits([edit("add", 3, 2.0)], SAE, x.device).change(x)
    torch.testing.assert_close(change, (2 * SAE.W_dec[3]).expand(5, -1), rtol=1e-4, atol=1e-4)


def test_positions_where_no_activation_moves_keep_their_bits() -> None:
    sae = replace(SAE, b_enc=torch.full((D_SAE,), -1e6))
    x = torch.randn(9, WIDTH)
    assert not RowEdits([edit("ablate", 3), edit("at_most", 4, 1.0)], sae, x.device).change(x).any()


def asked(*edits: Edit, values: dict[int, float] | None = None) -> Overlay:
    return Overlay(None, {KEY: values} if values else {}, ordered(edits))


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
        made = RowEdits(ALL, sae, site.device)
        handle = site.hook(lambda value, made=made: made.change(value[0])[None].to(value.dtype))
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


def test_edits_are_refused_where_their_sae_is_not_attached(loaded: Loaded) -> None:
    bench = Bench(loaded("llama"))
    with pytest.raises(Refusal) as refused:
        bench.steering.prepare(asked(edit("ablate", 1)))
    assert refused.value.code == "SAE_NOT_ATTACHED"


def test_kept_prefixes_are_shared_by_equal_edits_only(loaded: Loaded) -> None:
    bench = Bench(loaded("llama"))
    with bench.attached(KEY, SAE):
        one, same, other, none = (
            bench.steering.signature(plan)
            for plan in (
                asked(*ALL),
                asked(*reversed(ALL), Edit(Feature(KEY, 1), Target())),
                asked(*ALL[:-1]),
                asked(edit("scale", 3, 1.0)),
            )
        )
        assert one == same != other
        assert none == bench.steering.signature(Suppressed())
