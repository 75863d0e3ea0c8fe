"""Scoring over HTTP: what is answered is the model's own distribution of the next token, unsteered, or a refusal."""

from __future__ import annotations

from typing import Any

import pytest

from steerserve import demo
from tests.openai.conftest import Truth, Zoo
from tests.service import Running, add_sae
from tests.worker.models import CONTEXT, VOCABULARY

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
SCORING = (400, "invalid_scoring_request")
PROMPTS = ["the boats were coming", "fish", "over the stone steps and home \U0001f600 they"]
STORY = [{"role": "user", "content": "Tell me a story."}]
CALM = [{"role": "system", "content": "Be calm."}, {"role": "user", "content": "the boats"}]

Logprobs = dict[int, float]


def after(
    truth: Truth, ids: list[int], *, temperature: float = 1.0, among: list[int] | None = None
) -> Logprobs:
    """Log-probabilities of the token after others, by token id."""
    logits = truth.logits(ids)[-1]
    tokens = list(range(len(logits))) if among is None else among
    found = (logits[tokens] / temperature).log_softmax(-1).tolist()
    return dict(zip(tokens, found, strict=True))


def rendered(truth: Truth, messages: list[dict[str, str]]) -> list[int]:
    """The tokens of a conversation, which has the beginning of its sequence from its template."""
    text = truth.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text.startswith("<bos>")
    return truth.ids(text, special=False)


def text(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": PROMPTS[0], "max_tokens": 1, "logprobs": 5} | fields


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": CALM, "max_tokens": 1, "logprobs": True} | fields


def without(body: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in names}


def score(live: Running, **fields: Any) -> dict[str, Any]:
    """The one choice of a text scoring request, keyed by token id."""
    answer = live.post(TEXT, text(return_tokens_as_token_ids=True, **fields)).json()
    (choice,) = answer["choices"]
    return choice


def by_token(listed: dict[str, float]) -> Logprobs:
    assert all(key.startswith("token_id:") for key in listed)
    return {int(key.removeprefix("token_id:")): value for key, value in listed.items()}


def most(truth: Logprobs, count: int) -> Logprobs:
    """The most probable tokens, best first."""
    ordered = sorted(truth.items(), key=lambda item: -item[1])
    return dict(ordered[:count])


# ---------------------------------------------------------------- the model's own distribution


@pytest.mark.shows("scoring-mode.4", "scoring-mode.9", "scoring-mode.10", "limits.10")
@pytest.mark.parametrize(
    ("prompt", "temperature"), [(PROMPTS[0], None), (PROMPTS[1], 0.001), (PROMPTS[2], 2.0)]
)
def test_a_texts_score_is_a_plain_forward_pass_divided_by_the_temperature(
    tiny: Running, truth: Truth, prompt: str, temperature: float | None
) -> None:
    choice = score(tiny, prompt=prompt, logprobs=20, temperature=temperature)
    expected = after(truth, truth.ids(prompt), temperature=temperature or 1.0)
    found = by_token(choice["logprobs"]["top_logprobs"][0])
    scale = 1 / (temperature or 1.0)
    assert list(found) == list(most(expected, 20))
    for token, value in found.items():
        assert value == pytest.approx(expected[token], abs=1e-4 * max(1.0, scale))
    best = next(iter(most(expected, 1)))
    assert choice["text"] == truth.text(best)
    assert choice["logprobs"]["tokens"] == [f"token_id:{best}"]
    assert choice["logprobs"]["token_logprobs"] == [found[best]]


@pytest.mark.shows("chat-scoring.1", "chat-scoring.3")
def test_a_chats_score_is_its_rendered_template_with_exactly_one_beginning(
    tiny: Running, truth: Truth
) -> None:
    answer = tiny.post(CHAT, chat(top_logprobs=20)).json()
    (choice,) = answer["choices"]
    ids = rendered(truth, CALM)
    expected = after(truth, ids)
    (entry,) = choice["logprobs"]["content"]
    best = next(iter(most(expected, 1)))
    assert entry["token"] == truth.text(best)
    assert entry["logprob"] == pytest.approx(expected[best], abs=1e-4)
    listed = [other["logprob"] for other in entry["top_logprobs"]]
    assert listed == pytest.approx(list(most(expected, 20).values()), abs=1e-4)
    assert answer["usage"]["prompt_tokens"] == len(ids)


# ---------------------------------------------------------------- the shape of a text's score


@pytest.mark.shows("scoring-mode.1", "scoring-mode.12")
def test_a_choice_of_a_text_has_the_four_lists_of_one_token(tiny: Running) -> None:
    answer = tiny.post(TEXT, text(logprobs=3)).json()
    (choice,) = answer["choices"]
    assert set(choice) == {"index", "text", "finish_reason", "logprobs"}
    assert choice["finish_reason"] == "length"
    logprobs = choice["logprobs"]
    assert set(logprobs) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert logprobs["tokens"] == [choice["text"]]
    assert [len(part) for part in logprobs.values()] == [1, 1, 1, 1]
    assert answer["object"] == "text_completion"
    assert answer["usage"]["completion_tokens"] == 1
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + 1
    assert answer["system_fingerprint"].startswith("service:tiny@")


@pytest.mark.shows("scoring-mode.12")
def test_the_text_offset_counts_the_characters_of_the_prompt(tiny: Running) -> None:
    for special in (True, False):
        choice = score(tiny, prompt=PROMPTS[2], add_special_tokens=special)
        assert choice["logprobs"]["text_offset"] == [len(PROMPTS[2])]


@pytest.mark.shows("scoring-mode.5", "scoring-mode.14")
def test_tokens_of_one_text_share_the_entry_of_the_most_probable_one(
    tiny: Running, truth: Truth
) -> None:
    broken = [t for t in range(VOCABULARY) if truth.text(t) == "\ufffd"][:3]
    whole = truth.ids("a", special=False)
    allowed = [*whole, *broken]
    assert len(broken) == 3
    expected = after(truth, truth.ids(PROMPTS[0]), among=allowed)
    answer = tiny.post(TEXT, text(allowed_token_ids=allowed)).json()
    (listed,) = answer["choices"][0]["logprobs"]["top_logprobs"]
    best = max(expected[token] for token in broken)
    assert listed == {
        "\ufffd": pytest.approx(best, abs=1e-4),
        "a": pytest.approx(expected[whole[0]], abs=1e-4),
    }
    keyed = score(tiny, allowed_token_ids=allowed)
    assert by_token(keyed["logprobs"]["top_logprobs"][0]) == pytest.approx(expected, abs=1e-4)


# ---------------------------------------------------------------- allowed tokens

ALLOWED = [300, 7, 41, 198]


@pytest.mark.shows("scoring-mode.3", "scoring-mode.13", "chat-scoring.1")
def test_allowed_tokens_without_logprobs_constrain_and_give_null(
    tiny: Running, truth: Truth
) -> None:
    expected = after(truth, truth.ids(PROMPTS[0]), among=ALLOWED)
    body = without(text(allowed_token_ids=ALLOWED), "logprobs")
    (choice,) = tiny.post(TEXT, body).json()["choices"]
    assert choice["text"] == truth.text(next(iter(most(expected, 1))))
    assert choice["logprobs"] is None
    conversation = without(chat(allowed_token_ids=ALLOWED), "logprobs")
    (choice,) = tiny.post(CHAT, conversation).json()["choices"]
    expected = after(truth, rendered(truth, CALM), among=ALLOWED)
    assert choice["message"]["content"] == truth.text(next(iter(most(expected, 1))))
    assert choice["logprobs"] is None


@pytest.mark.shows("scoring-mode.2")
def test_a_choice_that_was_not_scored_has_no_logprobs(tiny: Running) -> None:
    plain = tiny.post(TEXT, without(text(), "logprobs")).json()
    assert "logprobs" not in plain["choices"][0]
    assert "logprobs" not in tiny.post(CHAT, chat(logprobs=False)).json()["choices"][0]


# ---------------------------------------------------------------- the shape of a chat's score


@pytest.mark.shows("chat-scoring.6")
def test_a_choice_of_a_chat_has_one_entry_with_the_bytes_of_its_text(tiny: Running) -> None:
    answer = tiny.post(CHAT, chat(top_logprobs=4)).json()
    (choice,) = answer["choices"]
    assert set(choice) == {"index", "message", "finish_reason", "logprobs"}
    assert set(choice["logprobs"]) == {"content"}
    (entry,) = choice["logprobs"]["content"]
    assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
    assert choice["message"] == {"role": "assistant", "content": entry["token"]}
    assert len(entry["top_logprobs"]) == 4
    for found in [entry, *entry["top_logprobs"]]:
        assert found["bytes"] == list(found["token"].encode())
    assert all(set(other) == {"token", "logprob", "bytes"} for other in entry["top_logprobs"])
    assert entry["top_logprobs"][0]["logprob"] == entry["logprob"]


@pytest.mark.shows("chat-scoring.1", "chat-scoring.6", "limits.13")
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"top_logprobs": 20}, 20),
        ({"top_logprobs": 20, "allowed_token_ids": ALLOWED}, 4),
        ({"allowed_token_ids": ALLOWED}, 0),
    ],
)
def test_a_chat_lists_as_many_alternatives_as_asked_for_or_as_there_are(
    tiny: Running, fields: dict[str, Any], expected: int
) -> None:
    (choice,) = tiny.post(CHAT, chat(**fields)).json()["choices"]
    (entry,) = choice["logprobs"]["content"]
    assert len(entry["top_logprobs"]) == expected


@pytest.mark.shows("chat-parameters.13", "chat-scoring.6")
def test_a_chats_tokens_can_be_named_by_their_ids(tiny: Running, truth: Truth) -> None:
    fields = {"top_logprobs": 4, "allowed_token_ids": ALLOWED, "return_tokens_as_token_ids": True}
    (choice,) = tiny.post(CHAT, chat(**fields)).json()["choices"]
    (entry,) = choice["logprobs"]["content"]
    found = {other["token"]: bytes(other["bytes"]).decode() for other in entry["top_logprobs"]}
    assert found == {f"token_id:{token}": truth.text(token) for token in ALLOWED}
    assert choice["message"]["content"] == found[entry["token"]]


# ---------------------------------------------------------------- several at once


@pytest.mark.shows("chat-scoring.7")
def test_each_conversation_is_scored_by_itself_in_its_place(tiny: Running) -> None:
    others = [STORY, [{"role": "user", "content": "fish"}]]
    answer = tiny.post(CHAT, chat(extra_messages=others, top_logprobs=5)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    for messages, choice in zip([CALM, *others], answer["choices"], strict=True):
        alone = tiny.post(CHAT, chat(messages=messages, top_logprobs=5)).json()["choices"][0]
        (found,) = choice["logprobs"]["content"]
        (expected,) = alone["logprobs"]["content"]
        assert found["token"] == expected["token"]
        assert found["logprob"] == pytest.approx(expected["logprob"], abs=1e-4)
        assert [other["token"] for other in found["top_logprobs"]] == [
            other["token"] for other in expected["top_logprobs"]
        ]
    assert answer["usage"]["completion_tokens"] == 3


@pytest.mark.shows("chat-scoring.7")
def test_a_conversation_that_fails_fails_the_request_and_is_named(tiny: Running) -> None:
    long = [{"role": "user", "content": "fish " * CONTEXT}]
    status, error = tiny.v1_error(CHAT, chat(extra_messages=[STORY, long]))
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert error["param"] == "extra_messages[1]"
    assert "extra_messages[1]" in error["message"]
    status, error = tiny.v1_error(CHAT, chat(messages=long, extra_messages=[STORY]))
    assert (status, error["param"]) == (400, "messages")


# ---------------------------------------------------------------- what does not apply


@pytest.mark.shows("scoring-mode.11")
def test_sampling_fields_change_no_score_and_are_reported(tiny: Running) -> None:
    plain = score(tiny)
    idle = {"top_p": 0.1, "stop": ["the"], "frequency_penalty": 2.0, "presence_penalty": -1.0}
    answer = tiny.post(TEXT, text(return_tokens_as_token_ids=True, **idle))
    assert answer.json()["choices"][0] == plain
    ignored = answer.headers["x-service-ignored-fields"].split(", ")
    assert sorted(ignored) == sorted(idle)
    status, error = tiny.v1_error(TEXT, text(stop="the"), **{"X-Service-Strict": "1"})
    assert (status, error["code"]) == (400, "unused_fields_refused")
    assert error["param"] == "stop"


@pytest.mark.shows("seeds.7")
def test_a_seed_is_echoed_and_changes_nothing(tiny: Running) -> None:
    plain = tiny.post(TEXT, text())
    seeded = tiny.post(TEXT, text(seed=7))
    assert "x-service-seed" not in plain.headers
    assert seeded.headers["x-service-seed"] == "7;scope=request"
    assert seeded.json()["choices"] == plain.json()["choices"]
    several = tiny.post(CHAT, chat(seed=7, extra_messages=[STORY]))
    assert several.headers["x-service-seed"] == "7;scope=batch-shape"
    prompts = tiny.post(TEXT, text(seed=7, prompt=PROMPTS))
    assert prompts.headers["x-service-seed"] == "7;scope=request"


@pytest.mark.shows("scoring-mode.7", "limits.16")
def test_max_completion_tokens_of_one_is_as_good(tiny: Running) -> None:
    for path, body in ((TEXT, text()), (CHAT, chat())):
        named = without(body, "max_tokens") | {"max_completion_tokens": 1}
        assert tiny.post(path, named).json()["choices"] == tiny.post(path, body).json()["choices"]


# ---------------------------------------------------------------- never steered

LIVE = {"steering": {"90": 60.0, "3": -40.0}}


@pytest.mark.shows("scoring-mode.19", "overview.9")
def test_scores_under_live_steering_are_those_without_and_count_no_application(
    steered: Running,
) -> None:
    model = {"model": demo.MODEL_NAME}
    asked = [
        (TEXT, text(**model, prompt=["One day", "The sea"], logprobs=20)),
        (CHAT, chat(**model, messages=STORY, top_logprobs=20)),
    ]
    before = [steered.post(path, body) for path, body in asked]
    words = steered.complete("One day", max_tokens=12, temperature=0)["choices"]
    steered.data("POST", "/api/saes/steering/batch", LIVE)
    assert steered.complete("One day", max_tokens=12, temperature=0)["choices"] != words
    applied = steered.data("GET", "/api/saes/attachment")["steering_apply_count"]
    assert applied > 0
    after = [steered.post(path, body) for path, body in asked]
    assert [a.json()["choices"] for a in after] == [a.json()["choices"] for a in before]
    assert all(answer.headers["x-service-steering"] == "none" for answer in before + after)
    attachment = steered.data("GET", "/api/saes/attachment")
    assert attachment["steering_apply_count"] == applied
    assert attachment["steering_enabled"] is True
    generated = steered.post(TEXT, {**model, "prompt": "One day", "max_tokens": 1})
    assert "x-service-steering" not in generated.headers


@pytest.mark.shows("scoring-mode.19", "embeddings.2")
def test_every_attached_sae_is_left_out_of_scores_and_embeddings(steered: Running) -> None:
    second = demo.saes()[1]
    member = {"sae_id": add_sae(steered, second), "layer": second.layer}
    asked = [
        (TEXT, {"model": demo.MODEL_NAME, "prompt": "One day", "max_tokens": 1, "logprobs": 20}),
        ("/v1/embeddings", {"model": demo.MODEL_NAME, "input": "One day"}),
    ]
    before = [steered.post(path, body).json() for path, body in asked]
    words = steered.complete("One day", max_tokens=12, temperature=0)["choices"]
    steered.data("POST", "/api/saes/attach-set", {"saes": [member]})
    try:
        steered.data("POST", "/api/saes/steering", {"feature_idx": 90, "value": 60, **member})
        assert steered.complete("One day", max_tokens=12, temperature=0)["choices"] != words
        steered.data("POST", "/api/saes/steering", {"feature_idx": 90, "value": 60})
        after = [steered.post(path, body).json() for path, body in asked]
    finally:
        steered.data("POST", f"/api/saes/{member['sae_id']}/detach")
    for one, other in zip(before, after, strict=True):
        for part in ("choices", "data"):
            assert one.get(part) == other.get(part)


# ---------------------------------------------------------------- streamed


def test_a_streamed_score_of_a_text_is_the_whole_one_in_chunks(tiny: Running) -> None:
    body = text(prompt=PROMPTS)
    whole = tiny.post(TEXT, body).json()
    *chunks, done = tiny.stream(TEXT, body)
    assert done == "[DONE]"
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert sorted(choices, key=lambda choice: choice["index"]) == whole["choices"]
    assert [chunk["usage"] for chunk in chunks if "usage" in chunk] == [whole["usage"]]
    assert "usage" in chunks[-1]


# ---------------------------------------------------------------- refusals


def test_an_empty_prompt_is_scored_after_the_beginning_and_refused_without_one(
    tiny: Running, truth: Truth
) -> None:
    choice = score(tiny, prompt="")
    found = by_token(choice["logprobs"]["top_logprobs"][0])
    assert found == pytest.approx(most(after(truth, truth.ids("")), 5), abs=1e-4)
    assert choice["logprobs"]["text_offset"] == [0]
    status, error = tiny.v1_error(TEXT, text(prompt="", add_special_tokens=False))
    assert (status, error["code"]) == SCORING
    assert error["param"] == "prompt"


@pytest.mark.shows("scoring-mode.15", "general-errors.9")
def test_a_prompt_that_becomes_no_tokens_is_refused(zoo: Zoo) -> None:
    zoo.load("plain")
    status, error = zoo.live.v1_error(TEXT, text(model="plain", prompt="   "))
    assert (status, error["code"]) == SCORING
    status, error = zoo.live.v1_error(TEXT, text(model="plain", prompt=["fish", "   "]))
    assert (status, error["code"]) == SCORING
    assert error["param"] == "prompt[1]"
