"""The tokens of a prompt are scored as by one plain pass over the prompt, whatever runs beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor

from steerserve.messages import Echo, Overlay, PromptToken, Scored
from steerserve.worker.batch import group as group_module
from steerserve.worker.batch import planned as planned_module
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.rows import goals as goals_module
from tests.refusals import refusal_of
from tests.worker.models import CONTEXT, VOCABULARY
from tests.worker.running import (
    Bench,
    generated,
    logits_edited,
    logits_noted,
    random_sae,
    words,
)

Loaded = Callable[[str], Checkpoint]
KINDS = "llama gpt2 gemma2 gemma3 qwen3 phi cohere granite opt".split()
PROMPTS = [words(40), words(4, 7), words(33, 50)]
ECHO = Echo(1, 65_536)
KEY = "sae@0"


def plain(model: Checkpoint, ids: list[int], temperature: float = 1.0) -> Tensor:
    """Log-probabilities [T, vocabulary] after each token, by one plain pass in float32."""
    logits = model.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()
    return (logits / temperature).log_softmax(-1)


def check(
    prompt: list[PromptToken], ids: list[int], truth: Tensor, count: int, model: Checkpoint
) -> None:
    assert [token.token for token in prompt] == ids
    assert prompt[0].logprob is None
    assert prompt[0].top == []
    for at, token in enumerate(prompt[1:]):
        expected = truth[at]
        assert token.logprob == pytest.approx(float(expected[token.token]), abs=1e-3)
        assert token.text == model.decode_token(token.token)
        listed = [score.token for score in token.top]
        assert len(listed) == len(set(listed))
        assert token.token in listed or count == 0
        best = [score.logprob for score in token.top[:count]]
        assert best == pytest.approx(expected.topk(count).values.tolist(), abs=1e-3)
        assert len(listed) in (count, count + 1) if count else listed == []


def echoed(model: Checkpoint, prompts: list[str], **fields: Any) -> Bench:
    bench = Bench(model)
    bench.score(1, list(prompts), echo=ECHO, **fields)
    bench.run()
    assert not bench.refused
    return bench


def check_all(bench: Bench, prompts: list[str], count: int = 5, temperature: float = 1.0) -> None:
    for choice, prompt in enumerate(prompts):
        ids = bench.model.encode(prompt, special=True)
        truth = plain(bench.model, ids, temperature)
        scored = bench.scores[1, choice]
        check(scored.prompt, ids, truth, count, bench.model)
        best = float(truth[-1].max())
        assert scored.best.logprob == pytest.approx(best, abs=1e-3)


@pytest.mark.parametrize("variant", KINDS)
def test_prompts_of_different_lengths_are_scored_token_by_token(
    loaded: Loaded, variant: str
) -> None:
    check_all(echoed(loaded(variant), PROMPTS), PROMPTS)


@pytest.mark.parametrize("most", [7, 16, 39])
@pytest.mark.parametrize("variant", ["llama", "gemma3", "opt"])
def test_a_prompt_scored_in_parts_equals_the_whole(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch, variant: str, most: int
) -> None:
    monkeypatch.setattr(planned_module, "ECHO_LOGITS", most * VOCABULARY)
    monkeypatch.setattr(goals_module, "ECHO_POSITIONS", 3)
    check_all(echoed(loaded(variant), PROMPTS), PROMPTS)


@pytest.mark.parametrize("top", [0, 1, 20])
@pytest.mark.parametrize("temperature", [0.0, 0.5, 2.0])
def test_as_many_candidates_are_listed_as_asked(
    llama: Checkpoint, top: int, temperature: float
) -> None:
    bench = echoed(llama, PROMPTS, top=top, temperature=temperature)
    check_all(bench, PROMPTS, top, temperature or 1.0)


def test_beside_texts_and_other_scores_each_is_as_alone(llama: Checkpoint) -> None:
    alone = [echoed(llama, [prompt]).scores[1, 0] for prompt in PROMPTS]
    bench = Bench(llama)
    text = bench.ask(2, words(20), max_tokens=6)
    bench.step()
    bench.score(1, list(PROMPTS), echo=ECHO)
    bench.score(3, words(12), top=5)
    bench.embed(4, words(9))
    later = bench.ask(5, words(30, 1), max_tokens=4)
    bench.run()
    assert text.tokens == generated(llama, words(20), 6)
    assert later.tokens == generated(llama, words(30, 1), 4)
    for choice, expected in enumerate(alone):
        found = bench.scores[1, choice].prompt
        assert [token.token for token in found] == [token.token for token in expected.prompt]
        assert [token.logprob for token in found[1:]] == pytest.approx(
            [token.logprob for token in expected.prompt[1:]], abs=1e-3
        )
    assert bench.scores[3, 0].prompt == []
    assert bench.vectors[4, 0].shape == (llama.hidden_size,)
    ids = llama.encode(words(9), special=True)
    states = llama.model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
    torch.testing.assert_close(bench.vectors[4, 0], states[-1][0].mean(0), atol=1e-3, rtol=1e-3)


def test_no_steering_reaches_the_scores_of_a_prompt(llama: Checkpoint) -> None:
    truth = echoed(llama, PROMPTS)
    bench = Bench(llama)
    with bench.attached(KEY, random_sae(32)):
        bench.ask(2, words(20), plan=Overlay(0, {KEY: {3: 9.0}}), max_tokens=8)
        bench.step()
        bench.score(1, list(PROMPTS), echo=ECHO)
        bench.run()
    for choice in range(len(PROMPTS)):
        assert [token.logprob for token in bench.scores[1, choice].prompt[1:]] == pytest.approx(
            [token.logprob for token in truth.scores[1, choice].prompt[1:]], abs=1e-3
        )


def test_a_prompt_may_fill_the_context_where_no_token_follows(llama: Checkpoint) -> None:
    full = [*range(5, 5 + CONTEXT)]
    bench = Bench(llama)
    bench.score(1, "", ids=full, echo=Echo(0, 65_536))
    bench.run()
    assert len(bench.scores[1, 0].prompt) == CONTEXT
    assert refusal_of(bench.score, 2, "", ids=full, echo=ECHO).code == "CONTEXT_LENGTH_EXCEEDED"


@pytest.mark.parametrize(("top", "most"), [(0, 40), (5, 240)])
def test_an_answer_with_too_many_scores_is_refused(llama: Checkpoint, top: int, most: int) -> None:
    ids = list(range(5, 45))
    bench = Bench(llama)
    bench.score(1, "", ids=ids, top=top, echo=Echo(1, most))
    refusal = refusal_of(lambda: bench.score(2, "", ids=ids, top=top, echo=Echo(1, most - 1)))
    assert (refusal.code, refusal.param) == ("INVALID_PARAMETER", "echo")
    assert refusal.details == {"entries": most, "max_entries": most - 1}


def test_a_token_that_the_model_reads_and_never_writes_is_refused(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama, "vocabulary", 40)
    bench = Bench(llama)
    bench.score(1, "", ids=[5, 39], top=1, echo=ECHO)
    refusal = refusal_of(bench.score, 2, "", ids=[5, 40], top=1, echo=ECHO)
    assert refusal.code == "INVALID_SCORING_REQUEST"
    bench.batch.cancel(1)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("at", [0, 20, 39])
def test_logits_that_are_no_numbers_refuse_their_own_prompt_only(
    llama: Checkpoint, value: float, at: int
) -> None:
    def edit(logits: Tensor) -> None:
        if logits.shape[0] == 2 * 40:  # the tokens of both prompts
            logits[at, 0, 7] = value

    bench = Bench(llama)
    with logits_edited(llama, edit):
        bench.score(1, "", ids=list(range(5, 45)), echo=ECHO)
        bench.score(2, "", ids=list(range(9, 49)), echo=ECHO)
        bench.run()
    assert {number: refusal.code for number, refusal in bench.refused.items()} == {
        1: "NON_FINITE_LOGITS"
    }
    check(
        bench.scores[2, 0].prompt,
        list(range(9, 49)),
        plain(llama, list(range(9, 49))),
        5,
        llama,
    )


def test_a_token_without_a_chance_is_refused(llama: Checkpoint) -> None:
    bench = Bench(llama)
    with logits_edited(llama, lambda logits: logits[..., 9].fill_(-torch.inf)):
        bench.score(1, "", ids=[5, 6, 9, 10], top=1, echo=ECHO)
        bench.score(2, "", ids=[5, 6, 7, 10], top=1, echo=ECHO)
        bench.run()
    assert {number: refusal.code for number, refusal in bench.refused.items()} == {
        1: "NON_FINITE_LOGITS"
    }
    assert isinstance(bench.scores[2, 0], Scored)


def test_memory_that_runs_out_over_the_scores_is_refused_and_the_engine_goes_on(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: Any) -> None:
        raise torch.OutOfMemoryError("no memory")

    bench = Bench(llama)
    with monkeypatch.context() as patched, capture_logs():
        patched.setattr(goals_module.Scoring, "read_prompt", exhausted)
        bench.score(1, PROMPTS[0], echo=ECHO)
        bench.run()
    assert bench.refused[1].code == "INSUFFICIENT_MEMORY"
    assert bench.held_bytes == 0
    answer = bench.ask(2, words(20), max_tokens=4)
    bench.run()
    assert answer.tokens == generated(llama, words(20), 4)


def test_a_long_prompt_joins_no_pass_that_keeps_all_logits(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planned_module, "ECHO_LOGITS", 16 * VOCABULARY)
    monkeypatch.setattr(group_module, "PREFILL_TOKENS", 1024)
    bench = Bench(llama)
    with logits_noted(llama) as passes:
        bench.ask(1, "", ids=list(range(5, 65)), max_tokens=1)
        bench.score(2, "", ids=list(range(5, 45)), echo=ECHO)
        bench.run()
    assert [logits.shape[:2] for logits in passes] == [(1, 1), (16, 1), (16, 1), (8, 1)]
