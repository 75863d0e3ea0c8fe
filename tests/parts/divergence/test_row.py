"""How far completions are from the model without steering, against the library's model in float64 with hooks of the
test's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from steerserve.messages import Overlay, Suppressed
from steerserve.parts.divergence.form import Diverged, Divergence
from steerserve.rules.steering.edits import Edit, Feature, Target
from steerserve.worker.model.checkpoint import Checkpoint
from tests import asking
from tests.parts.activations_raw.test_row import own
from tests.worker.rows.reference_streams import Reference, reference
from tests.worker.running import Bench, random_sae, words

Folder = Callable[[str], Path]
Loaded = Callable[[str], Checkpoint]
KEY = "sae@0"
SAE = random_sae(32)
PLAN = Overlay(None, {KEY: {3: 4.0}}, (Edit(Feature(KEY, 7), Target(factor=0.0)),))
FIRST = [[[5], [9, 11]], [[7]]]
"""Two lists of words: the first has two words, of which one may begin with two tokens."""


def logits(model: Reference, ids: list[int], *, is_steered: bool) -> Tensor:
    """The log-probabilities [T, vocabulary] in float64."""
    decoder, encoder, bias = SAE.W_dec.double(), SAE.W_enc.double(), SAE.b_enc.double()

    def edit(_: Any, __: Any, output: Any) -> Any:
        value = output[0] if isinstance(output, tuple) else output
        off = torch.relu(value @ encoder[:, 7] + bias[7])[..., None] * decoder[7]
        edited = value + 4.0 * decoder[3] - off
        return (edited, *output[1:]) if isinstance(output, tuple) else edited

    handle = model.layers[0].register_forward_hook(edit) if is_steered else None
    found: Tensor = model.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    if handle is not None:
        handle.remove()
    return found.log_softmax(-1)


@pytest.mark.parametrize("variant", ["llama", "gpt2"])
def test_divergence_and_likelihood_are_those_of_the_library(
    loaded: Loaded, folder: Folder, variant: str
) -> None:
    model, known = loaded(variant), reference(variant, folder(variant))
    bench = Bench(model)
    with bench.attached(KEY, SAE):
        answer = bench.ask(
            1, words(20), plan=PLAN, divergence=Divergence(FIRST), max_tokens=7, n=2, seed=3
        )
        bench.ask(2, words(30), plan=PLAN, max_tokens=9)
        bench.run()
    for choice in (0, 1):
        row, found = bench.answers[1, choice].row, bench.diverged[1, choice]
        size = len(row.prompt)
        places = slice(size - 1, size - 1 + len(row.out))
        ids = [*row.prompt, *row.out]
        steered = logits(known, ids, is_steered=True)[places]
        plain = logits(known, ids, is_steered=False)[places]
        divergences = (steered.exp() * (steered - plain)).sum(-1)
        assert found.tokens == row.out
        assert asking.told(bench.answers[1, choice].pieces[-1], "divergence") == found
        assert max(found.divergences) > 0.1
        torch.testing.assert_close(
            torch.tensor(found.divergences, dtype=torch.float64), divergences, atol=1e-4, rtol=0
        )
        likelihoods = plain[torch.arange(len(row.out)), torch.tensor(row.out)]
        torch.testing.assert_close(
            torch.tensor(found.likelihoods, dtype=torch.float64), likelihoods, atol=1e-4, rtol=0
        )
        first = (steered[:, 5] + steered[:, [9, 11]].exp().sum(-1).log()) / 2
        for values, expected in zip(found.words, (first, steered[:, 7]), strict=True):
            got = torch.tensor(values, dtype=torch.float64)
            torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)
    assert answer.finish == "length"
    assert (2, 0) not in bench.diverged


def test_a_completion_without_steering_does_not_diverge(llama: Checkpoint) -> None:
    bench = Bench(llama)
    bench.ask(1, words(9), plan=Suppressed(), divergence=Divergence(), max_tokens=5)
    bench.run()
    found = bench.diverged[1, 0]
    assert isinstance(found, Diverged)
    assert len(found.divergences) == len(found.tokens) == 5
    assert max(map(abs, found.divergences)) < 1e-6
    assert found.words == []


@pytest.mark.parametrize("variant", ["llama", "gpt2"])
def test_states_are_those_of_the_model_without_steering(loaded: Loaded, variant: str) -> None:
    """The mean over the tokens that were written, in a pass of the test's own."""
    model = loaded(variant)
    places = [("resid_post", 1), ("mlp_out", 0)]
    bench = Bench(model)
    with bench.attached(KEY, SAE):
        bench.ask(1, words(20), plan=PLAN, divergence=Divergence(sites=places), max_tokens=7, n=2)
        bench.ask(2, words(30), plan=PLAN, divergence=Divergence(), max_tokens=9)
        bench.run()
    assert bench.refused == {}
    for choice in (0, 1):
        row, found = bench.answers[1, choice].row, bench.diverged[1, choice]
        counted = [
            len(row.prompt) + at
            for at, token in enumerate(row.out)
            if token not in model.special_tokens
        ]
        expected = own(model, [*row.prompt, *row.out], *places)
        for states, values in zip(found.states, expected, strict=True):
            read = torch.frombuffer(bytearray(states), dtype=torch.float32)
            mean = values[counted or list(range(len(row.prompt), len(values)))].float().mean(0)
            torch.testing.assert_close(read, mean, rtol=1e-4, atol=1e-4)
    assert bench.diverged[2, 0].states == []


def test_a_token_that_the_plain_model_never_writes_ends_the_request(llama: Checkpoint) -> None:
    bench = Bench(llama)
    answer = bench.ask(1, words(9), plan=Suppressed(), divergence=Divergence(), max_tokens=2)
    while len(answer.tokens) < 2:
        bench.step()

    def closed(_: Any, __: Any, made: Tensor) -> Tensor:
        return made.index_fill(-1, torch.tensor([3]), -torch.inf)

    handle = llama.model.get_output_embeddings().register_forward_hook(closed)
    bench.run()
    handle.remove()
    assert bench.refused[1].code == "NON_FINITE_LOGITS"
    assert 1 not in {request for request, _ in bench.diverged}
