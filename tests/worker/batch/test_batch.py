"""The running batch: whatever runs beside it, a row gives the text it gives alone, and memory stays bounded."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from steerserve.messages import Piece, Suppressed
from steerserve.worker.batch import group as group_module
from steerserve.worker.model.checkpoint import Checkpoint
from tests.refusals import refusal_of
from tests.worker.models import SERVED
from tests.worker.running import Bench, alone, generated, words

Loaded = Callable[[str], Checkpoint]

# (step of joining, prompt, max_tokens): prompts below and far above the sliding window
STAGGERED = (
    (0, words(3), 24),
    (0, words(80, 11), 5),
    (3, words(25, 40), 30),
    (7, words(55, 70), 12),
)
MANY_KINDS = ("llama", "mistral", "gemma3", "gpt2", "opt", "gpt_neox", "falcon")


def staggered(model: Checkpoint) -> list[list[int]]:
    bench = Bench(model)
    answers = []
    for step in range(8):
        for number, (joins, prompt, limit) in enumerate(STAGGERED):
            if joins == step:
                answers.append(bench.ask(number, prompt, max_tokens=limit))
        bench.step()
    bench.run()
    assert not bench.refused
    for answer, (_, _, limit) in zip(answers, STAGGERED, strict=True):
        assert answer.finish == ("length" if len(answer.tokens) == limit else "stop")
    return [answer.tokens for answer in answers]


def truth(model: Checkpoint) -> list[list[int]]:
    return [generated(model, prompt, limit) for _, prompt, limit in STAGGERED]


@pytest.mark.parametrize("variant", SERVED)
def test_rows_that_join_and_leave_give_the_text_of_generate(loaded: Loaded, variant: str) -> None:
    model = loaded(variant)
    assert staggered(model) == truth(model)


@pytest.mark.parametrize("variant", MANY_KINDS)
def test_a_prompt_prefilled_in_parts_equals_the_whole(
    loaded: Loaded, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(variant)
    whole = [alone(model, words(100, start), max_tokens=10).text for start in (0, 9)]
    monkeypatch.setattr(group_module, "PREFILL_TOKENS", 32)
    bench = Bench(model)
    neighbour = bench.ask(1, words(5), max_tokens=30)
    bench.step(2)
    answers = [bench.ask(2 + i, words(100, start), max_tokens=10) for i, start in enumerate((0, 9))]
    bench.run()
    assert [answer.text for answer in answers] == whole
    assert neighbour.tokens == generated(model, words(5), 30)


@pytest.mark.parametrize("variant", MANY_KINDS)
def test_logits_of_a_row_in_a_padded_batch_equal_those_alone(loaded: Loaded, variant: str) -> None:
    model = loaded(variant)
    prompts = [model.encode(words(size, size), special=True) for size in (4, 90, 33)]
    together = logits_of(model, prompts)
    for i, prompt in enumerate(prompts):
        by_itself = logits_of(model, [prompt])
        torch.testing.assert_close(together[:, i], by_itself[:, 0], atol=1e-4, rtol=0)


def logits_of(model: Checkpoint, prompts: list[list[int]]) -> torch.Tensor:
    """Logits [4, rows, vocabulary] of one prefill and three decode steps of the same tokens."""
    cache = model.cache()
    slots = [cache.open(128) for _ in prompts]
    found = [model.prefill(cache, slots, prompts, start=0).logits]
    sizes = [len(prompt) for prompt in prompts]
    for i in range(3):
        found.append(
            model.decode_step(
                cache, slots, [7 + i] * len(prompts), [size + i for size in sizes]
            ).logits
        )
    return torch.stack(found)


def test_every_position_of_the_context_can_be_filled(llama: Checkpoint) -> None:
    prompt = words(150)
    ids = llama.encode(prompt, special=True)
    room = llama.model_max_context - len(ids)
    answer = alone(llama, prompt, max_tokens=room)
    assert answer.tokens == generated(llama, prompt, room)
    refusal = refusal_of(alone, llama, prompt, max_tokens=room + 1)
    assert refusal.code == "CONTEXT_LENGTH_EXCEEDED"


# ---------------------------------------------------------------- memory


def test_rows_without_room_wait_and_all_finish_with_their_own_text(llama: Checkpoint) -> None:
    asked = [(i, words(5 + 7 * i, i), 8 + 3 * (i % 5)) for i in range(10)]
    bench = Bench(llama, kv_tokens=256)
    answers = [bench.ask(i, prompt, max_tokens=limit) for i, prompt, limit in asked]
    bench.step()
    assert bench.batch._waiting
    bench.run()
    assert [a.text for a in answers] == [
        alone(llama, prompt, max_tokens=limit).text for _, prompt, limit in asked
    ]


def test_waiting_rows_join_by_the_turns_of_clients_and_keep_their_text(llama: Checkpoint) -> None:
    bench = Bench(llama, kv_tokens=4 * 64)
    bench.ask(1, words(20), n=16, client="greedy", temperature=1.0)
    bench.step()
    bench.ask(2, words(30), client="polite")
    bench.ask(3, words(30, 9), client="polite")
    bench.ask(4, words(9), n=2, client="seeded", temperature=1.0, seed=7)
    while any(bench.live_rows(request) for request in (2, 3, 4)):
        bench.step()
    assert len(bench.live_rows(1)) >= 8
    bench.run()
    assert bench.texts(2) == [alone(llama, words(30)).text]
    assert bench.texts(3) == [alone(llama, words(30, 9)).text]
    seeded = Bench(llama)
    seeded.ask(4, words(9), n=2, temperature=1.0, seed=7)
    assert bench.texts(4) == seeded.run().texts(4)


def test_clients_with_equally_many_running_rows_take_turns(llama: Checkpoint) -> None:
    bench = Bench(llama, kv_tokens=64)
    for request, client in enumerate(("a", "a", "a", "b", "b")):
        bench.ask(request, words(20), client=client, max_tokens=4)
    ended: list[int] = []
    while not bench.batch.is_idle:
        ended += [out.id for out in bench.step() if isinstance(out, Piece) and out.finish]
    assert ended == [0, 3, 1, 4, 2]


def test_seeded_and_unseeded_rows_share_one_bound_on_memory(llama: Checkpoint) -> None:
    bench = Bench(llama, kv_tokens=192)
    for i in range(12):
        seed = 5 if i % 3 == 0 else None
        bench.ask(i, words(10 + i), n=1 + i % 2, temperature=1.0, seed=seed, max_tokens=20)
    bench.run()
    assert not bench.refused
    assert all(answer.finish for answer in bench.answers.values())


def test_an_idle_batch_holds_no_memory(llama: Checkpoint) -> None:
    bench = Bench(llama)
    bench.ask(1, words(40), n=3)
    bench.ask(2, words(9), seed=3, temperature=1.0)
    bench.step()
    assert bench.held_bytes > 0
    bench.run()
    assert bench.held_bytes == 0
    assert bench.held_tokens == 0


def test_seeded_choices_that_never_fit_together_are_refused(llama: Checkpoint) -> None:
    bench = Bench(llama, kv_tokens=128)
    refusal = refusal_of(bench.ask, 1, words(30), n=4, seed=1, max_tokens=30)
    assert refusal.code == "INSUFFICIENT_MEMORY"
    assert bench.batch.is_idle


@pytest.mark.parametrize("at_once", [True, False])
def test_no_more_rows_decode_together_than_the_bound(
    llama: Checkpoint, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "ROWS_MAXIMUM", 4)
    bench = Bench(llama)
    answers = []
    for i in range(10):
        answers.append(bench.ask(i, words(9, i), max_tokens=12))
        if not at_once:
            bench.step()
    while not bench.batch.is_idle:
        bench.step()
        assert len(bench.batch._shared.rows) <= 4
    for i, answer in enumerate(answers):
        assert answer.tokens == generated(llama, words(9, i), 12)


# ---------------------------------------------------------------- cancelling


def test_a_row_cancelled_between_the_parts_of_its_prompt_leaves_no_trace(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "PREFILL_TOKENS", 32)
    bench = Bench(llama)
    neighbours = [bench.ask(i, words(12, i), max_tokens=24) for i in (1, 2)]
    bench.step(3)
    bench.ask(3, words(120), max_tokens=24)
    later = bench.ask(4, words(60), max_tokens=24)
    bench.step(2)
    assert any(0 < row.filled < len(row.prompt) for row in bench.batch._shared.joining)
    bench.batch.cancel(3)
    assert not bench.live_rows(3)
    assert all(outcome.id != 3 for outcome in bench.step())
    bench.run()
    assert [a.tokens for a in neighbours] == [generated(llama, words(12, i), 24) for i in (1, 2)]
    assert later.tokens == generated(llama, words(60), 24)


def test_a_decoding_row_that_leaves_does_not_disturb_a_prompt_in_parts(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "PREFILL_TOKENS", 32)
    bench = Bench(llama)
    for i in (1, 2, 3):
        bench.ask(i, words(12, i), max_tokens=30)
    bench.step(3)
    long = bench.ask(4, words(120), max_tokens=12)
    bench.step(2)
    bench.batch.cancel(1)
    bench.step()
    bench.batch.cancel(3)
    bench.run()
    assert long.tokens == generated(llama, words(120), 12)
    assert bench.answers[2, 0].tokens == generated(llama, words(12, 2), 30)


@pytest.mark.parametrize(("is_stream", "steps"), [(True, 3), (False, 1)])
def test_only_beside_streamed_answers_do_parts_of_a_prompt_rest(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch, *, is_stream: bool, steps: int
) -> None:
    monkeypatch.setattr(group_module, "PREFILL_TOKENS", 32)
    bench = Bench(llama)
    answer = bench.ask(1, words(12), max_tokens=40, is_stream=is_stream)
    bench.step(3)
    long = bench.ask(2, words(120), max_tokens=4).row
    filled = []
    while len(filled) < 2 * steps + 1:
        bench.step()
        filled.append(long.filled)
    assert filled[::steps] == [32, 64, len(long.prompt)]
    bench.run()
    assert answer.tokens == generated(llama, words(12), 40)


def test_cancelling_a_request_takes_all_its_choices_and_memory(llama: Checkpoint) -> None:
    bench = Bench(llama)
    # nothing is left to chance: a sampled end of the text would end a row before the cancel
    for request, seed, temperature in ((1, None, 0.0), (2, 9, 1.0)):
        prompts = [words(20), words(30)]
        bench.ask(request, prompts, n=3, temperature=temperature, seed=seed, max_tokens=40)
    bench.step(3)
    assert len(bench.live_rows(1)) == len(bench.live_rows(2)) == 6
    bench.batch.cancel(1)
    bench.batch.cancel(2)
    assert not bench.live_rows(1)
    assert not bench.live_rows(2)
    assert bench.batch.is_idle
    assert bench.held_bytes == 0


def progress(bench: Bench, request: int) -> str:
    """How far the one row of a request is."""
    if not (rows := bench.live_rows(request)):
        return "is gone"
    if rows[0].slot is None:
        return "waits"
    return "writes" if rows[0].out else "reads"


@pytest.mark.parametrize(("variant", "seed"), [("llama", 1), ("gemma3", 2), ("mistral", 3)])
def test_no_order_of_joining_and_cancelling_changes_a_text(
    loaded: Loaded, variant: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(variant)
    monkeypatch.setattr(group_module, "PREFILL_TOKENS", 24)
    draw = random.Random(seed)
    lengths, limits = (3, 20, 47, 90), (1, 6, 25)
    truths: dict[tuple[int, int], str] = {}
    for size in lengths:
        for limit in limits:
            truths[size, limit] = alone(model, words(size), max_tokens=limit).text
    # no step ends because of its time, so a slow machine reads as much in a step as a fast one
    bench = Bench(model, kv_tokens=384, step_seconds=3600.0)
    asked: dict[int, tuple[int, int]] = {}
    pieces: dict[int, int] = {}  # of each request, when it was cancelled
    found: set[str] = set()
    for number in range(60):
        asked[number] = (draw.choice(lengths), draw.choice(limits))
        size, limit = asked[number]
        plan = draw.choice((None, Suppressed()))
        seeded = draw.choice((None, None, 4))
        bench.ask(number, words(size), max_tokens=limit, plan=plan, seed=seeded)
        if draw.random() < 0.3:
            victim = draw.randrange(max(0, number - 8), number + 1)
            found.add(progress(bench, victim))
            pieces.setdefault(victim, len(bench.answers[victim, 0].pieces))
            bench.batch.cancel(victim)
            assert not bench.live_rows(victim)
        bench.step(draw.randrange(8))
    bench.batch.cancel(10_000)  # an id that was never asked for
    bench.run()
    assert not bench.refused
    assert bench.held_bytes == 0
    assert found >= {"waits", "writes", "is gone"}
    for number, key in asked.items():
        answer = bench.answers[number, 0]
        if answer.finish:
            assert answer.text == truths[key]
        else:
            assert len(answer.pieces) == pieces[number]
            assert truths[key].startswith(answer.text)
