"""Log-probabilities of the tokens that rows write, under the steered and under the plain model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from steerserve.errors import Refusal
from steerserve.messages import Overlay, Suppressed
from steerserve.parts.logprobs.form import Logprobs, WrittenToken
from steerserve.rules.steering.edits import Edit, Feature, Target
from steerserve.worker.model.checkpoint import Checkpoint
from tests import asking
from tests.worker.running import Answer, Bench, hooked, next_logits, random_sae, site_of, words

Loaded = Callable[[str], Checkpoint]
KEY = "sae@0"
SAE = random_sae(32)
PLAN = Overlay(None, {KEY: {3: 4.0}}, (Edit(Feature(KEY, 7), Target(factor=0.0)),))
BOTH = Logprobs(3, True, True, 10_000)


def written(answer: Answer) -> list[WrittenToken]:
    *before, told = (asking.told(piece, "logprobs") for piece in answer.pieces)
    assert told is not None
    assert all(one is None for one in before)
    return told  # type: ignore[no-any-return]


@pytest.mark.parametrize("variant", ["llama", "gpt2", "bloom"])
def test_each_token_has_its_log_probability_under_both_models(loaded: Loaded, variant: str) -> None:
    model = loaded(variant)
    bench = Bench(model)
    with bench.attached(KEY, SAE):
        answer = bench.ask(1, words(20), plan=PLAN, logprobs=BOTH, max_tokens=6)
        beside = bench.ask(2, words(30), plan=PLAN, max_tokens=9)
        bench.run()
    assert [one.token for one in written(answer)] == answer.tokens
    assert not beside.pieces[-1].parts
    site = site_of(model)

    def steered(value: torch.Tensor) -> torch.Tensor:
        off = SAE.encode_columns(value, [7]) * SAE.W_dec[7]
        return value + 4.0 * SAE.W_dec[3] - off

    ids = list(answer.row.prompt)
    for one in written(answer):
        plain = next_logits(model, ids).log_softmax(-1)
        with hooked(site, steered):
            edited = next_logits(model, ids).log_softmax(-1)
        for side, expected in ((one.steered, edited), (one.plain, plain)):
            assert side is not None
            assert side.logprob == pytest.approx(float(expected[one.token]), abs=2e-3)
            assert [t.token for t in side.top] == expected.topk(3).indices.tolist()
        ids.append(one.token)


def test_rows_that_ask_for_one_side_get_one_side(loaded: Loaded) -> None:
    bench = Bench(loaded("llama"))
    answers = [
        bench.ask(number, words(12), logprobs=wanted, max_tokens=4, n=2)
        for number, wanted in enumerate(
            (Logprobs(0, True, False, 99), Logprobs(0, False, True, 99))
        )
    ]
    bench.run()
    for answer, name in zip(answers, ("steered", "plain"), strict=True):
        told = written(answer)
        assert len(told) == 4
        assert all((getattr(one, name) is not None) for one in told)
        assert all((one.steered is None) != (one.plain is None) for one in told)
    assert {bench.answers[0, 1].finish, bench.answers[1, 1].finish} == {"length"}
    # unsteered rows read the same numbers on both sides
    first, second = written(answers[0])[0].steered, written(answers[1])[0].plain
    assert first is not None
    assert second is not None
    assert first.logprob == pytest.approx(second.logprob, abs=1e-4)


def test_a_cancelled_request_is_not_read_again(loaded: Loaded) -> None:
    bench = Bench(loaded("llama"))
    answer = bench.ask(1, words(200), plan=Suppressed(), logprobs=BOTH, max_tokens=2)
    while len(answer.tokens) < 2:
        bench.step()
    bench.batch.cancel(1)
    assert bench.batch.is_idle
    assert answer.finish is None


def test_more_log_probabilities_than_an_answer_may_have_are_refused(loaded: Loaded) -> None:
    bench = Bench(loaded("llama"))
    with pytest.raises(Refusal, match="at most 99") as refused:
        bench.ask(1, words(9), logprobs=Logprobs(3, True, True, 99), max_tokens=16)
    assert refused.value.code == "INVALID_PARAMETER"
