"""Values of sites that are read of prompts, against the library's model in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from steerserve.messages import Overlay, Places, StatesRead, Tokens
from steerserve.rules.steering.positions import Span
from steerserve.worker.model.checkpoint import Checkpoint
from tests.refusals import refusal_of
from tests.worker.rows.conftest import Pair
from tests.worker.rows.reference_streams import Reference
from tests.worker.running import Bench, random_sae, words

KEY = "sae@0"
LAYERS = [1, 0]
TEXTS = [words(40), words(5), words(90)]
MEAN = Places("mean")


def tensor(found: StatesRead) -> Tensor:
    """The values [layers, width]."""
    return torch.tensor(np.frombuffer(found.states, "<f4")).reshape(len(LAYERS), -1).double()


def read(bench: Bench, places: Places, prompts: list[str | Tokens]) -> list[StatesRead]:
    bench.read_states(1, prompts, LAYERS, places)
    bench.run()
    assert not bench.refused
    return [bench.states[1, choice] for choice in range(len(prompts))]


def expected(library: Reference, ids: list[int], positions: list[int]) -> Tensor:
    streams, _ = library.streams(ids)
    return torch.stack([streams[layer][positions].mean(0) for layer in LAYERS]).double()


def counted(model: Checkpoint, ids: list[int]) -> list[int]:
    return [at for at, token in enumerate(ids) if at and token not in model.special_tokens]


@pytest.mark.parametrize("how", ["mean", "last", "index", "all"])
def test_states_are_those_of_the_stream_at_the_positions(pair: Pair, how: str) -> None:
    model, library = pair("llama")
    places = {
        "mean": MEAN,
        "last": Places("last"),
        "index": Places("index", -2),
        "all": Places("mean", has_special=True),
    }[how]
    found = read(Bench(model), places, [*TEXTS])
    for text, one in zip(TEXTS, found, strict=True):
        ids = model.encode(text, special=True)
        of_text = counted(model, ids)
        positions = {
            "mean": of_text,
            "last": of_text[-1:],
            "index": [len(ids) - 2],
            "all": list(range(len(ids))),
        }[how]
        assert one.positions == len(positions)
        truth = expected(library, ids, positions)
        torch.testing.assert_close(tensor(one), truth, atol=1e-4, rtol=1e-4)


def test_a_completion_is_the_content_of_the_last_message(pair: Pair) -> None:
    model, library = pair("llama")
    ids = model.encode(TEXTS[0], special=True)
    spans = (Span("user", 1, 4), Span("assistant", 20, 33))
    (found,) = read(Bench(model), Places("completion"), [Tokens(ids, spans=spans)])
    assert found.positions == 13
    truth = expected(library, ids, list(range(20, 33)))
    torch.testing.assert_close(tensor(found), truth, atol=1e-4, rtol=1e-4)


def test_states_beside_steered_rows_are_unsteered(pair: Pair) -> None:
    model, library = pair("llama")
    bench = Bench(model)
    with bench.attached(KEY, random_sae(model.hidden_size)):
        bench.ask(2, words(20), plan=Overlay(None, {KEY: {3: 30.0}}), max_tokens=6)
        bench.step()
        (found,) = read(bench, MEAN, TEXTS[:1])
    ids = model.encode(TEXTS[0], special=True)
    truth = expected(library, ids, counted(model, ids))
    torch.testing.assert_close(tensor(found), truth, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("places", "why"),
    [
        (Places("index", 40), "none at the index 40"),
        (Places("completion"), "no token is read"),
        (Places("last"), "without position 0 and special tokens"),
    ],
)
def test_prompts_without_a_position_to_read_are_refused(
    llama: Checkpoint, places: Places, why: str
) -> None:
    lone = Tokens([llama.tokenizer.bos_token_id or 0])
    refused = refusal_of(Bench(llama).read_states, 1, [TEXTS[1], lone], LAYERS, places)
    assert refused.code == "INVALID_PARAMETER"
    assert refused.param == ("text[1]" if places.how == "last" else "text[0]")
    assert why in refused.message
