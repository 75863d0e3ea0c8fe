"""Seeds: a seeded request is a function of itself, not of what runs beside it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from steerserve.messages import Follow, Overlay, Suppressed
from steerserve.rules.inference.stepping import Tempo
from steerserve.rules.steering.live import Live
from steerserve.worker.batch import group as group_module
from steerserve.worker.model.checkpoint import Checkpoint
from tests.worker.running import Answer, Bench, logits_noted, random_sae, words

PROMPT = words(30, 5)
KEY = "sae@0"
STEERED = Overlay(0, {KEY: {2: 3.0}})


def drawn(model: Checkpoint, seed: int | None, **fields: object) -> Answer:
    bench = Bench(model)
    answer = bench.ask(1, PROMPT, seed=seed, **{"temperature": 1.0, "max_tokens": 40, **fields})
    bench.run()
    return answer


@pytest.mark.shows("seeds.3")
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_a_seeded_text_is_the_same_alone_and_in_a_crowd(llama: Checkpoint, top_p: float) -> None:
    truth = drawn(llama, 42, top_p=top_p)
    bench = Bench(llama)
    for i in range(10):
        bench.ask(100 + i, words(4 + 5 * i, i), temperature=1.0, max_tokens=15 + i)
    bench.step(3)
    answer = bench.ask(1, PROMPT, seed=42, temperature=1.0, top_p=top_p, max_tokens=40)
    for i in range(10):
        seed = i if i % 2 else None
        bench.ask(200 + i, words(7 * i + 1, i), temperature=1.0, seed=seed, max_tokens=10 + i)
        bench.step()
    bench.run()
    assert answer.text.encode() == truth.text.encode()
    assert (answer.tokens, answer.finish) == (truth.tokens, truth.finish)
    assert [p.text for p in answer.pieces] == [p.text for p in truth.pieces]


@pytest.mark.shows("seeds.3")
@pytest.mark.parametrize("shares", [False, True])
def test_seeded_rows_share_passes_where_the_model_allows_it(
    llama: Checkpoint, *, shares: bool
) -> None:
    bench = Bench(llama, shares_seeded=shares)
    bench.ask(1, PROMPT, seed=5, n=2, temperature=1.0, max_tokens=8)
    bench.ask(2, PROMPT, n=3, temperature=1.0, max_tokens=8)
    with logits_noted(llama) as passes:
        bench.run()
    rows = [len(logits) for logits in passes[:2]]
    assert rows == ([5, -(-5 // llama.row_step) * llama.row_step] if shares else [3, 2])


def test_choices_that_are_stepped_apart_do_not_depend_on_the_speed_of_the_machine(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their prompts are read in parts of the same sizes, however long the passes took."""
    parts: list[list[int]] = []
    prefill = Checkpoint.prefill

    def counted(model: Checkpoint, cache: Any, slots: Any, rows: Any, **where: Any) -> Any:
        parts[-1].append(sum(len(row) for row in rows))
        return prefill(model, cache, slots, rows, **where)

    monkeypatch.setattr(Checkpoint, "prefill", counted)
    monkeypatch.setattr(group_module, "PREFILL_TOKENS", 96)
    for slow in (32, 96):
        monkeypatch.setattr(Tempo, "tokens", lambda _, bound, most, slow=slow: slow)
        parts.append([])
        bench = Bench(llama, shares_seeded=False)
        bench.ask(1, words(70), n=3, seed=3, temperature=1.0, max_tokens=6)
        bench.run()
    assert parts[0] == parts[1]


def test_a_seeded_text_does_not_depend_on_how_long_it_waited(llama: Checkpoint) -> None:
    truth = drawn(llama, 7)
    bench = Bench(llama, kv_tokens=128)
    bench.ask(2, words(40), max_tokens=50)
    answer = bench.ask(1, PROMPT, seed=7, temperature=1.0, max_tokens=40)
    bench.run()
    assert (answer.text, answer.finish) == (truth.text, truth.finish)


def test_two_seeds_differ(llama: Checkpoint) -> None:
    assert drawn(llama, 1).text != drawn(llama, 2).text


def test_two_unseeded_requests_differ(llama: Checkpoint) -> None:
    assert drawn(llama, None).text != drawn(llama, None).text


def test_choices_of_a_seed_differ_and_the_first_is_the_single_one(llama: Checkpoint) -> None:
    bench = Bench(llama)
    bench.ask(1, PROMPT, n=3, seed=11, temperature=1.0, max_tokens=40)
    texts = bench.run().texts(1)
    assert len(set(texts)) == 3
    assert texts[0] == drawn(llama, 11).text
    again = Bench(llama)
    again.ask(1, PROMPT, n=3, seed=11, temperature=1.0, max_tokens=40)
    assert again.run().texts(1) == texts


@pytest.mark.shows("seeds.9")
def test_a_prompt_among_several_draws_as_it_does_alone(llama: Checkpoint) -> None:
    bench = Bench(llama)
    bench.ask(1, [PROMPT, words(12)], seed=11, temperature=1.0, max_tokens=40)
    assert bench.run().texts(1)[0] == drawn(llama, 11).text


@pytest.mark.shows("seeds.7")
def test_temperature_zero_ignores_the_seed(llama: Checkpoint) -> None:
    texts = {drawn(llama, seed, temperature=0.0).text for seed in (None, 1, 2)}
    assert len(texts) == 1


def schedule(model: Checkpoint, number: int, probe: dict[str, Any]) -> Answer:
    """The answer to `probe` within a random schedule: other requests of all kinds join, leave, are cancelled and are
    steered anew while it runs."""
    draw = random.Random(number)
    bench = Bench(model, kv_tokens=draw.choice((1024, 4096)), prefix_tokens=512)
    bench.batch._shared._step_seconds = draw.choice((1e-6, 0.005, 1.0))
    sae = random_sae(32)
    asked, answer = 1, None
    with bench.attached(KEY, sae, 0):
        joins = draw.randrange(6)
        for turn in range(40):
            if turn == joins:
                answer = bench.ask(1, **probe)
            for _ in range(draw.randrange(3)):
                asked += 1
                size = draw.choice((1, 5, 31, 32, 33, 70, 150))
                match draw.randrange(5):
                    case 0:
                        bench.score(asked, [words(size, asked)])
                    case 1:
                        bench.embed(asked, words(size, asked))
                    case _:
                        bench.ask(
                            asked,
                            words(size, asked),
                            n=draw.choice((1, 1, 2)),
                            seed=draw.choice((None, asked)),
                            temperature=draw.choice((0.0, 1.0, 1.5)),
                            max_tokens=draw.randrange(1, 60),
                            plan=draw.choice((Follow(), Suppressed(), STEERED)),
                        )
            if draw.random() < 0.2:
                bench.batch.cancel(draw.randrange(2, asked + 1) if asked > 1 else 2)
            if draw.random() < 0.3:
                # an edit of a new epoch would take over the rows with values of their own
                bench.steering.set_live(Live(0, True, {KEY: {3: draw.uniform(-4, 4)}}))
            bench.step()
        bench.run()
    assert answer is not None
    return answer


@pytest.mark.shows("seeds.3")
@pytest.mark.parametrize("numbers", [range(4)], ids=str)
@pytest.mark.parametrize("size", [pytest.param(30, marks=pytest.mark.slow), 140])
def test_a_seeded_text_is_its_own_in_every_schedule(
    llama: Checkpoint, numbers: range, size: int
) -> None:
    check_schedules(llama, numbers, size)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [1, 30, 100, 140])
def test_a_seeded_text_is_its_own_in_hundreds_of_schedules(llama: Checkpoint, size: int) -> None:
    check_schedules(llama, range(1000, 1200), size)


def check_schedules(model: Checkpoint, numbers: range, size: int) -> None:
    for plan in (Suppressed(), STEERED):
        probe = {
            "prompts": words(size, 5),
            "seed": 42,
            "temperature": 1.0,
            "top_p": 0.9,
            "max_tokens": 40,
            "plan": plan,
        }
        bench = Bench(model)
        with bench.attached(KEY, random_sae(32), 0):
            truth = bench.ask(1, **probe)
            bench.run()
        for number in numbers:
            answer = schedule(model, number, probe)
            assert (answer.tokens, answer.text) == (truth.tokens, truth.text), number
