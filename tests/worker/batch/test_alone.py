"""Architectures that the passes of the batch cannot serve: rows are stepped one at a time, and are served as others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from steerserve.messages import Echo, Overlay, ReadStatistics
from steerserve.parts.activations.form import Tap
from steerserve.worker.batch import group as group_module
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.model.plain import Memory
from tests.refusals import refusal_of
from tests.worker.models import ALONE, save
from tests.worker.running import (
    Bench,
    alone,
    generated,
    hooked,
    logits_noted,
    next_logits,
    open_checkpoint,
    passed,
    random_sae,
    recomputed,
    site_of,
    states_of,
    words,
)

Loaded = Callable[[str], Checkpoint]
KEY = "sae@0"
SAE = random_sae(32)
ONE = {3: 2.0, 7: -1.5, 40: 0.25}
STEERED = Overlay(0, {KEY: ONE})
SEEDED = {"seed": 7, "temperature": 1.0, "max_tokens": 20}

# (step of joining, prompt, max_tokens)
STAGGERED = (
    (0, words(3), 24),
    (0, words(80, 11), 5),
    (1, words(1), 20),
    (3, words(25, 40), 30),
    (7, words(55, 70), 12),
)
LONG = "phi3_longrope"
KINDS = ["bloom", "gpt_neo", "mamba", "jamba", "recurrent_gemma", "openai_gpt"]
"""A bias, a mask, and a recurrent state of their own; both kinds of layers; states in modules; no cache at all."""


def delta() -> Tensor:
    return sum((value * SAE.W_dec[i] for i, value in ONE.items()), torch.zeros(32))


@pytest.mark.parametrize("variant", ALONE)
def test_rows_that_take_turns_give_the_text_of_generate(loaded: Loaded, variant: str) -> None:
    model = loaded(variant)
    assert model.row_steps.are_batched is (variant == LONG)
    assert "one at a time" in model.row_steps.reason
    bench, answers = Bench(model), []
    with logits_noted(model) as passes:
        for step in range(8):
            for number, (joins, prompt, limit) in enumerate(STAGGERED):
                if joins == step:
                    answers.append(bench.ask(number, prompt, max_tokens=limit))
            bench.step()
        bench.run()
    assert not bench.refused
    assert variant == LONG or {len(logits) for logits in passes} == {1}
    for answer, (_, prompt, limit) in zip(answers, STAGGERED, strict=True):
        assert answer.tokens == generated(model, prompt, limit)


def test_a_text_is_that_of_no_cache_at_all(loaded: Loaded) -> None:
    for variant in KINDS:
        model = loaded(variant)
        assert alone(model, words(30), max_tokens=12).tokens == recomputed(model, words(30), 12)


def test_what_a_row_holds_is_found_for_each_kind(loaded: Loaded) -> None:
    kinds = {}
    for variant in [*KINDS, "minimax"]:
        passes = loaded(variant).alone
        assert passes is not None
        kinds[variant] = (passes.memory, bool(passes._places), passes.state_tokens > 0)
    assert kinds == {
        "bloom": (Memory.DYNAMIC, False, False),
        "gpt_neo": (Memory.DYNAMIC, False, False),
        "mamba": (Memory.DYNAMIC, False, True),
        "jamba": (Memory.DYNAMIC, False, True),
        "recurrent_gemma": (Memory.DYNAMIC, True, True),
        "openai_gpt": (Memory.NOTHING, False, False),
        "minimax": (Memory.OWN, False, True),
    }


def test_a_model_whose_later_tokens_change_earlier_ones_is_refused(loaded: Loaded) -> None:
    refusal = refusal_of(loaded, "bert")
    assert refusal.code == "MODEL_LOAD_FAILED"
    assert "later tokens change" in refusal.message


def test_a_model_with_a_weight_that_is_nan_is_refused_with_the_token(tmp_path: Path) -> None:
    save("llama", tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    tensors = load_file(file)
    tensors["lm_head.weight"][30] = torch.nan
    save_file(tensors, file, {"format": "pt"})
    refusal = refusal_of(open_checkpoint, tmp_path)
    assert refusal.code == "MODEL_LOAD_FAILED"
    assert "NaN as the logit of 1 of" in refusal.message
    assert "token 30" in refusal.message


@pytest.mark.parametrize("variant", ["bloom", "mamba"])
def test_a_prompt_is_read_in_parts_only_where_that_is_right(
    loaded: Loaded, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "PREFILL_TOKENS", 16)
    model = loaded(variant)
    bench = Bench(model)
    answer = bench.ask(1, words(100), max_tokens=6)
    with logits_noted(model) as passes:
        bench.step()
        parts = len(passes)
        while not answer.pieces:
            bench.step()
            parts += 1
        bench.run()
    assert parts == (1 if variant == "mamba" else -(-len(answer.row.prompt) // 16))
    assert answer.tokens == generated(model, words(100), 6)


# ---------------------------------------------------------------- steering and observing


@pytest.mark.parametrize("variant", KINDS)
def test_a_row_is_steered_at_every_position_beside_rows_that_are_not(
    loaded: Loaded, variant: str
) -> None:
    model, bench = loaded(variant), Bench(loaded(variant))
    with bench.attached(KEY, SAE):
        steered = bench.ask(1, words(30), plan=STEERED, max_tokens=8)
        plain = bench.ask(2, words(30), max_tokens=8)
        bench.run()
        assert bench.steering.applied == {KEY: len(steered.tokens)}
    assert plain.tokens == generated(model, words(30), 8)
    with hooked(site_of(model), lambda hidden: hidden + delta()):
        assert steered.tokens == recomputed(model, words(30), 8)
    assert steered.tokens != plain.tokens


def last_of(passes: list[Tensor]) -> Tensor:
    """The last logits of each pass."""
    return torch.cat([logits[:, -1] for logits in passes])


@pytest.mark.parametrize("variant", KINDS)
def test_values_of_zero_change_no_bit(loaded: Loaded, variant: str) -> None:
    found = []
    for values in (None, {3: 0.0}):
        bench = Bench(loaded(variant))
        with bench.attached(KEY, SAE):
            plan = None if values is None else Overlay(0, {KEY: values})
            bench.ask(1, words(30), plan=plan, max_tokens=4)
            with logits_noted(bench.model) as seen:
                bench.run()
        found.append(last_of(seen))
    bench = Bench(loaded(variant))
    bench.ask(1, words(30), max_tokens=4)
    with logits_noted(bench.model) as seen:
        bench.run()
    assert torch.equal(found[0], last_of(seen))
    assert torch.equal(found[1], last_of(seen))


@pytest.mark.parametrize("variant", KINDS)
def test_each_token_is_tapped_and_monitored_once(loaded: Loaded, variant: str) -> None:
    model, bench = loaded(variant), Bench(loaded(variant))
    tap = Tap(KEY, positions="all", features=None, top_k=48, is_before=True, max_entries=65_536)
    with bench.attached(KEY, SAE):
        bench.watch(KEY, top_k=5)
        answer = bench.ask(1, words(30), tap=tap, max_tokens=6, label="a")
        bench.ask(2, words(20), max_tokens=6)
        bench.run()
        statistics = bench.monitor.read(ReadStatistics(9, None))
    tokens = passed(answer)
    truth = SAE.encode(states_of(model, tokens))
    assert [reading.position for reading in bench.readings[1]] == list(range(len(tokens)))
    for reading in bench.readings[1]:
        values = torch.zeros(SAE.d_sae)
        for index, value in reading.features:
            values[index] = value
        torch.testing.assert_close(values, truth[reading.position], atol=1e-3, rtol=1e-3)
    read = truth[len(answer.row.prompt) - 1 :]
    assert (statistics.tokens, statistics.activations) == (len(read), int((read > 0).sum()))


# ---------------------------------------------------------------- scores, vectors, seeds


@pytest.mark.parametrize("variant", KINDS)
def test_scores_and_vectors_are_those_of_a_plain_pass(loaded: Loaded, variant: str) -> None:
    model, bench = loaded(variant), Bench(loaded(variant))
    bench.ask(9, words(12), max_tokens=9)
    prompts = [words(60), words(4, 7)]
    bench.score(1, list(prompts), echo=Echo(max_tokens=0, max_entries=65_536))
    bench.embed(2, list(prompts))
    bench.run()
    assert not bench.refused
    for choice, prompt in enumerate(prompts):
        ids = model.encode(prompt, special=True)
        truth = next_logits(model, ids).log_softmax(-1)
        scored = bench.scores[1, choice]
        assert scored.best.logprob == pytest.approx(float(truth.max()), abs=1e-4)
        every = model.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()
        echoed = every.log_softmax(-1)[:-1].gather(1, torch.tensor(ids)[1:, None])[:, 0]
        found = [token.logprob for token in scored.prompt[1:]]
        assert found == pytest.approx(echoed.tolist(), abs=1e-3)
        base = model.model.base_model(input_ids=torch.tensor([ids]), use_cache=False)
        hidden = base[0][0].float().mean(0)
        torch.testing.assert_close(bench.vectors[2, choice], hidden, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("variant", [*KINDS, LONG])
def test_a_seeded_text_is_the_same_alone_and_in_a_crowd(
    loaded: Loaded, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "PREFILL_TOKENS", 32)
    model = loaded(variant)
    truth = alone(model, words(70, 5), **SEEDED)
    bench = Bench(model)
    for i in range(4):
        bench.ask(100 + i, words(20 * i + 1, i), temperature=1.0, max_tokens=10 + i)
        bench.step(i)
    answer = bench.ask(1, words(70, 5), **SEEDED)
    for i in range(4):
        bench.ask(200 + i, words(20 * i + 1, i), seed=i, temperature=1.0, n=2, max_tokens=9)
        bench.step()
    bench.run()
    assert (answer.tokens, answer.finish) == (truth.tokens, truth.finish)


# ---------------------------------------------------------------- memory and cancelling


@pytest.mark.parametrize("variant", ["bloom", "mamba", "jamba", "openai_gpt"])
def test_rows_wait_for_memory_and_leave_none_behind(loaded: Loaded, variant: str) -> None:
    model = loaded(variant)
    room = 2 * (96 + model.row_tokens)
    bench = Bench(model, kv_tokens=room)
    answers = [bench.ask(i, words(40, i), max_tokens=12) for i in range(5)]
    bench.step(3)
    assert bench.batch._waiting
    assert 0 < bench.held_tokens <= room
    assert bench.held_bytes <= room * model.kv_bytes_per_token
    bench.batch.cancel(0)
    assert not bench.live_rows(0)
    bench.run()
    assert bench.held_tokens == bench.held_bytes == 0
    for i, answer in enumerate(answers[1:], 1):
        assert answer.tokens == generated(model, words(40, i), 12)


def test_a_state_counts_as_tokens_of_memory(loaded: Loaded) -> None:
    for variant in ("mamba", "jamba", "recurrent_gemma"):
        model, bench = loaded(variant), Bench(loaded(variant))
        bench.ask(1, words(20), max_tokens=12)
        bench.step(2)
        assert bench.held_bytes <= bench.batch.kv_held * model.kv_bytes_per_token
        bench.batch.cancel(1)


# ---------------------------------------------------------------- positions that change their meaning


def test_rows_of_the_first_range_share_passes_beside_longer_ones(loaded: Loaded) -> None:
    model = loaded(LONG)
    assert model.batched_context == 64
    assert model.model_max_context == 256
    bench = Bench(model)
    short = [bench.ask(i, words(12, i), max_tokens=30) for i in range(3)]
    bench.step(3)
    long = bench.ask(9, words(150), max_tokens=30)
    with logits_noted(model) as passes:
        bench.run()
    assert {1, 3} <= {len(logits) for logits in passes}
    for i, answer in enumerate(short):
        assert answer.tokens == generated(model, words(12, i), 30)
    assert long.tokens == generated(model, words(150), 30)


def test_a_text_that_grows_past_the_first_range_is_that_of_generate(loaded: Loaded) -> None:
    model, bench = loaded(LONG), Bench(loaded(LONG))
    answers = [bench.ask(i, words(size, i), max_tokens=60) for i, size in enumerate((60, 75, 90))]
    bench.run()
    for i, (answer, size) in enumerate(zip(answers, (60, 75, 90), strict=True)):
        assert answer.tokens == generated(model, words(size, i), 60)
    assert any(len(passed(a)) > 64 > len(a.row.prompt) for a in answers)


def test_a_text_is_steered_and_tapped_across_the_end_of_the_first_range(loaded: Loaded) -> None:
    model, bench = loaded(LONG), Bench(loaded(LONG))
    tap = Tap(KEY, positions="all", features=None, top_k=48, is_before=True, max_entries=65_536)
    with bench.attached(KEY, SAE):
        answer = bench.ask(1, words(80), plan=STEERED, tap=tap, max_tokens=50)
        bench.run()
    with hooked(site_of(model), lambda hidden: hidden + delta()):
        assert answer.tokens == generated(model, words(80), 50)
    tokens = passed(answer)
    assert len(answer.row.prompt) < 64 < len(tokens)
    assert [reading.position for reading in bench.readings[1]] == list(range(len(tokens)))
    last = SAE.encode(states_of(model, tokens))[-1]
    found = torch.zeros(SAE.d_sae)
    for index, value in bench.readings[1][-1].features:
        found[index] = value
    torch.testing.assert_close(found, last, atol=1e-3, rtol=1e-3)
