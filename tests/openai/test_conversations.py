"""Several conversations in one chat request, and what a conversation is made of."""

from __future__ import annotations

from typing import Any

import pytest

from steerserve import demo
from tests.near import check_same_chat
from tests.openai.conftest import Zoo
from tests.resident import processes
from tests.service import Running

CHAT = "/v1/chat/completions"
STORY = [{"role": "user", "content": "Tell me a story."}]
SEA = [{"role": "user", "content": "Tell me a story about the sea."}]
KIND = [{"role": "system", "content": "Be kind."}, *STORY]


def chat(**fields: Any) -> dict[str, Any]:
    body = {"model": demo.MODEL_NAME, "messages": STORY, "max_tokens": 10, "temperature": 0}
    return body | fields


def texts(live: Running, **fields: Any) -> list[str]:
    choices = live.post(CHAT, chat(**fields)).json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(choices)))
    return [choice["message"]["content"] for choice in choices]


@pytest.mark.shows("chat-parameters.17")
def test_each_conversation_is_answered_in_its_place(shared: Running) -> None:
    answer = shared.post(CHAT, chat(extra_messages=[SEA, KIND])).json()
    alone = [shared.post(CHAT, chat(messages=one)).json() for one in (STORY, SEA, KIND)]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    for messages, choice, one in zip((STORY, SEA, KIND), answer["choices"], alone, strict=True):
        expected = one["choices"][0]
        assert choice["message"]["role"] == "assistant"
        assert choice["finish_reason"] == expected["finish_reason"] == "length"
        check_same_chat(
            shared, messages, choice["message"]["content"], expected["message"]["content"]
        )
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert answer["usage"][name] == sum(one["usage"][name] for one in alone)


def test_no_further_conversations_is_a_plain_chat(shared: Running) -> None:
    plain = texts(shared)
    assert texts(shared, extra_messages=[]) == plain
    assert texts(shared, extra_messages=None) == plain


@pytest.mark.shows("chat-parameters.22")
def test_conversations_stream_side_by_side(shared: Running) -> None:
    body = chat(extra_messages=[SEA, KIND])
    whole = shared.post(CHAT, body).json()
    *chunks, done = shared.stream(CHAT, body)
    assert done == "[DONE]"
    deltas = [choice for chunk in chunks for choice in chunk["choices"]]
    for choice in whole["choices"]:
        own = [delta for delta in deltas if delta["index"] == choice["index"]]
        assert own[0]["delta"]["role"] == "assistant"
        joined = "".join(delta["delta"].get("content", "") for delta in own)
        assert joined == choice["message"]["content"]
        assert [d["finish_reason"] for d in own if d["finish_reason"]] == [choice["finish_reason"]]
    assert [chunk["usage"] for chunk in chunks if "usage" in chunk] == [whole["usage"]]
    assert "usage" in chunks[-1]


@pytest.mark.shows("seeds.4")
def test_seeded_conversations_repeat_for_the_same_set(shared: Running) -> None:
    body = chat(extra_messages=[SEA], seed=6, temperature=1.2)
    first, second = (shared.post(CHAT, body) for _ in range(2))
    assert first.headers["x-service-seed"] == "6;scope=batch-shape"
    assert first.json()["choices"] == second.json()["choices"]
    assert shared.post(CHAT, body | {"extra_messages": []}).headers["x-service-seed"] == (
        "6;scope=request"
    )


def test_a_conversation_that_does_not_fit_is_named(shared: Running) -> None:
    long = [{"role": "user", "content": "word " * 2000}]
    for stream in (False, True):
        status, error = shared.v1_error(CHAT, chat(extra_messages=[SEA, long], stream=stream))
        assert (status, error["code"]) == (400, "context_length_exceeded")
        assert error["param"] == "extra_messages[1]"


@pytest.mark.shows("chat-parameters.2")
@pytest.mark.parametrize("role", ["user", "tool", "function", "system", "developer", "assistant"])
def test_every_role_of_the_protocol_is_read(shared: Running, role: str) -> None:
    # the text of an assistant is continued, so it has to stop in the middle
    content = "Once upon a" if role == "assistant" else "Tell me a story."
    (text,) = texts(shared, messages=[{"role": role, "content": content}])
    assert text


def test_a_developer_is_read_as_the_system(shared: Running) -> None:
    system, developer = (
        texts(shared, messages=[{"role": role, "content": "Be sad."}, *STORY])
        for role in ("system", "developer")
    )
    assert system == developer


BEYOND = [257, 10**30]
"""More tokens than the context has, and a number that does not fit 64 bits."""


@pytest.mark.parametrize("number", BEYOND)
def test_a_number_of_tokens_beyond_the_context_is_refused_and_harms_nobody(
    zoo: Zoo, number: int
) -> None:
    zoo.load("tiny")
    before = processes(zoo.live)
    for field in ("max_tokens", "max_completion_tokens"):
        body = {"model": "tiny", "messages": STORY, field: number}
        status, error = zoo.live.v1_error(CHAT, body)
        assert status == 400, error
        assert error["code"] in ("context_length_exceeded", "invalid_parameter")
    assert zoo.resident() == "tiny"
    assert processes(zoo.live) == before


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**70), [10**30]])
def test_a_large_number_for_a_template_is_served_or_refused_as_the_clients(
    shared: Running, number: Any
) -> None:
    answer = shared.http.post(CHAT, json=chat(chat_template_kwargs={"size": number}))
    assert answer.status_code in (200, 400), answer.text


def test_a_variable_that_the_template_never_reads_is_listed_and_refused_in_strict_mode(
    shared: Running,
) -> None:
    variables = {"bos_token": "", "enable_thinking": False, "größe": 1}
    unread = ["chat_template_kwargs.enable_thinking", "chat_template_kwargs.größe"]
    listed = "user, chat_template_kwargs.enable_thinking, chat_template_kwargs.gr%C3%B6%C3%9Fe"
    body = chat(chat_template_kwargs=variables, max_tokens=1, user="u")
    response = {"model": body["model"], "input": "Hello", "max_output_tokens": 1, "user": "u"}
    for path, sent in (
        (CHAT, body),
        (CHAT, body | {"stream": True}),
        (CHAT, body | {"extra_messages": [body["messages"]]}),
        ("/v1/responses", response | {"chat_template_kwargs": variables}),
    ):
        assert shared.post(path, sent).headers["x-service-ignored-fields"] == listed
    del body["user"]
    status, error = shared.v1_error(CHAT, body, **{"X-Service-Strict": "true"})
    assert (status, error["code"]) == (400, "unused_fields_refused")
    assert error["details"]["fields"] == unread
    read = body | {"chat_template_kwargs": {"bos_token": ""}}
    answer = shared.post(CHAT, read, **{"X-Service-Strict": "true"})
    assert "x-service-ignored-fields" not in answer.headers


def test_a_template_is_given_the_variables_of_the_request(shared: Running) -> None:
    plain = texts(shared)
    assert texts(shared, chat_template_kwargs={"enable_thinking": False}) == plain
    other = texts(shared, chat_template_kwargs={"bos_token": "Once upon a time"})
    assert other != plain
