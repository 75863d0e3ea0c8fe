"""What one request may ask for: long lists are refused before they are validated, with their field and their limit."""

from __future__ import annotations

import time
from typing import Any

import pytest

from steerserve import demo
from steerserve.openai import counts
from steerserve.rules.bounds import INFERENCE_BODY_VALUES, NAME_CHARACTERS, TURN_SECONDS
from tests.service import Running

CHAT, TEXT, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
RESPONSES = "/v1/responses"
HELLO = {"role": "user", "content": "hello"}
WRONG: dict[str, Any] = {"role": "nobody", "content": 5}
"""A message that no validation accepts, so that its refusal shows which check came first."""
SCORED = {"max_tokens": 1, "logprobs": 1}
PARTS = [{"type": "text", "text": ""}] * 5001

REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    (CHAT, {"messages": [WRONG] * 2001}, "messages", "at most 2000 messages"),
    (
        CHAT,
        {"messages": [HELLO] * 1001, "extra_messages": [[WRONG] * 500] * 2},
        "extra_messages[1]",
        "at most 2000 messages",
    ),
    (CHAT, {"messages": [HELLO], "extra_messages": [5] * 65}, "extra_messages", "at most 64"),
    (CHAT, {"messages": [HELLO | {"content": PARTS}] * 2}, "messages[1].content", "10000 parts"),
    (
        CHAT,
        {"messages": [HELLO | {str(i): 1 for i in range(1001)}]},
        "messages[0]",
        "at most 1000 fields",
    ),
    (
        CHAT,
        {"messages": [HELLO], "chat_template_kwargs": {f"v{i}": 1 for i in range(1001)}},
        "chat_template_kwargs",
        "at most 1000 variables",
    ),
    (CHAT, {"messages": [HELLO], "stop": "a" * 1001}, "stop", "at most 1000 characters"),
    (TEXT, {"prompt": [[5]] * 129}, "prompt", "at most 128"),
    (TEXT, {"prompt": "a", "stop": ["b", "a" * 1001]}, "stop", "at most 1000 characters"),
    (
        TEXT,
        {"prompt": "a", "allowed_token_ids": ["x"] * 65_537} | SCORED,
        "allowed_token_ids",
        "at most 65536 token ids",
    ),
    (
        TEXT,
        {"prompt": ["a"] * 128, "allowed_token_ids": list(range(513))} | SCORED,
        "allowed_token_ids",
        "513 tokens for each of 128 prompts",
    ),
    (EMBED, {"input": [5] * 129}, "input", "at most 128"),
    (
        CHAT,
        {"messages": [HELLO | {f"f{i}": 1 for i in range(900)}] * 12},
        "messages",
        "at most 10000 fields that are not used",
    ),
    (RESPONSES, {"input": "a", "include": ["x"] * 1001}, "include", "at most 1000 names"),
    (EMBED, {"input": "a"} | {f"f{i}": 1 for i in range(1000)}, "the body", "at most 1000 fields"),
]


@pytest.mark.parametrize(("path", "fields", "param", "words"), REFUSED)
def test_a_count_over_its_limit_is_refused_before_it_is_validated(
    shared: Running, path: str, fields: dict[str, Any], param: str, words: str
) -> None:
    status, error = shared.v1_error(path, {"model": demo.MODEL_NAME} | fields)
    assert (status, error["code"], error["param"]) == (400, "invalid_parameter", param)
    assert words in error["message"]


LONG = "m" + "@a" * NAME_CHARACTERS
OF_LONG = {"index": 1, "value": 1, "sae_id": LONG}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"model": LONG, "messages": [HELLO]}, "model"),
        (TEXT, {"model": LONG, "prompt": "a"}, "model"),
        (EMBED, {"model": LONG, "input": "a"}, "model"),
        (RESPONSES, {"model": LONG, "input": "a"}, "model"),
        (CHAT, {"profile": LONG, "messages": [HELLO]}, "profile"),
        (TEXT, {"prompt": "a", "sae_steering": {"features": [OF_LONG]}}, "sae_id"),
    ],
)
def test_a_long_name_is_refused_before_it_is_looked_for(
    shared: Running, path: str, fields: dict[str, Any], param: str
) -> None:
    status, error = shared.v1_error(path, {"model": demo.MODEL_NAME} | fields)
    assert (status, error["code"]) == (400, "invalid_parameter")
    assert error["param"].endswith(param)
    assert f"at most {NAME_CHARACTERS} characters" in error["message"]
    assert len(error["message"]) < NAME_CHARACTERS


def test_a_name_of_very_many_profiles_is_unknown_at_once(shared: Running) -> None:
    """Each `@` could be the end of the model's name: only beginnings that are names of models are looked for."""
    name = "m" + "@" * (NAME_CHARACTERS - 1)
    since = time.process_time()
    for _ in range(20):
        assert shared.v1_error(TEXT, {"model": name, "prompt": "a"})[1]["code"] == "model_not_found"
    assert time.process_time() - since < 1


LOOP_MS = 4 * 1000 * TURN_SECONDS
"""Work of a processor during one turn of the event loop. Other threads of the tests count too, so it is not the bound
itself."""


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (RESPONSES, {"input": "a", "include": ["x"] * 190_000}),
        (CHAT, {"messages": [HELLO | {f"f{i}": 1 for i in range(900)}] * 100}),
        (TEXT, {"prompt": "a", "max_tokens": 1} | {f"sae_staaring{i}": 1 for i in range(900)}),
        (TEXT + "?" + "&".join(map(str, range(10_000))), {"prompt": "a", "max_tokens": 1}),
        ("/api/corpora", {"name": "c", "source": "inline", "texts": [5] * 49_000}),
    ],
    ids=["include", "fields of messages", "near names", "query", "texts"],
)
def test_a_body_at_the_bounds_leaves_the_event_loop_free(
    shared: Running, path: str, body: dict[str, Any]
) -> None:
    watch = shared.service.owners.loop_watch
    watch._longest.clear()
    shared.http.post(path, json={"model": demo.MODEL_NAME} | body)
    shared.data("GET", "/api/health/detailed")
    assert [turn for turn in watch.longest() if turn.cpu_ms > LOOP_MS] == []


def test_very_many_features_of_activations_are_refused(shared: Running) -> None:
    asked = {"features": ["x"] * 65_537}
    body = {"model": demo.MODEL_NAME, "prompt": "a", "return_sae_activations": asked}
    status, error = shared.v1_error(TEXT, body)
    assert (status, error["code"]) == (400, "sae_activations_refused")
    assert error["param"] == "return_sae_activations.features"


def test_a_body_of_very_many_values_is_not_read(shared: Running) -> None:
    for value in (b"[]", b"1", b'""', b'{"a":1}'):
        bomb = (
            b'{"model": "x", "metadata": [' + (value + b",") * INFERENCE_BODY_VALUES + value + b"]}"
        )
        status, error = shared.v1_error(CHAT, bomb)
        assert (status, error["code"]) == (413, "payload_too_large")


def test_a_text_of_very_many_commas_and_brackets_is_one_value(shared: Running) -> None:
    text = "[1,\\" * INFERENCE_BODY_VALUES
    status, error = shared.v1_error(TEXT, {"model": demo.MODEL_NAME, "prompt": text})
    assert (status, error["code"]) == (400, "context_length_exceeded")


def test_an_unused_field_may_be_of_any_length(shared: Running) -> None:
    answer = shared.post(
        TEXT,
        {"model": demo.MODEL_NAME, "prompt": "a", "max_tokens": 1, "input": [1] * 500},
    )
    assert answer.headers["x-service-ignored-fields"] == "input"


def test_every_limit_at_once_is_served(shared: Running) -> None:
    stops = [f"{i} " + "z" * (counts.STOP_CHARACTERS - 5) for i in range(16)]
    extra = [[HELLO] * 30] * 64
    body = {"model": demo.MODEL_NAME, "messages": [HELLO] * 30, "extra_messages": extra}
    answer = shared.post(CHAT, body | {"stop": stops, "max_tokens": 2})
    assert len(answer.json()["choices"]) == 65
    scored = {"prompt": ["a"] * 128, "allowed_token_ids": list(range(512))} | SCORED
    answer = shared.post(TEXT, {"model": demo.MODEL_NAME} | scored)
    choices = answer.json()["choices"]
    assert len(choices) == 128
    assert shared.post(EMBED, {"model": demo.MODEL_NAME, "input": ["a"] * 128}).json()["data"]
