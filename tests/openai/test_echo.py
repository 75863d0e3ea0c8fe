"""`echo` with `logprobs` on text completions: the log-probabilities of the prompt's own tokens, as harnesses read
them."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from tests.openai.conftest import Truth
from tests.service import Running

TEXT = "/v1/completions"
PROMPTS = ["the boats were coming", "fish and a café \U0001f600 they"]


def logprobs(truth: Truth, ids: list[int], temperature: float = 1.0) -> Tensor:
    """Log-probabilities [T, vocabulary] after each token."""
    return (truth.logits(ids) / temperature).log_softmax(-1)


def body(**fields: Any) -> dict[str, Any]:
    asked = {"model": "tiny", "prompt": PROMPTS[0], "max_tokens": 1, "logprobs": 3, "echo": True}
    return asked | fields


def echoed(live: Running, **fields: Any) -> dict[str, Any]:
    answer = live.post(TEXT, body(**fields))
    assert "x-service-ignored-fields" not in answer.headers
    assert answer.headers["x-service-steering"] == "none"
    (choice,) = answer.json()["choices"]
    return dict(choice)


def check(
    choice: dict[str, Any], truth: Truth, prompt: str, *, top: int, off: float, **fields: Any
) -> None:
    """The choice has the tokens of the prompt and one more, with the log-probabilities of a plain pass."""
    special = fields.pop("special", True)
    ids = truth.ids(prompt, special=special)
    expected = logprobs(truth, ids, **fields)
    told = choice["logprobs"]
    assert set(told) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert {len(part) for part in told.values()} == {len(ids) + 1}
    assert told["tokens"][:-1] == [truth.text(token) for token in ids]
    assert told["token_logprobs"][0] is None
    assert told["top_logprobs"][0] is None
    chosen = [float(expected[at, token]) for at, token in enumerate(ids[1:])]
    assert told["token_logprobs"][1:-1] == pytest.approx(chosen, abs=off)
    for at, listed in enumerate(told["top_logprobs"][1:]):
        assert top - 1 <= len(listed) <= top + 1  # tokens of one text share an entry
        assert max(listed.values()) == pytest.approx(float(expected[at].max()), abs=off)
    assert choice["text"] == prompt + told["tokens"][-1]
    assert told["text_offset"][-1] == len(prompt)


@pytest.mark.parametrize(("prompt", "temperature"), [(PROMPTS[0], None), (PROMPTS[-1], 0.5)])
def test_the_scores_of_a_prompt_are_those_of_a_plain_pass(
    tiny: Running, truth: Truth, prompt: str, temperature: float | None
) -> None:
    choice = echoed(tiny, prompt=prompt, temperature=temperature)
    check(choice, truth, prompt, top=3, off=1e-3, temperature=temperature or 1.0)


def test_the_token_that_follows_is_that_of_a_scoring_request_without_echo(tiny: Running) -> None:
    choice = echoed(tiny)
    (plain,) = tiny.post(TEXT, body(echo=False)).json()["choices"]
    assert choice["text"] == PROMPTS[0] + plain["text"]
    for name in ("tokens", "text_offset"):
        assert choice["logprobs"][name][-1:] == plain["logprobs"][name]
    assert choice["logprobs"]["token_logprobs"][-1] == pytest.approx(
        plain["logprobs"]["token_logprobs"][0], abs=1e-3
    )


def test_without_a_token_to_follow_the_answer_is_the_prompt(tiny: Running) -> None:
    whole = echoed(tiny)
    answer = tiny.post(TEXT, body(max_tokens=0)).json()
    (choice,) = answer["choices"]
    assert choice["text"] == PROMPTS[0]
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    assert answer["usage"]["prompt_tokens"] == len(choice["logprobs"]["tokens"])
    for name, values in choice["logprobs"].items():
        assert values == whole["logprobs"][name][:-1]
    same = tiny.post(TEXT, body(max_tokens=None, max_completion_tokens=0)).json()
    assert same["choices"] == answer["choices"]


def test_prompts_as_token_ids_have_the_log_likelihoods_of_the_model(
    tiny: Running, truth: Truth
) -> None:
    """As lm-eval asks by default, and as it reads the answers."""
    contexts = [truth.ids(prompt, special=False)[:3] for prompt in PROMPTS]
    whole = [truth.ids(prompt, special=False) for prompt in PROMPTS]
    asked = {"model": "tiny", "prompt": whole, "temperature": 0, "max_tokens": 1, "logprobs": 1}
    answer = tiny.post(TEXT, asked | {"seed": 1234, "echo": True})
    assert answer.json()["usage"]["prompt_tokens"] == sum(map(len, whole))
    for choice, ids, context in zip(answer.json()["choices"], whole, contexts, strict=True):
        told, expected = choice["logprobs"], logprobs(truth, ids)
        first = len(context)
        likelihood = sum(float(expected[at - 1, ids[at]]) for at in range(first, len(ids)))
        assert sum(told["token_logprobs"][first:-1]) == pytest.approx(likelihood, abs=1e-3)
        greedy = [int(expected[at - 1].argmax()) == ids[at] for at in range(first, len(ids))]
        pairs = zip(told["token_logprobs"][first:-1], told["top_logprobs"][first:-1], strict=True)
        assert [own == max(top.values()) for own, top in pairs] == greedy


@pytest.mark.parametrize("is_nested", [True, False])
@pytest.mark.parametrize("max_tokens", [0, 1])
def test_the_answer_to_token_ids_has_the_text_that_they_stand_for(
    tiny: Running, truth: Truth, max_tokens: int, *, is_nested: bool
) -> None:
    ids = truth.ids(PROMPTS[1])
    asked = body(prompt=[ids] if is_nested else ids, max_tokens=max_tokens)
    (choice,) = tiny.post(TEXT, asked).json()["choices"]
    (same,) = tiny.post(TEXT, body(prompt=PROMPTS[1], max_tokens=max_tokens)).json()["choices"]
    written = truth.tokenizer.decode(ids)
    new = "".join(choice["logprobs"]["tokens"][len(ids) :])
    assert choice["text"] == written + new
    assert choice["logprobs"]["text_offset"][len(ids) :] == [len(written)] * max_tokens
    assert choice["logprobs"] | {"text_offset": 0} == same["logprobs"] | {"text_offset": 0}
    chunk, _ = tiny.stream(TEXT, asked)
    assert chunk["choices"] == [choice]
    (plain,) = tiny.post(TEXT, body(prompt=ids, echo=False)).json()["choices"]
    assert plain["logprobs"]["text_offset"] == [len(written)]


def test_a_token_id_outside_the_vocabulary_is_refused_by_its_place(
    tiny: Running, truth: Truth
) -> None:
    size = truth.model.get_input_embeddings().weight.shape[0]
    status, error = tiny.v1_error(TEXT, body(prompt=[[5, 6], [5, size - 1, size]]))
    assert (status, error["code"]) == (400, "invalid_scoring_request")
    assert error["param"] == "prompt[1][2]"
    assert error["details"] == {"token_id": size, "vocabulary": size}


def test_offsets_are_the_places_of_the_tokens_in_the_text(tiny: Running) -> None:
    choice = echoed(tiny)
    told = choice["logprobs"]
    begun = zip(told["tokens"], told["text_offset"], strict=True)
    places = [(token, at) for token, at in begun if token != "<bos>"]
    assert all(choice["text"].startswith(token, at) for token, at in places)
    assert [at for _, at in places] == sorted({at for _, at in places})


def test_keys_by_token_id_and_prompts_as_written(tiny: Running, truth: Truth) -> None:
    asked = {"return_tokens_as_token_ids": True, "add_special_tokens": False}
    told = echoed(tiny, **asked)["logprobs"]
    ids = truth.ids(PROMPTS[0], special=False)
    assert told["tokens"][:-1] == [f"token_id:{token}" for token in ids]
    for listed, token in zip(told["top_logprobs"][1:-1], ids[1:], strict=True):
        assert f"token_id:{token}" in listed
        assert all(key.startswith("token_id:") for key in listed)


def test_without_log_probabilities_it_is_reported_or_refused(tiny: Running) -> None:
    asked = body(logprobs=None)
    answer = tiny.post(TEXT, asked)
    assert answer.headers["x-service-ignored-fields"] == "echo"
    assert not answer.json()["choices"][0]["text"].startswith(PROMPTS[0])
    status, error = tiny.v1_error(TEXT, asked, **{"x-service-strict": "true"})
    assert (status, error["code"], error["param"]) == (400, "unused_fields_refused", "echo")
    assert "x-service-ignored-fields" not in tiny.post(TEXT, asked | {"echo": False}).headers
