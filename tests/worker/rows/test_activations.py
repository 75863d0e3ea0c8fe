"""All activations of a prompt, against the SAE over the library's model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from steerserve.messages import FeatureValues
from steerserve.worker.rows import activations
from tests.worker.rows.conftest import Pair
from tests.worker.running import Bench, generated, hooked, random_sae, site_of, words

TEXTS = [words(70), words(5)]


def dense(found: FeatureValues, size: int, d_sae: int) -> Tensor:
    """The activations [positions of the prompt, d_sae]."""
    whole = torch.zeros(size, d_sae)
    features = np.repeat(np.frombuffer(found.features, "<u4"), np.frombuffer(found.counts, "<u4"))
    at = torch.tensor(np.frombuffer(found.positions, "<u4").astype(np.int64))
    values = torch.tensor(np.frombuffer(found.values, "<f4"))
    assert len(features) == len(at) == len(values) > 0
    whole[at, torch.tensor(features.astype(np.int64))] = values
    return whole


def test_activations_are_those_of_every_attached_sae_at_every_counted_position(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activations, "STEP_VALUES", 1024)  # several steps for one text
    model, library = pair("llama")
    width = model.hidden_size
    saes = {"a@0": (random_sae(width, 64, seed=1), 0), "b@1": (random_sae(width, 32, seed=2), 1)}
    bench = Bench(model)
    with bench.attached("a@0", *saes["a@0"]), bench.attached("b@1", *saes["b@1"]):
        bench.read_activations(1, TEXTS, list(saes))
        bench.run()
    assert not bench.refused
    for choice, text in enumerate(TEXTS):
        ids = model.encode(text, special=True)
        counted = [at for at, token in enumerate(ids) if at and token not in model.special_tokens]
        streams, _ = library.streams(ids)
        read = bench.sparse[1, choice]
        assert read.positions == len(counted)
        for found, (sae, layer) in zip(read.saes, saes.values(), strict=True):
            truth = torch.zeros(len(ids), sae.d_sae)
            truth[counted] = sae.encode(streams[layer][counted].float())
            torch.testing.assert_close(
                dense(found, len(ids), sae.d_sae), truth, atol=1e-3, rtol=1e-3
            )
            order = np.frombuffer(found.features, "<u4")
            assert (np.diff(order.astype(np.int64)) > 0).all()


def test_a_pass_ends_at_the_last_site_that_is_read(pair: Pair) -> None:
    model, _ = pair("llama")
    bench = Bench(model)
    passes: list[int] = []
    last = site_of(model, model.layers - 1)
    with (
        bench.attached("a@0", random_sae(model.hidden_size, 64, seed=1), 0),
        hooked(last, lambda value: passes.append(len(value))),
    ):
        bench.read_activations(1, TEXTS, ["a@0"])
        bench.run()
        assert passes == []
        # beside a row whose logits are read, the pass goes on
        bench.read_activations(2, TEXTS, ["a@0"])
        answer = bench.ask(3, TEXTS[0], max_tokens=3)
        bench.run()
    assert passes
    assert answer.tokens == generated(model, TEXTS[0], 3)
    for choice in range(len(TEXTS)):
        alone, beside = bench.sparse[1, choice], bench.sparse[2, choice]
        assert alone.saes == beside.saes
        assert alone.seconds > 0
