"""The logit lens and attribution, against the library's model in float64 with hooks of the tests' own."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from steerserve.errors import Refusal
from steerserve.messages import Attributed, LensRead, Overlay
from steerserve.rules.saes import sites
from steerserve.worker.batch import group as group_module
from steerserve.worker.rows import lens as lens_module
from steerserve.worker.sae.canonical import Sae
from steerserve.worker.sae.sites import find
from tests.refusals import refusal_of
from tests.worker.conftest import Loaded
from tests.worker.models import VOCABULARY
from tests.worker.rows.conftest import Pair
from tests.worker.rows.reference_streams import LAYERS_AND_NORM, Reference
from tests.worker.running import Bench, generated, random_sae, words

TEXT = words(60)
KEY = "sae@0"
LAST = "llama gpt2 gemma2 cohere granite phi opt mamba bloom falcon_h1 openai_gpt".split()
ADDED = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "embed")


def looked(
    bench: Bench, text: str = TEXT, top: int = 5, layers: list[int] | None = None
) -> LensRead:
    bench.lens(1, text, layers, top)
    bench.run()
    assert not bench.refused
    return bench.lenses[1]


def probabilities(found: LensRead, number: int) -> Tensor:
    """The probabilities [T, vocabulary] of a layer of an answer that lists all tokens."""
    made = torch.zeros(len(found.tokens), VOCABULARY, dtype=torch.float64)
    for at, listed in enumerate(found.layers[number].positions):
        values = [one.probability for one in listed]
        assert values == sorted(values, reverse=True)
        for one in listed:
            made[at, one.token] = one.probability
    return made


def check(found: LensRead, truth: Reference, layers: list[int], ids: list[int]) -> None:
    streams, own = truth.streams(ids)
    assert [layer.layer for layer in found.layers] == layers
    assert [token for token, _ in found.tokens] == ids
    for number, layer in enumerate(layers):
        expected = truth.logits(streams[layer]).softmax(-1)
        torch.testing.assert_close(probabilities(found, number), expected, atol=2e-5, rtol=1e-3)
        if layer == len(streams) - 1:
            torch.testing.assert_close(expected, own.double().softmax(-1), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("variant", LAYERS_AND_NORM)
def test_each_layer_is_read_by_the_models_own_unembedding(pair: Pair, variant: str) -> None:
    model, truth = pair(variant)
    found = looked(Bench(model), top=VOCABULARY)
    check(found, truth, list(range(model.layers)), model.encode(TEXT, special=True))


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_layers_are_those_asked_for_however_the_work_is_cut(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(lens_module, "STEP_LOGITS", size * VOCABULARY)
    model, truth = pair("gemma2")
    ids = model.encode(TEXT, special=True)
    for layers in ([2, 0], [1]):
        check(looked(Bench(model), top=VOCABULARY, layers=layers), truth, layers, ids)


def test_listed_tokens_are_the_most_probable_with_their_texts(pair: Pair) -> None:
    model, _ = pair("llama")
    whole, few = looked(Bench(model), top=VOCABULARY), looked(Bench(model), top=3)
    for every, listed in zip(whole.layers, few.layers, strict=True):
        assert [position[:3] for position in every.positions] == listed.positions
    assert all(text == model.decode_token(token) for token, text in few.tokens)
    best = few.layers[0].positions[0][0]
    assert best.text == model.decode_token(best.token)


@pytest.mark.parametrize("variant", ["llama", "gpt2", "mamba"])
def test_a_lens_beside_texts_changes_nothing_and_is_not_steered(pair: Pair, variant: str) -> None:
    model, truth = pair(variant)
    bench = Bench(model)
    with bench.attached(KEY, random_sae(model.hidden_size)):
        steered = Overlay(None, {KEY: {3: 30.0}})
        moved = bench.ask(2, words(20), plan=steered, max_tokens=6)
        plain = bench.ask(3, words(20), max_tokens=6)
        bench.step()
        bench.lens(1, TEXT, None, VOCABULARY)
        bench.lens(4, words(9), [0], 2)
        bench.run()
    assert plain.tokens == generated(model, words(20), 6)
    assert moved.tokens != plain.tokens
    check(bench.lenses[1], truth, [*range(model.layers)], model.encode(TEXT, special=True))
    assert len(bench.lenses[4].layers[0].positions[0]) == 2
    assert bench.batch.is_idle


@pytest.mark.parametrize("variant", ["llama", "bloom", "falcon_h1"])
def test_a_text_that_is_read_in_parts_is_read_whole(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    monkeypatch.setattr(group_module, "PREFILL_TOKENS", 16)
    model, truth = pair(variant)
    bench = Bench(model)
    row = bench.lens(1, TEXT, None, VOCABULARY)
    bench.step()
    assert row.filled == 16
    bench.run()
    check(bench.lenses[1], truth, [*range(model.layers)], model.encode(TEXT, special=True))


def test_a_text_goes_on_while_a_lens_works(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lens_module, "STEP_LOGITS", 2 * VOCABULARY)
    model, _ = pair("llama")
    bench = Bench(model)
    row = bench.lens(1, TEXT)
    answer = bench.ask(2, words(20), max_tokens=5)
    while answer.finish is None:
        bench.step()
    assert bench.live_rows(1) == [row]
    assert row.slot is None
    bench.batch.cancel(1)
    assert bench.batch.is_idle
    assert bench.lenses == {}


@pytest.mark.parametrize(
    ("bound", "what"),
    [({"max_distributions": 3}, "distributions"), ({"max_entries": 9}, "entries")],
)
def test_an_answer_that_would_be_too_large_is_refused_before_its_pass(
    pair: Pair, bound: dict[str, Any], what: str
) -> None:
    bench = Bench(pair("llama")[0])
    refusal = refusal_of(bench.lens, 1, TEXT, **bound)
    assert (refusal.code, refusal.param) == ("INVALID_PARAMETER", "layers")
    assert what in refusal.message
    assert bench.batch.is_idle


def test_an_architecture_that_does_more_to_its_logits_is_refused(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = pair("gemma2")
    bench = Bench(model)
    row = bench.lens(1, TEXT)
    monkeypatch.setattr(row.goal._unembedding, "softcap", None)  # type: ignore[union-attr]
    other = bench.ask(2, words(20), max_tokens=3)
    bench.run()
    assert bench.refused[1].code == "SAE_INCOMPATIBLE"
    assert other.finish


def test_memory_that_runs_out_over_a_copy_ends_this_request_only(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    bench = Bench(pair("llama")[0])
    row = bench.lens(1, words(20))
    monkeypatch.setattr(row.goal, "copied", fail)
    other = bench.ask(2, words(20), max_tokens=3)
    bench.run()
    assert bench.refused[1].code == "INSUFFICIENT_MEMORY"
    assert other.finish


# ---------------------------------------------------------------------- attribution


def attributed(
    pair: Pair,
    variant: str,
    *,
    against: int | None = 9,
    layer: int | None = None,
    site: str = sites.RESID_POST,
    position: int = -1,
) -> tuple[Attributed, Attributed]:
    """The attribution of the engine, and one in float64."""
    model, truth = pair(variant)
    layer = model.layers - 1 if layer is None else layer
    sae = random_sae(model.hidden_size)
    bench = Bench(model)
    with bench.attached(KEY, sae, layer, site):
        bench.attribute(1, TEXT, 7, against, key=KEY, layer=layer, position=position)
        bench.run()
    assert not bench.refused
    ids = model.encode(TEXT, special=True)
    value: list[Tensor] = []

    def keep(tensor: Tensor) -> None:
        value.append(tensor[0, position].double())

    handle = find(truth.model, model.layers, site, layer).hook(keep)
    streams, own = truth.streams(ids)
    handle.remove()
    stream = streams[-1][position]
    activations = (value[0] @ sae.W_enc.double() + sae.b_enc.double()).relu()
    read = truth.through_norm(sae.W_dec.double(), stream) * truth.scale
    weight = truth.head.weight
    other = weight.mean(0) if against is None else weight[against]
    contributions = activations * (read @ (weight[7] - other))
    whole, uncapped = (
        float(logits[7] - (logits.mean() if against is None else logits[against]))
        for logits in (own[position], truth.uncapped(stream))
    )
    order = contributions.abs().argsort(descending=True).tolist()
    listed = [(i, float(activations[i]), float(contributions[i])) for i in order if activations[i]]
    at = position % len(ids)
    expected = Attributed(
        1,
        0,
        at,
        (ids[at], model.decode_token(ids[at])),
        (7, model.decode_token(7)),
        None if against is None else (against, model.decode_token(against)),
        [],
        len(listed),
        float(contributions.sum()),
        whole,
        uncapped,
    )
    found = bench.attributed[1]
    near: Any = {"rel": 1e-3, "abs": 1e-3}
    assert [one.feature for one in found.features][:5] == [i for i, _, _ in listed][:5]
    by_feature = {one.feature: one for one in found.features}
    for index, activation, contribution in listed:
        assert by_feature[index].activation == pytest.approx(activation, **near)
        assert by_feature[index].contribution == pytest.approx(contribution, **near)
    assert found.total == pytest.approx(expected.total, rel=1e-3, abs=5e-3)
    assert found.whole == pytest.approx(whole, **near)
    assert (found.uncapped is None) == (not variant.startswith("gemma2"))
    assert found.uncapped is None or found.uncapped == pytest.approx(uncapped, **near)
    assert found.active == expected.active == len(found.features)
    assert (found.position, found.token) == (at, expected.token)
    assert (found.target, found.against) == (expected.target, expected.against)
    return found, expected


@pytest.mark.parametrize("against", [9, None])
@pytest.mark.parametrize("variant", LAST)
def test_contributions_are_those_of_the_formula_in_float64(
    pair: Pair, variant: str, against: int | None
) -> None:
    attributed(pair, variant, against=against)


@pytest.mark.parametrize("variant", ["llama_tied", "gpt2_tied"])
def test_tied_heads_are_read_alike(pair: Pair, variant: str) -> None:
    attributed(pair, variant, against=None)


@pytest.mark.parametrize("site", ADDED)
@pytest.mark.parametrize("variant", ["llama", "gpt2", "gemma2", "granite"])
def test_every_site_that_adds_to_the_stream_has_a_direct_path(
    pair: Pair, variant: str, site: str
) -> None:
    attributed(pair, variant, layer=0, site=site)


def length_of(sae: Sae, value: Tensor) -> float:
    """What the SAE multiplies its decoded rows by at a value."""
    if sae.normalisation == "layer_norm":
        return float(value.std())
    if sae.normalisation == "constant_norm_rescale":
        return float(value.norm()) / math.sqrt(len(value))
    return 1.0


@pytest.mark.parametrize(
    "fields",
    [
        {"normalisation": "layer_norm"},
        {"normalisation": "constant_norm_rescale"},
        {"input_scale": 0.25},
        {"scale_by_decoder_norm": True},
        {"activation": "topk", "k": 5},
    ],
)
def test_a_feature_adds_what_its_sae_would_lack_without_it(
    pair: Pair, fields: dict[str, Any]
) -> None:
    model, truth = pair("gpt2")
    last = model.layers - 1
    sae = replace(random_sae(model.hidden_size), **fields)
    bench = Bench(model)
    with bench.attached(KEY, sae, last):
        bench.attribute(1, TEXT, 7, 9, key=KEY, layer=last)
        bench.run()
    found = bench.attributed[1]
    streams, _ = truth.streams(model.encode(TEXT, special=True))
    stream = streams[-1][-1]
    activations = sae.encode(stream.float())
    without = sae.decode(torch.zeros(sae.d_sae))
    weight = truth.head.weight[7] - truth.head.weight[9]
    assert found.active == len(found.features) == int(activations.count_nonzero())
    for one in found.features:
        alone = torch.zeros(sae.d_sae)
        alone[one.feature] = activations[one.feature]
        lacking = (sae.decode(alone) - without).double() * length_of(sae, stream)
        expected = float(truth.through_norm(lacking[None], stream)[0] @ weight)
        assert one.contribution == pytest.approx(expected, rel=2e-3, abs=2e-3)


@pytest.mark.parametrize("position", [0, 3, -4])
def test_the_position_counts_from_either_end(pair: Pair, position: int) -> None:
    found, _ = attributed(pair, "llama", position=position)
    assert found.position == position % len(pair("llama")[0].encode(TEXT, special=True))


def test_the_softcap_is_the_difference_between_whole_and_uncapped(pair: Pair) -> None:
    found, expected = attributed(pair, "gemma2")
    assert expected.uncapped is not None
    assert abs(found.whole) < 0.95 * abs(expected.uncapped)


def test_an_sae_that_rebuilds_the_stream_explains_all_but_the_biases(pair: Pair) -> None:
    model, truth = pair("llama")
    width = model.hidden_size
    eye = torch.eye(width)
    sae = random_sae(width, 2 * width)
    sae.W_enc.copy_(torch.cat([eye, -eye], dim=1))
    sae.W_dec.copy_(torch.cat([eye, -eye]))
    sae.b_enc.zero_()
    sae.b_dec.zero_()
    bench = Bench(model)
    with bench.attached(KEY, sae, model.layers - 1):
        bench.attribute(1, TEXT, 7, 9, key=KEY, layer=model.layers - 1)
        bench.run()
    found = bench.attributed[1]
    assert truth.head.bias is None
    assert math.isclose(found.total, found.whole, rel_tol=1e-3)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"position": 99}, "INVALID_PARAMETER", "position"),
        ({"position": -99}, "INVALID_PARAMETER", "position"),
        ({"target": VOCABULARY}, "INVALID_PARAMETER", "target_token"),
        ({"against": VOCABULARY}, "INVALID_PARAMETER", "against_token"),
        ({"key": "other@0"}, "SAE_NOT_ATTACHED", None),
    ],
)
def test_what_cannot_be_attributed_is_refused_by_name(
    pair: Pair, fields: dict[str, object], code: str, param: str | None
) -> None:
    bench = Bench(pair("llama")[0])
    with bench.attached(KEY, random_sae(bench.model.hidden_size)):
        asked: dict[str, object] = {"target": 7, "key": KEY, **fields}
        refusal = refusal_of(lambda: bench.attribute(1, words(20), **asked))
    assert (refusal.code, refusal.param) == (code, param)


@pytest.mark.parametrize(
    ("variant", "layer", "site", "why"),
    [
        ("llama", 0, sites.MLP_IN, "not added"),
        ("llama", 0, sites.MLP_RAW, "not added"),
        ("openai_gpt", 0, sites.RESID_POST, "not known"),
        ("mamba", 0, sites.RESID_POST, "not known"),
    ],
)
def test_an_sae_without_a_direct_path_is_refused(
    pair: Pair, variant: str, layer: int, site: str, why: str
) -> None:
    bench = Bench(pair(variant)[0])
    with bench.attached(KEY, random_sae(bench.model.hidden_size), layer, site):
        refusal = refusal_of(bench.attribute, 1, words(20), 7, key=KEY, layer=layer)
    assert refusal.code == "SAE_INCOMPATIBLE"
    assert why in refusal.message


def test_layers_that_normalise_the_stream_have_no_direct_path(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(loaded("opt"))
    for layer in bench.model.model.model.decoder.layers:
        monkeypatch.setattr(layer, "do_layer_norm_before", False)
    with (
        bench.attached(KEY, random_sae(bench.model.hidden_size)),
        pytest.raises(Refusal, match="normalise the stream"),
    ):
        bench.attribute(1, words(20), 7, key=KEY, layer=0)
