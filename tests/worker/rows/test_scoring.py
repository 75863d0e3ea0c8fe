"""Scoring: the distribution after a prompt is that of one plain pass, whatever runs beside it, or it is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor

from steerserve import messages as m
from steerserve.engines.checkpoint.client import CheckpointEngine
from steerserve.messages import Scored, Tokens
from steerserve.rules.steering.live import Live
from steerserve.worker.batch import group as group_module
from steerserve.worker.model.checkpoint import Checkpoint
from tests import asking
from tests.refusals import refusal_of
from tests.worker.models import CONTEXT, VOCABULARY
from tests.worker.running import (
    FIELDS,
    Bench,
    altered,
    generated,
    logits_edited,
    logits_noted,
    next_logits,
    open_checkpoint,
    random_sae,
    with_bos,
    words,
)

Loaded = Callable[[str], Checkpoint]
Folder = Callable[[str], Path]
KINDS = "llama gpt2 gemma2 gemma3 qwen3 phi gpt_neox mistral falcon opt cohere granite".split()
IN_PARTS = "llama gpt2 gemma3 mistral opt falcon".split()
# longest first, so that the order of the prompts is not that of the rows
PROMPTS = [words(90), words(4, 7), words(33, 50)]
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
KEY = "sae@0"
SAE = random_sae(32)
LIVE = Live(1, True, {KEY: {3: 2.0, 7: -1.5}})
NOT_FINITE = "NON_FINITE_LOGITS"


def logprobs_after(
    model: Checkpoint, prompt: str, temperature: float = 1.0, allowed: list[int] | None = None
) -> dict[int, float]:
    """Log-probabilities by token, from one plain pass."""
    logits = next_logits(model, model.encode(prompt, special=True))
    tokens = list(range(len(logits))) if allowed is None else allowed
    found = (logits[tokens] / temperature).log_softmax(-1)
    return dict(zip(tokens, found.tolist(), strict=True))


def check(scored: Scored, truth: dict[int, float], count: int) -> None:
    """The score lists the `count` most probable tokens of the truth in its order, each with its log-probability."""
    most = sorted(truth.values(), reverse=True)[:count]
    assert [s.logprob for s in scored.top] == pytest.approx(most, abs=1e-4)
    assert [s.logprob for s in scored.top] == sorted((s.logprob for s in scored.top), reverse=True)
    for score in [scored.best, *scored.top]:
        assert score.logprob == pytest.approx(truth[score.token], abs=1e-4)
    assert len({score.token for score in scored.top}) == count
    assert scored.best.logprob == pytest.approx(most[0] if most else max(truth.values()), abs=1e-4)


def check_all(bench: Bench, request: int, prompts: list[str], count: int = 5, **truth: Any) -> None:
    assert not bench.refused
    assert sorted(c for r, c in bench.scores if r == request) == list(range(len(prompts)))
    for choice, prompt in enumerate(prompts):
        expected = logprobs_after(bench.model, prompt, **truth)
        check(bench.scores[request, choice], expected, count)


def scored(model: Checkpoint, prompt: str = words(30), **fields: Any) -> Scored:
    """The score of one prompt that has the engine to itself."""
    bench = Bench(model)
    bench.score(1, prompt, **fields)
    bench.run()
    assert not bench.refused
    return bench.scores[1, 0]


def put(row: int, values: dict[int, float]) -> Callable[[Tensor], None]:
    """An edit of one row of a prefill pass that has it."""

    def edit(logits: Tensor) -> None:
        for token, value in values.items():
            if row < logits.shape[0]:
                logits[row, :, token] = value

    return edit


# ---------------------------------------------------------------- the plain pass


@pytest.mark.parametrize("variant", KINDS)
def test_prompts_of_different_lengths_are_scored_as_by_a_plain_pass(
    loaded: Loaded, variant: str
) -> None:
    bench = Bench(loaded(variant))
    bench.score(1, list(PROMPTS))
    bench.run()
    check_all(bench, 1, PROMPTS)


@pytest.mark.shows("scoring-mode.8")
def test_each_prompt_is_scored_by_one_pass_and_nothing_is_generated(llama: Checkpoint) -> None:
    bench = Bench(llama)
    bench.score(1, list(PROMPTS))
    with logits_noted(llama) as passes:
        bench.run()
    assert len(bench.scores) == sum(map(len, passes)) == len(PROMPTS)


@pytest.mark.parametrize("variant", IN_PARTS)
def test_a_prompt_scored_in_parts_equals_the_whole(
    loaded: Loaded, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "PREFILL_TOKENS", 16)
    bench = Bench(loaded(variant))
    bench.score(1, list(PROMPTS))
    bench.step(4)
    assert any(0 < row.filled < len(row.prompt) for row in bench.batch._shared.joining)
    bench.run()
    check_all(bench, 1, PROMPTS)


def test_a_prompt_may_leave_room_for_just_the_scored_token(llama: Checkpoint) -> None:
    ids = [5 + i % 200 for i in range(CONTEXT)]
    bench = Bench(llama)
    bench.score(1, "", ids=ids[:-1])
    bench.run()
    expected = dict(enumerate(next_logits(llama, ids[:-1]).log_softmax(-1).tolist()))
    check(bench.scores[1, 0], expected, 5)
    assert refusal_of(bench.score, 2, "", ids=ids).code == "CONTEXT_LENGTH_EXCEEDED"


def test_a_cancelled_scoring_request_leaves_no_trace(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "PREFILL_TOKENS", 16)
    bench = Bench(llama)
    answer = bench.ask(1, words(20), max_tokens=24)
    bench.step(2)
    bench.score(2, list(PROMPTS))
    bench.score(3, list(PROMPTS))
    while not any(0 < row.filled < len(row.prompt) for row in bench.live_rows(2)):
        bench.step()
    bench.batch.cancel(2)
    assert not bench.live_rows(2)
    bench.run()
    assert (2, 0) not in bench.scores
    check_all(bench, 3, PROMPTS)
    assert answer.tokens == generated(llama, words(20), 24)


# ---------------------------------------------------------------- temperature


@pytest.mark.parametrize("temperature", [0.001, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("allowed", [None, [9, 250, 31]])
def test_the_temperature_divides_the_logits(
    llama: Checkpoint, temperature: float, allowed: list[int] | None
) -> None:
    found = scored(llama, temperature=temperature, allowed=allowed)
    truth = logprobs_after(llama, words(30), temperature, allowed)
    # cold logits are large numbers, of which float32 keeps fewer decimals
    scale = max(1.0, 1 / temperature)
    assert [s.logprob / scale for s in found.top] == pytest.approx(
        [truth[s.token] / scale for s in found.top], abs=1e-4
    )


def test_temperature_zero_does_not_scale(llama: Checkpoint) -> None:
    assert scored(llama, temperature=0.0) == scored(llama, temperature=1.0)
    assert scored(llama, temperature=0.0) != scored(llama, temperature=0.5)


# ---------------------------------------------------------------- what is listed


@pytest.mark.parametrize("top", [0, 1, 20])
def test_as_many_tokens_are_listed_as_asked_and_the_best_in_any_case(
    llama: Checkpoint, top: int
) -> None:
    found = scored(llama, top=top)
    check(found, logprobs_after(llama, words(30)), top)
    assert [found.best.token] == generated(llama, words(30), 1)


def test_each_token_carries_its_own_text(llama: Checkpoint) -> None:
    found = scored(llama, allowed=[0, 1, 70, 300])
    assert {s.token: s.text for s in found.top} == {
        i: llama.tokenizer.decode([i]) for i in (0, 1, 70, 300)
    }
    assert found.best == found.top[0]


def test_tokens_of_equal_logits_have_equal_probability_and_each_its_own_place(
    llama: Checkpoint,
) -> None:
    tied = dict.fromkeys((4, 90, 211), 50.0)
    with logits_edited(llama, put(0, {**tied, 17: 49.0})):
        found = scored(llama, top=4)
    assert {s.token for s in found.top[:3]} == set(tied)
    assert found.top[3].token == 17
    assert found.best.token in tied
    first = found.top[0].logprob
    assert [s.logprob - first for s in found.top] == pytest.approx([0, 0, 0, -1], abs=1e-5)
    assert len({s.logprob for s in found.top[:3]}) == 1


def test_the_best_of_tied_tokens_is_the_greedy_one_however_many_are_listed(
    llama: Checkpoint,
) -> None:
    with logits_edited(llama, put(0, dict.fromkeys((7, 90, 211, 300), 50.0))):
        best = [scored(llama, top=top).best.token for top in (0, 1, 5, 20)]
        greedy = generated(llama, words(30), 1)
    assert best == greedy * 4


@pytest.mark.parametrize("top", [0, 2, 20])
def test_every_allowed_token_is_listed_and_normalised_over_them(
    llama: Checkpoint, top: int
) -> None:
    allowed = [300, 4, 77, 12, 199, 0]
    found = scored(llama, allowed=allowed, top=top)
    check(found, logprobs_after(llama, words(30), allowed=allowed), len(allowed))
    assert math.fsum(math.exp(s.logprob) for s in found.top) == pytest.approx(1.0, abs=1e-5)
    assert found.best == found.top[0]


def test_a_single_allowed_token_is_certain(llama: Checkpoint) -> None:
    found = scored(llama, allowed=[123], top=0)
    assert (found.best.token, found.best.logprob) == (123, 0.0)
    assert found.top == [found.best]


def test_each_prompt_of_a_request_is_scored_over_the_allowed_tokens(llama: Checkpoint) -> None:
    allowed = [7, 8, 250]
    bench = Bench(llama)
    bench.score(1, list(PROMPTS), allowed=allowed, temperature=0.5)
    bench.run()
    check_all(bench, 1, PROMPTS, 3, allowed=allowed, temperature=0.5)


# ---------------------------------------------------------------- refused before anything runs


@pytest.mark.parametrize("bad", [[VOCABULARY], [3, VOCABULARY + 7, 5]])
def test_a_token_outside_the_vocabulary_is_refused_and_named(
    llama: Checkpoint, bad: list[int]
) -> None:
    bench = Bench(llama)
    found = refusal_of(lambda: bench.score(1, words(30), allowed=bad))
    assert (found.code, found.param) == ("INVALID_SCORING_REQUEST", "allowed_token_ids")
    assert str(max(bad)) in found.message
    assert bench.batch.is_idle


def test_the_last_token_of_the_vocabulary_may_be_allowed(llama: Checkpoint) -> None:
    allowed = [VOCABULARY - 1, 3]
    check(scored(llama, allowed=allowed), logprobs_after(llama, words(30), allowed=allowed), 2)


def test_a_token_that_only_the_model_knows_has_no_text(folder: Folder) -> None:
    model = open_checkpoint(folder("llama"))
    model.model.resize_token_embeddings(VOCABULARY + 64)
    model.vocabulary = VOCABULARY + 64
    found = scored(model, allowed=[VOCABULARY + 60, 70])
    assert {s.token: s.text for s in found.top}[VOCABULARY + 60] == ""


@pytest.fixture(scope="module")
def chatty(folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A checkpoint with a chat template, whose tokenizer puts `<bos>` before every text."""
    target = altered(folder("llama"), tmp_path_factory.mktemp("chatty") / "llama")
    return open_checkpoint(with_bos(target, TEMPLATE))


def test_a_prompt_without_tokens_is_refused_only_where_no_special_token_is_added(
    chatty: Checkpoint,
) -> None:
    bench = Bench(chatty)
    found = refusal_of(lambda: bench.score(1, "", special=False))
    assert found.code == "INVALID_SCORING_REQUEST"
    assert bench.batch.is_idle
    bench.score(2, "", special=True)
    bench.run()
    expected = dict(enumerate(next_logits(chatty, [0]).log_softmax(-1).tolist()))
    check(bench.scores[2, 0], expected, 5)


def test_special_tokens_are_added_exactly_when_asked(chatty: Checkpoint) -> None:
    bench = Bench(chatty)
    rows = [*bench.score(1, "the boats"), *bench.score(2, "the boats", special=False)]
    assert rows[0].prompt == [0, *rows[1].prompt]
    assert 0 not in rows[1].prompt


def test_a_conversation_is_scored_behind_its_generation_prompt(chatty: Checkpoint) -> None:
    bench = Bench(chatty)
    text = "[user]did you sleep well?[assistant]"
    (row,) = bench.score(1, [chat(chatty, "did you sleep well?")])
    assert row.prompt == chatty.encode(text, special=True)
    bench.run()
    check(bench.scores[1, 0], logprobs_after(chatty, text), 5)


LONG_CHAT = Tokens([5] * 400, is_chat=True)


def chat(model: Checkpoint, text: str) -> Tokens:
    """A conversation as the engine gets it."""
    return Tokens(model.encode(f"[user]{text}[assistant]", special=True), is_chat=True)


@pytest.mark.parametrize(
    ("prompts", "code", "param"),
    [
        (["fine", ""], "INVALID_SCORING_REQUEST", "prompt[1]"),
        (["", "fine", "fine"], "INVALID_SCORING_REQUEST", "prompt[0]"),
        (["fine", "fine", words(400)], "CONTEXT_LENGTH_EXCEEDED", "prompt[2]"),
        ([Tokens([5]), Tokens([5, VOCABULARY])], "INVALID_PARAMETER", "prompt[1]"),
        ([Tokens([5], is_chat=True), LONG_CHAT], "CONTEXT_LENGTH_EXCEEDED", "extra_messages[0]"),
        ([LONG_CHAT, Tokens([5], is_chat=True)], "CONTEXT_LENGTH_EXCEEDED", "messages"),
    ],
)
def test_a_prompt_that_cannot_be_scored_is_named_among_several(
    chatty: Checkpoint, prompts: list[str | Tokens], code: str, param: str
) -> None:
    bench = Bench(chatty)
    found = refusal_of(lambda: bench.score(1, prompts, special=False))
    assert (found.code, found.param) == (code, param)
    assert param in found.message
    assert bench.batch.is_idle


# ---------------------------------------------------------------- logits that are no numbers


@pytest.mark.shows("scoring-mode.17", "general-errors.10")
@pytest.mark.parametrize(
    ("values", "allowed", "top"),
    [
        ({17: math.nan}, None, 5),
        ({17: math.nan}, None, 0),
        ({17: math.inf}, None, 5),
        ({17: math.nan}, [17, 18], 0),
        ({17: math.inf}, [17, 18], 0),
        ({17: -math.inf}, [17, 18], 5),
        ({17: -math.inf}, [18, 17], 5),
        ({17: -math.inf}, [18, 17, 19], 1),
        ({17: -math.inf}, [17], 0),
        (dict.fromkeys(range(VOCABULARY), -math.inf), None, 0),
        (dict.fromkeys(range(3, VOCABULARY), -math.inf), None, 5),
        (dict.fromkeys(range(2, VOCABULARY), -math.inf), None, 3),
    ],
    ids=str,
)
def test_logits_that_are_no_numbers_are_refused_where_they_reach_the_answer(
    llama: Checkpoint, values: dict[int, float], allowed: list[int] | None, top: int
) -> None:
    bench = Bench(llama)
    with logits_edited(llama, put(0, values)):
        bench.score(1, words(30), allowed=allowed, top=top)
        bench.run()
    assert {i: r.code for i, r in bench.refused.items()} == {1: NOT_FINITE}
    assert not bench.scores


@pytest.mark.shows("scoring-mode.17")
@pytest.mark.parametrize(
    ("values", "allowed"),
    [
        ({17: -math.inf}, None),
        ({17: -math.inf}, [18, 19]),
        ({17: math.nan}, [18, 19]),
        ({17: math.inf}, [18, 19]),
        (dict.fromkeys(range(5, VOCABULARY), -math.inf), None),
    ],
    ids=str,
)
def test_logits_that_are_no_numbers_are_harmless_where_they_do_not(
    llama: Checkpoint, values: dict[int, float], allowed: list[int] | None
) -> None:
    logits = next_logits(llama, llama.encode(words(30), special=True))
    for token, value in values.items():
        logits[token] = value
    tokens = allowed or [i for i in range(VOCABULARY) if logits[i] > -math.inf]
    expected = dict(zip(tokens, logits[tokens].log_softmax(-1).tolist(), strict=True))
    with logits_edited(llama, put(0, values)):
        found = scored(llama, allowed=allowed)
    check(found, expected, len(allowed or range(5)))


@pytest.fixture
def failed(llama: Checkpoint) -> Bench:
    """A bench where the second shortest of four prompts in one pass has NaN logits, beside other requests."""
    bench = Bench(llama)
    bench.ask(1, words(20), max_tokens=24)
    bench.step(3)
    bench.score(2, [words(30), words(40), words(10, 9), words(20, 5)])
    bench.score(3, list(PROMPTS))
    with logits_edited(llama, put(1, {17: math.nan})):
        outcomes = bench.step()
    assert any(isinstance(o, Scored) and o.id == 3 for o in outcomes), "not in the same pass"
    return bench


def test_one_prompt_that_fails_ends_its_request_and_nobody_elses(failed: Bench) -> None:
    assert {i: r.code for i, r in failed.refused.items()} == {2: NOT_FINITE}
    assert not failed.live_rows(2)
    failed.run()
    failed.refused.clear()
    check_all(failed, 3, PROMPTS)
    assert failed.answers[1, 0].tokens == generated(failed.model, words(20), 24)


def test_one_prompt_that_fails_ends_those_of_its_request_that_wait(llama: Checkpoint) -> None:
    bench = Bench(llama, kv_tokens=64)
    bench.score(1, [words(40, i) for i in range(6)])
    with logits_edited(llama, put(0, {17: math.nan})):
        bench.step()
    assert bench.refused[1].code == NOT_FINITE
    assert not bench.live_rows(1)
    assert bench.batch.is_idle
    assert bench.held_bytes == 0


def test_the_prompt_whose_logits_are_no_numbers_is_named_among_several(failed: Bench) -> None:
    assert "prompt[3]" in (failed.refused[2].param or failed.refused[2].message)


def test_the_conversation_whose_logits_are_no_numbers_is_named_among_several(
    chatty: Checkpoint,
) -> None:
    bench = Bench(chatty)
    bench.score(1, [chat(chatty, text) for text in ("a", "a b", "a b c d e f")])
    with logits_edited(chatty, put(2, {17: math.nan})):
        bench.run()
    assert bench.refused[1].code == NOT_FINITE
    assert "extra_messages[1]" in (bench.refused[1].param or bench.refused[1].message)


@pytest.mark.shows("scoring-mode.16")
def test_memory_that_runs_out_is_refused_as_for_a_text(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Tensor:
        raise torch.OutOfMemoryError("no memory")

    bench = Bench(llama)
    with monkeypatch.context() as patched, capture_logs():
        patched.setattr(Checkpoint, "_forward", fail)
        bench.score(1, list(PROMPTS))
        bench.run()
        bench.ask(2, PROMPTS[0], max_tokens=2)
        bench.run()
    assert bench.refused[1].code == bench.refused[2].code == "INSUFFICIENT_MEMORY"
    assert set(bench.refused[1].details) == set(bench.refused[2].details)
    assert {"device", "prompt_tokens", "batch_rows"} <= set(bench.refused[1].details)
    assert not bench.scores


# ---------------------------------------------------------------- never steered


def composition(model: Checkpoint, live: Live) -> Bench:
    """Texts and scores in one batch, with an SAE attached and these live values."""
    bench = Bench(model)
    with bench.attached(KEY, SAE):
        bench.steering.set_live(live)
        bench.ask(1, words(20), max_tokens=24)
        bench.step(3)
        bench.ask(2, words(15), max_tokens=8)
        bench.score(3, list(PROMPTS))
        bench.run()
    return bench


@pytest.mark.shows("scoring-mode.19")
@pytest.mark.parametrize("variant", ["llama", "gpt2", "gemma3", "falcon"])
@pytest.mark.parametrize("part", [16, 1024])
def test_scores_beside_steered_texts_are_bitwise_those_without_steering(
    loaded: Loaded, variant: str, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "PREFILL_TOKENS", part)
    model = loaded(variant)
    steered, plain = composition(model, LIVE), composition(model, Live())
    assert steered.scores == plain.scores
    assert steered.answers[1, 0].tokens != plain.answers[1, 0].tokens
    check_all(steered, 3, PROMPTS)


# ---------------------------------------------------------------- through a real engine process


async def test_a_stream_of_scores_tells_lengths_in_the_order_of_the_prompts(
    engine: CheckpointEngine, folder: Folder, llama: Checkpoint
) -> None:
    await engine.load(lambda _: None, path=str(folder("llama")), **FIELDS)
    stream = engine.run(asking.score(0, [m.Text(prompt) for prompt in PROMPTS], top=5))
    started, *rest = [event async for event in stream]
    assert isinstance(started, m.Started)
    assert started.prompt_tokens == [len(llama.encode(p, special=True)) for p in PROMPTS]
    found = {event.choice: event for event in rest if isinstance(event, Scored)}
    assert len(found) == len(rest) == len(PROMPTS)
    for choice, prompt in enumerate(PROMPTS):
        check(found[choice], logprobs_after(llama, prompt), 5)
