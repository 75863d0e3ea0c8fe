"""Projections on directions that requests ask for, against hooks of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from steerserve.messages import Overlay, Suppressed
from steerserve.rules.steering.vector import Direction, packed
from steerserve.worker.model.checkpoint import Checkpoint
from tests import asking
from tests.refusals import refusal_of
from tests.worker.running import Answer, Bench, hooked, next_logits, random_sae, site_of, words

Loaded = Callable[[str], Checkpoint]
KEY, SAE = "sae@0", random_sae(32)
PLAN = Overlay(None, {KEY: {3: 4.0}})


def direction(layer: int, site: str = "resid_post", seed: int = 1) -> Direction:
    draw = torch.Generator().manual_seed(seed)
    return Direction(layer, site, packed(torch.randn(32, generator=draw).tolist()))


FIRST, SECOND, ATTENTION = direction(0), direction(1, seed=2), direction(1, "attn_out", seed=3)


def projections(model: Checkpoint, ids: list[int], at: Direction) -> float:
    """The projection at the last token of a pass of the library, before the site is steered; `sae@0` adds after the
    first layer."""
    read: list[float] = []

    def look(value: Tensor) -> None:
        v = torch.tensor(at.values)
        read.append(float(value[0, -1] @ v / v.norm()))

    def add(value: Tensor) -> Tensor:
        return value + 4.0 * SAE.W_dec[3]

    with hooked(site_of(model, at.layer, at.site), look), hooked(site_of(model), add):
        next_logits(model, ids)
    return read[0]


def read(answer: Answer) -> list[Any]:
    return [asking.told(piece, "readings") for piece in answer.pieces]


@pytest.mark.parametrize("variant", ["llama", "gpt2"])
def test_each_token_has_the_reading_at_the_position_that_it_was_drawn_from(
    loaded: Loaded, variant: str
) -> None:
    model = loaded(variant)
    bench = Bench(model)
    watched = (SECOND, FIRST, ATTENTION)
    with bench.attached(KEY, SAE):
        answer = bench.ask(1, words(20), plan=PLAN, readings=watched, max_tokens=4, n=2)
        other = bench.ask(2, words(31), plan=Suppressed(), readings=(FIRST,), max_tokens=6)
        beside = bench.ask(3, words(9), plan=PLAN, max_tokens=6)
        bench.run()
    assert read(beside) == [None] * 6
    assert [len(one) for one in read(other)] == [1] * 6
    ids = list(answer.row.prompt)
    for token, readings in zip(answer.tokens, read(answer), strict=True):
        expected = [projections(model, ids, one) for one in watched]
        assert readings == pytest.approx(expected, rel=1e-3, abs=1e-3)
        ids.append(token)


def test_a_text_is_not_changed_by_its_readings(llama: Checkpoint) -> None:
    texts = []
    for readings in ((), (FIRST, SECOND)):
        bench = Bench(llama)
        with bench.attached(KEY, SAE):
            bench.ask(1, words(40), plan=PLAN, readings=readings, seed=4, temperature=1.0)
            bench.run()
        texts.append(bench.texts(1))
    assert texts[0] == texts[1]


def test_readings_go_on_after_a_kept_prefix(llama: Checkpoint) -> None:
    bench = Bench(llama, prefix_tokens=4096)
    first = bench.ask(1, words(40), readings=(SECOND,), max_tokens=3)
    bench.run()
    again = bench.ask(2, words(40), readings=(SECOND,), max_tokens=3)
    bench.run()
    for one, other in zip(read(first), read(again), strict=True):
        assert one == pytest.approx(other, abs=1e-3)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [(direction(9), "SAE_INCOMPATIBLE"), (Direction(0, "resid_post", packed([1.0])), "INVALID")],
)
def test_a_direction_that_does_not_fit_is_refused(
    llama: Checkpoint, wrong: Direction, code: str
) -> None:
    bench = Bench(llama)
    assert refusal_of(bench.ask, 1, words(9), readings=(wrong,)).code.startswith(code)
