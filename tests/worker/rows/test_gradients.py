"""Attribution by gradients, against the gradients that autograd takes through the library's model in float64."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from steerserve.errors import Refusal
from steerserve.messages import Attributed
from steerserve.rules import bounds
from steerserve.rules.saes import sites
from steerserve.worker import memory
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.rows import tail
from steerserve.worker.sae.canonical import Sae
from steerserve.worker.sae.sites import find
from tests.refusals import refusal_of
from tests.worker.rows.conftest import Pair
from tests.worker.rows.reference_streams import Reference
from tests.worker.running import Bench, generated, random_sae, words

TEXT = words(40)
KEY = "sae@0"
TARGET, AGAINST = 7, 9


def asked(
    model: Checkpoint, sae: Sae, layer: int, site: str, against: int | None, **how: Any
) -> Attributed:
    bench = Bench(model)
    with bench.attached(KEY, sae, layer, site):
        bench.attribute(1, TEXT, TARGET, against, key=KEY, layer=layer, **how)
        bench.run()
    assert not bench.refused
    return bench.attributed[1]


def copied(sae: Sae) -> Sae:
    """The SAE with tensors that were not made in inference mode."""
    held = {each.name: getattr(sae, each.name) for each in fields(sae)}
    made = {name: value.clone() for name, value in held.items() if isinstance(value, Tensor)}
    return replace(sae, **made)


class Autograd:
    """The library's model in float64, with the values at a site moved."""

    def __init__(self, model: Checkpoint, truth: Reference, site: str, layer: int) -> None:
        self.ids = model.encode(TEXT, special=True)
        self._model = truth.model
        self._site = find(truth.model, model.layers, site, layer)

    def run(self, delta: Tensor | None, against: int | None) -> tuple[Tensor, Tensor]:
        """The values at the site [T, width], and the difference of logits after the last token."""
        kept: list[Tensor] = []

        def change(value: Tensor) -> Tensor | None:
            kept.append(value[0].detach().clone())
            return None if delta is None else delta[None]

        handle = self._site.hook(change)
        logits = self._model(input_ids=torch.tensor([self.ids]), use_cache=False).logits[0, -1]
        handle.remove()
        other = logits.mean() if against is None else logits[against]
        return kept[0], logits[TARGET] - other

    def attributed(
        self, sae: Sae, against: int | None, method: str, steps: int, over: str
    ) -> tuple[dict[tuple[int, int], float], float, float, float]:
        """Contributions by position and feature, and the effect, the whole and the error's part."""
        with torch.no_grad():
            values, whole = self.run(None, against)
        activations = sae.encode(values.float()).double()
        scale = sae.row_scale(values.float()).double()
        if over == "position":
            activations[:-1] = 0
        rows = sae.written(range(sae.d_sae)).double()
        written = activations @ rows * scale
        gradient = torch.zeros_like(values)
        shares = [(step + 1) / steps for step in range(steps)] if method == "integrated" else [1.0]
        for share in shares:
            delta = (-(1 - share) * written).requires_grad_()
            gradient += torch.autograd.grad(self.run(delta, against)[1], delta)[0] / len(shares)
        with torch.no_grad():
            effect = float(whole - self.run(-written, against)[1])
        made = (gradient @ rows.t()) * activations * scale
        places = activations.nonzero().tolist()
        missing = values - sae.reconstruct(values.float())[1].double()
        if over == "position":
            missing[:-1] = 0
        error = float((missing * gradient).sum())
        found = {(at, i): float(made[at, i]) for at, i in places}
        return found, effect, float(whole), error


def agree(
    pair: Pair,
    variant: str,
    sae: Sae | None = None,
    *,
    site: str = sites.RESID_POST,
    layer: int = 0,
    against: int | None = AGAINST,
    method: str = "gradient",
    steps: int = 5,
    over: str = "position",
) -> Attributed:
    model, truth = pair(variant)
    at = find(model.model, model.layers, site, layer)
    sae = sae or random_sae(at.width)
    found = asked(
        model, sae, layer, site, against, method=method, steps=steps, over=over, top=100_000
    )
    with torch.inference_mode(False):
        read = Autograd(model, truth, site, layer)
        expected, effect, whole, error = read.attributed(copied(sae), against, method, steps, over)
    made = {(one.position, one.feature): one.contribution for one in found.features}
    assert made.keys() == expected.keys()
    largest = max(map(abs, expected.values()))
    for at_feature, value in expected.items():
        assert made[at_feature] == pytest.approx(value, rel=2e-3, abs=2e-3 * largest)
    total = sum(expected.values())
    near: Any = {"rel": 2e-3, "abs": 5e-3 * max(1.0, largest)}
    assert found.total == pytest.approx(total, **near)
    assert found.effect == pytest.approx(effect, **near)
    assert found.error == pytest.approx(error, **near)
    assert found.whole == pytest.approx(whole, **near)
    assert (found.method, found.active) == (method, len(expected))
    return found


@pytest.mark.parametrize(
    ("method", "over", "against"),
    [
        ("gradient", "position", AGAINST),
        ("gradient", "all", None),
        ("integrated", "position", None),
        ("integrated", "all", AGAINST),
    ],
)
@pytest.mark.parametrize("variant", ["llama", "gpt2", "gemma2", "gemma3", "granite", "phi"])
def test_contributions_are_those_of_autograd(
    pair: Pair, variant: str, method: str, over: str, against: int | None
) -> None:
    agree(pair, variant, against=against, over=over, method=method)


@pytest.mark.parametrize(
    "site",
    [
        "resid_pre",
        "resid_mid",
        "resid_post",
        "attn_out",
        "mlp_out",
        "mlp_in",
        "hook_z",
        "mlp_neurons",
    ],
)
@pytest.mark.parametrize("over", ["position", "all"])
def test_every_site_of_a_layer_has_gradients(pair: Pair, site: str, over: str) -> None:
    agree(pair, "llama", site=site, layer=1, over=over)


@pytest.mark.parametrize("size", [16, 24])
def test_a_long_text_is_read_in_blocks(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(tail, "MOST_TOKENS", size)
    for over, method in (("all", "gradient"), ("all", "integrated"), ("position", "gradient")):
        agree(pair, "gemma3", over=over, method=method)
        agree(pair, "llama", over=over, method=method, site="resid_pre", layer=1)


@pytest.mark.parametrize(
    "form",
    [
        {"normalisation": "layer_norm"},
        {"normalisation": "constant_norm_rescale"},
        {"scale_by_decoder_norm": True, "input_scale": 0.25},
        {"activation": "topk", "k": 5},
    ],
)
def test_a_feature_writes_what_its_sae_decodes(pair: Pair, form: dict[str, Any]) -> None:
    model, _ = pair("gpt2")
    agree(pair, "gpt2", replace(random_sae(model.hidden_size), **form), method="integrated")


def test_integrated_gradients_sum_to_the_effect(pair: Pair) -> None:
    few, many = (agree(pair, "llama", method="integrated", steps=steps) for steps in (4, 256))
    assert many.effect is not None
    assert few.effect == pytest.approx(many.effect, rel=1e-4)
    assert abs(many.total - many.effect) < abs(few.total - many.effect)
    assert many.total == pytest.approx(many.effect, rel=0.1)


def test_rows_beside_gradients_have_their_own_bits(pair: Pair) -> None:
    model, _ = pair("llama")
    bench = Bench(model)
    with bench.attached(KEY, random_sae(model.hidden_size)):
        bench.attribute(1, TEXT, TARGET, key=KEY, method="integrated", over="all", steps=3)
        beside = bench.ask(2, words(20), max_tokens=12)
        bench.run()
    assert bench.attributed[1].method == "integrated"
    assert beside.tokens == generated(model, words(20), 12)
    assert bench.batch.is_idle


@pytest.mark.parametrize(
    ("variant", "site", "how", "limits", "code", "param"),
    [
        ("llama", "embed", {}, {}, "SAE_INCOMPATIBLE", None),
        ("mamba", "resid_post", {}, {}, "SAE_INCOMPATIBLE", None),
        ("llama", "resid_post", {}, {"ATTRIBUTION_TOKENS": 5}, "INVALID_PARAMETER", "position"),
        (
            "llama",
            "resid_post",
            {"over": "all", "steps": 9},
            {"ATTRIBUTION_POSITIONS": 50},
            "INVALID_PARAMETER",
            "over",
        ),
    ],
)
def test_gradients_that_cannot_be_taken_are_refused_before_any_pass(
    pair: Pair,
    monkeypatch: pytest.MonkeyPatch,
    variant: str,
    site: str,
    how: dict[str, Any],
    limits: dict[str, int],
    code: str,
    param: str | None,
) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(bounds, name, value)
    bench = Bench(pair(variant)[0])
    given: dict[str, Any] = {"key": KEY, "method": "integrated", **how}
    with bench.attached(KEY, random_sae(bench.model.hidden_size), 0, site):
        refusal: Refusal = refusal_of(lambda: bench.attribute(1, TEXT, TARGET, **given))
    assert (refusal.code, refusal.param) == (code, param)
    assert bench.batch.is_idle


def test_memory_that_is_not_there_is_refused_before_any_pass(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(pair("llama")[0])
    with bench.attached(KEY, random_sae(bench.model.hidden_size)):
        monkeypatch.setattr(memory, "free", lambda _: 1000)
        refusal = refusal_of(
            lambda: bench.attribute(1, TEXT, TARGET, key=KEY, method="gradient", over="all")
        )
    assert refusal.code == "INSUFFICIENT_MEMORY"
