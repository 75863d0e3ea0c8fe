"""Requests that begin alike share what was read of their prompts, and their answers keep every bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steerserve.messages import Echo, Overlay, Plan, Scored, Suppressed, Tokens
from steerserve.parts.divergence.form import Divergence
from steerserve.rules.inference import stepping
from steerserve.rules.inference.stepping import WIDTH
from steerserve.rules.steering.live import Live
from steerserve.worker.batch import group as group_module
from steerserve.worker.model.checkpoint import Checkpoint
from tests.worker.compiled import OWN_PRODUCTS
from tests.worker.running import Counted, altered, open_checkpoint, random_sae

Folder = Callable[[str], Path]
KEY = "sae@0"
SAE = random_sae(32)
ECHO = Echo(1, 1_000_000)
STEERED = Overlay(0, {KEY: {3: 2.0}})


def tokens(count: int, seed: int = 0) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(5, 300) for _ in range(count)]


SHOTS = tokens(300)
CONTEXTS = [[*SHOTS, *tokens(40, 1)], [*SHOTS, *tokens(60, 2)]]
QUESTIONS = [[*context, *tokens(3 + i, 10 + i)] for context in CONTEXTS for i in range(4)]
"""Two contexts after one beginning, with four continuations each."""


@pytest.fixture(scope="module", params=["llama", "llama_wide", "gemma3"])
def model(
    request: pytest.FixtureRequest, folder: Folder, tmp_path_factory: pytest.TempPathFactory
) -> Checkpoint:
    path = tmp_path_factory.mktemp("long") / request.param
    return open_checkpoint(altered(folder(request.param), path, max_position_embeddings=2048))


def asked(bench: Counted, **fields: Any) -> list[Scored]:
    """The scores of QUESTIONS, a request for each, all at once. The ids of requests are forgotten."""
    bench.take()
    for number, ids in enumerate(QUESTIONS):
        bench.score(number, "", ids=ids, **fields)
    bench.run()
    assert not bench.refused
    return [bench.scores.pop((number, 0)) for number in range(len(QUESTIONS))]


@pytest.mark.parametrize("echo", [None, ECHO], ids=["next", "echo"])
def test_scores_have_the_bits_of_prompts_that_were_read_alone(
    model: Checkpoint, echo: Echo | None
) -> None:
    without = Counted(model, prefix_tokens=0)
    expected = []
    for number, ids in enumerate(QUESTIONS):
        without.score(number, "", ids=ids, echo=echo)
        without.run()
        expected.append(without.scores[number, 0])
    assert without.take() == sum(map(len, QUESTIONS))
    bench = Counted(model)
    assert asked(bench, echo=echo) == expected
    # the beginning and each context are read once, and of each continuation its last block
    read = sum(map(len, CONTEXTS)) + len(QUESTIONS) * 2 * WIDTH
    assert bench.take() < read < sum(map(len, QUESTIONS)) / 2
    assert asked(bench, echo=echo) == expected
    assert bench.take() < len(QUESTIONS) * 2 * WIDTH


@OWN_PRODUCTS
def test_where_no_width_changes_a_bit_each_token_is_read_once(
    folder: Folder, tmp_path: Path
) -> None:
    long = altered(folder("llama_wide"), tmp_path / "long", max_position_embeddings=2048)
    bench = Counted(open_checkpoint(long))
    asked(bench)
    once = len(CONTEXTS[0]) + len(CONTEXTS[1]) - len(SHOTS)
    rests = sum(len(ids) - len(CONTEXTS[i // 4]) for i, ids in enumerate(QUESTIONS))
    assert bench.take() <= once + rests + len(QUESTIONS) * (stepping.WIDTHS[-1] - 1)


def test_the_scores_of_a_beginning_belong_to_their_temperature_and_listing(
    model: Checkpoint,
) -> None:
    bench, without = Counted(model), Counted(model, prefix_tokens=0)
    for fields in ({"top": 2}, {"top": 3}, {"top": 2, "temperature": 0.5}, {"top": 2}):
        assert asked(bench, echo=ECHO, **fields) == asked(without, echo=ECHO, **fields)
    assert bench.take() < len(QUESTIONS) * 2 * WIDTH


def test_a_steered_score_shares_nothing_with_an_unsteered_one(model: Checkpoint) -> None:
    bench, without = Counted(model), Counted(model, prefix_tokens=0)
    with bench.attached(KEY, SAE), without.attached(KEY, SAE):
        plans: list[Plan] = [Suppressed(), STEERED, Suppressed()]
        found = [asked(bench, echo=ECHO, plan=plan) for plan in plans]
        assert found == [asked(without, echo=ECHO, plan=plan) for plan in plans]
    assert found[0] != found[1]


def test_seeded_requests_at_once_read_their_beginning_once(model: Checkpoint) -> None:
    fields: dict[str, Any] = {"temperature": 1.0, "top_p": 0.9, "max_tokens": 8}
    bench = Counted(model)
    bench.ask(100, "", ids=tokens(50, 7), **fields)
    for number, ids in enumerate(QUESTIONS):
        bench.ask(number, "", ids=ids, seed=number, n=2, **fields)
    bench.run()
    assert bench.take() < sum(map(len, QUESTIONS))
    for number, ids in enumerate(QUESTIONS):
        alone = Counted(model, prefix_tokens=0)
        alone.ask(1, "", ids=ids, seed=number, n=2, **fields)
        alone.run()
        for choice in range(2):
            assert bench.answers[number, choice].tokens == alone.answers[1, choice].tokens


@OWN_PRODUCTS
@pytest.mark.parametrize("seed", [None, 3])
def test_the_choices_of_a_short_prompt_read_it_once(model: Checkpoint, seed: int | None) -> None:
    ids, choices = tokens(40, 5), 6
    fields: dict[str, Any] = {"ids": ids, "max_tokens": 4, "n": choices, "seed": seed}
    fields |= {} if seed is None else {"temperature": 1.0}
    found = []
    for prefix_tokens in (10_000, 0):
        bench = Counted(model, prefix_tokens=prefix_tokens)
        bench.ask(1, "", **fields)
        bench.run()
        found.append(([bench.answers[1, at].tokens for at in range(choices)], bench.take()))
    (shared, read), (alone, all_of_it) = found
    assert shared == alone
    # a model whose passes have the width of a block reads the last block again
    assert read < len(ids) + choices * WIDTH
    assert all_of_it == choices * len(ids)


@OWN_PRODUCTS
def test_what_was_written_is_read_again_after_a_prompt_that_is_read_once(
    model: Checkpoint,
) -> None:
    """Without steering, for the divergence from the plain model."""
    ids, choices = tokens(40, 5), 4
    fields: dict[str, Any] = {"ids": ids, "max_tokens": 6, "n": choices, "seed": 3}
    fields |= {"temperature": 1.0, "plan": STEERED, "divergence": Divergence([])}
    found = []
    for prefix_tokens in (10_000, 0):
        bench = Counted(model, prefix_tokens=prefix_tokens)
        with bench.attached(KEY, SAE):
            bench.ask(1, "", **fields)
            bench.run()
        told = [bench.diverged[1, at] for at in range(choices)]
        found.append((told, bench.take()))
    (shared, read), (alone, all_of_it) = found
    assert shared == alone
    assert len({tuple(one.tokens) for one in shared}) > 1
    assert read < all_of_it * 0.6


def test_a_short_prompt_does_not_wait_for_a_long_one_that_begins_alike(
    model: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "PREFILL_TOKENS", 64)
    bench, size = Counted(model), 100
    long = tokens(600, 5)
    asked = [long, [*long[:size], *tokens(4, 6)], [*long[:size], *tokens(8, 7)]]
    answers = [bench.ask(n, "", ids=ids, max_tokens=2) for n, ids in enumerate(asked)]
    bench.step(1)
    waits = [bench.batch._shared._reuse.must_wait(answer.row) for answer in answers]
    # it waits for another short one
    assert waits == [False, False, True]
    bench.run()


def test_a_short_prompt_for_which_none_waits_is_not_kept(model: Checkpoint) -> None:
    bench = Counted(model)
    for number in range(2):
        bench.ask(number, "", ids=tokens(40, 5), max_tokens=2)
        bench.run()
        assert bench.take() == 40
    assert bench.kept == 0


def test_no_order_of_requests_changes_a_bit(
    model: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of all kinds come, wait for each other and are cancelled, while little is kept."""
    monkeypatch.setattr(group_module, "PREFILL_TOKENS", 128)
    draw = random.Random(5)
    without = Counted(model, prefix_tokens=0)
    expected = asked(without, echo=ECHO)
    bench = Counted(model, prefix_tokens=900)
    scored: dict[int, int] = {}
    with bench.attached(KEY, SAE):
        for number in range(40):
            which = draw.randrange(len(QUESTIONS))
            ids = QUESTIONS[which]
            match draw.randrange(3):
                case 0:
                    bench.ask(number, "", ids=ids, seed=draw.choice((None, 1)), max_tokens=4)
                case 1:
                    bench.score(number, "", ids=ids)
                case _:
                    bench.score(number, "", ids=ids, echo=ECHO)
                    scored[number] = which
            if draw.random() < 0.2:
                scored.pop(number, None)
                bench.batch.cancel(number)
            if draw.random() < 0.2:
                bench.steering.set_live(Live(number, True, {KEY: {3: draw.uniform(-4, 4)}}))
            bench.step(draw.randrange(3))
            assert bench.kept <= 900
        bench.run()
    assert not bench.refused
    for number, which in scored.items():
        found, of = bench.scores[number, 0], expected[which]
        assert (found.best, found.top, found.prompt) == (of.best, of.top, of.prompt)


def test_rows_do_not_wait_for_a_row_that_was_cancelled(model: Checkpoint) -> None:
    bench, without = Counted(model), Counted(model, prefix_tokens=0)
    for number, ids in enumerate(QUESTIONS):
        bench.score(number, "", ids=ids)
    bench.batch._admit()
    bench.batch.cancel(0)
    bench.run()
    assert bench.take() < sum(map(len, QUESTIONS)) / 3
    expected = asked(without)
    found = [bench.scores[number, 0] for number in range(1, len(QUESTIONS))]
    assert found == expected[1:]


def test_prompts_of_one_request_share_their_beginning(model: Checkpoint) -> None:
    bench, without = Counted(model), Counted(model, prefix_tokens=0)
    for each in (bench, without):
        each.score(1, [Tokens(ids) for ids in QUESTIONS], echo=ECHO)
        each.run()
    assert bench.scores == without.scores
    assert bench.take() < without.take() / 3
