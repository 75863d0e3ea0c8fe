"""Seeds: a seeded request is a function of itself, not of what runs beside it."""

from __future__ import annotations

import pytest

from steerserve.engine.worker.model.checkpoint import Checkpoint
from tests.engine.running import Answer, Bench, words

PROMPT = words(30, 5)


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
def test_the_rows_of_a_seeded_request_share_no_pass_with_others(llama: Checkpoint) -> None:
    """The number of rows in a pass changes the last bits of the logits, and with them sometimes a token."""
    bench, rows = Bench(llama), []
    bench.ask(1, PROMPT, seed=5, n=2, temperature=1.0, max_tokens=8)
    bench.ask(2, PROMPT, n=3, temperature=1.0, max_tokens=8)
    head = llama.model.get_output_embeddings()
    handle = head.register_forward_hook(lambda *of_pass: rows.append(of_pass[-1].shape[0]))
    bench.run()
    handle.remove()
    assert set(rows) == {2, 3}


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
