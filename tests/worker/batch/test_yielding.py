"""Rows of requests that yield keep their place beside live rows, rest there, and lose nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from steerserve.messages import Overlay, Piece, ReadStatistics
from steerserve.parts.activations.form import Tap
from steerserve.rules.clients import in_background
from steerserve.rules.inference.yielding import READ_EVERY
from steerserve.worker.model.checkpoint import Checkpoint
from tests.worker.running import Answer, Bench, alone, generated, random_sae, words

BATCH = in_background("somebody")
LINES = {number: words(8 + 9 * number, number) for number in range(1, 5)}


def with_lines(
    model: Checkpoint, count: int = 4, kv_tokens: int = 4096
) -> tuple[Bench, list[Answer]]:
    bench = Bench(model, kv_tokens)
    lines = [
        bench.ask(number, LINES[number], max_tokens=30, client=BATCH)
        for number in range(1, count + 1)
    ]
    return bench, lines


def test_rows_that_yield_rest_beside_a_live_row_and_then_go_on(llama: Checkpoint) -> None:
    bench, lines = with_lines(llama)
    bench.step(8)
    before = [len(line.tokens) for line in lines]
    assert all(before)
    live = bench.ask(9, words(20), max_tokens=12)
    while not live.finish:
        bench.step()
    after = [len(line.tokens) for line in lines]
    # the first of them takes part in some steps
    assert before[0] < after[0] < before[0] + 12
    assert after[1:] == before[1:]
    bench.run()
    assert live.tokens == generated(llama, words(20), 12)
    assert [line.tokens for line in lines] == [
        generated(llama, prompt, 30) for prompt in LINES.values()
    ]


def test_prompts_of_rows_that_yield_wait_beside_live_rows(llama: Checkpoint) -> None:
    bench = Bench(llama)
    live = bench.ask(9, words(3), max_tokens=150, temperature=1.0, seed=3)
    bench.step(2)
    line = bench.ask(1, LINES[1], max_tokens=4, client=BATCH)
    steps = 0
    while not line.tokens and not live.finish:
        bench.step()
        steps += 1
    assert steps >= min(READ_EVERY, len(live.tokens) - 2)
    bench.run()
    assert line.tokens == generated(llama, LINES[1], 4)


def test_the_engine_pauses_only_while_a_live_request_may_follow(llama: Checkpoint) -> None:
    bench, _ = with_lines(llama)
    bench.step(8)
    assert bench.batch.rest_seconds == 0
    bench.ask(9, words(20), max_tokens=4)
    while bench.live_rows(9):
        assert bench.batch.rest_seconds == 0
        bench.step()
    assert 0 < bench.batch.rest_seconds <= 0.2
    bench.ask(10, words(20), max_tokens=4)
    assert bench.batch.rest_seconds == 0
    bench.run()
    assert bench.batch.rest_seconds == 0


def test_rows_that_yield_do_not_rest_while_a_live_row_waits_for_their_room(
    llama: Checkpoint,
) -> None:
    bench, lines = with_lines(llama, kv_tokens=256)
    bench.step(4)
    live = [bench.ask(9 + i, words(40, i), max_tokens=30) for i in range(3)]
    bench.run()
    assert [one.text for one in live] == [
        alone(llama, words(40, i), max_tokens=30).text for i in range(3)
    ]
    assert all(line.finish for line in lines)


def test_live_rows_join_before_rows_that_yield(llama: Checkpoint) -> None:
    bench = Bench(llama, kv_tokens=64)
    for number, client in ((1, BATCH), (2, BATCH), (3, "a"), (4, "a")):
        bench.ask(number, words(20), client=client, max_tokens=4)
    ended: list[int] = []
    while not bench.batch.is_idle:
        ended += [out.id for out in bench.step() if isinstance(out, Piece) and out.finish]
    assert ended == [3, 4, 1, 2]


def test_a_live_row_does_not_wait_for_a_beginning_that_a_resting_row_reads(
    llama: Checkpoint,
) -> None:
    bench = Bench(llama, prefix_tokens=1024)
    other = bench.ask(8, words(3), max_tokens=60)
    bench.step(2)
    bench.ask(1, words(90), max_tokens=4, client=BATCH)
    live = bench.ask(9, words(90), max_tokens=4)
    while not live.finish:
        bench.step()
        assert not other.finish
    bench.run()
    assert live.tokens == generated(llama, words(90), 4)


def test_a_pass_over_live_rows_reads_no_resting_rows(llama: Checkpoint) -> None:
    bench, _ = with_lines(llama)
    bench.step(8)
    live = bench.ask(9, LINES[1], max_tokens=12)
    bench.step(5)
    assert live.row.slot is not None
    assert live.row.slot.place == 0
    bench.run()
    assert live.tokens == generated(llama, LINES[1], 12)


def stopping(every: int) -> Callable[[], bool]:
    """Says at every so many layers that a live request waits."""
    layers: Iterator[int] = count(1)
    return lambda: next(layers) % every == 0


@pytest.mark.parametrize("steps", [0, 1, 8], ids=["prefill", "first-decode", "decode"])
def test_a_pass_over_rows_that_yield_ends_once_a_live_request_waits(
    llama: Checkpoint, steps: int
) -> None:
    bench, lines = with_lines(llama)
    bench.step(steps)
    before = [line.tokens for line in lines]
    bench.batch.live_waits = stopping(2)
    bench.step()
    assert [line.tokens for line in lines] == before
    live = bench.ask(9, words(20), max_tokens=4)
    # beside a live row no pass is stopped
    bench.step(4)
    assert live.finish
    bench.batch.live_waits = lambda: False
    bench.run()
    assert live.tokens == generated(llama, words(20), 4)
    assert [line.tokens for line in lines] == [
        generated(llama, prompt, 30) for prompt in LINES.values()
    ]


def test_passes_that_were_stopped_are_counted_and_read_once(llama: Checkpoint) -> None:
    found = []
    for live_waits in (lambda: False, stopping(4)):
        bench = Bench(llama)
        bench.batch.live_waits = live_waits
        with bench.attached("sae@0", random_sae(llama.hidden_size)):
            bench.watch("sae@0")
            for number, positions in enumerate(("all", "last"), 1):
                bench.ask(
                    number,
                    LINES[number],
                    plan=Overlay(0, {"sae@0": {3: 2.0}}),
                    tap=Tap("sae@0", None, 48, positions, False, 1 << 16),
                    label="line",
                    client=BATCH,
                    max_tokens=6,
                )
            bench.run()
            told = bench.monitor.read(ReadStatistics(9))
            steered = bench.steering.applied
        texts = bench.texts(1), bench.texts(2)
        found.append((texts, bench.readings, told, len(bench.records), steered))
    assert found[0] == found[1]
    assert found[0][2].tokens == 12
