"""The parameters of a chat request: their defaults and effects."""

from __future__ import annotations

from typing import Any

import pytest

from steerserve import demo
from tests.service import Running

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
STORY = [{"role": "user", "content": "Tell me a story."}]


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": demo.MODEL_NAME, "messages": STORY, "max_tokens": 24, "seed": 3} | fields


def choices(live: Running, **fields: Any) -> Any:
    return live.post(CHAT, chat(**fields)).json()["choices"]


# ---------------------------------------------------------------- defaults


@pytest.mark.shows(
    "chat-parameters.3",
    "chat-parameters.4",
    "chat-parameters.5",
    "chat-parameters.6",
    "chat-parameters.9",
    "chat-parameters.10",
)
@pytest.mark.parametrize(
    ("name", "default", "other"),
    [
        ("stream", False, None),
        ("temperature", 1.0, 0.1),
        ("top_p", 1.0, 0.1),
        ("n", 1, 2),
        ("stop", None, [" "]),
        ("frequency_penalty", 0.0, 2.0),
        ("presence_penalty", 0.0, 2.0),
    ],
)
def test_a_parameter_that_is_left_out_has_its_default(
    shared: Running, name: str, default: Any, other: Any
) -> None:
    plain = choices(shared)
    assert choices(shared, **{name: default}) == plain
    if other is not None:
        assert choices(shared, **{name: other}) != plain


@pytest.mark.shows("chat-parameters.7")
def test_without_max_tokens_the_setting_of_the_server_counts(
    shared: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared.service.settings, "default_max_tokens", 3)
    body = chat()
    del body["max_tokens"]
    answer = shared.post(CHAT, body).json()
    assert answer["usage"]["completion_tokens"] == 3
    assert answer["choices"][0]["finish_reason"] == "length"


# ---------------------------------------------------------------- effects and refusals


@pytest.mark.shows("chat-parameters.4")
@pytest.mark.parametrize("text", ["Tell me a story.", "Tell me about the sea.", "Hello"])
def test_temperature_0_writes_the_most_probable_token(shared: Running, text: str) -> None:
    greedy = shared.chat(text, max_tokens=1, temperature=0)
    scored = shared.chat(text, max_tokens=1, logprobs=True)
    assert greedy["choices"][0]["message"] == scored["choices"][0]["message"]


@pytest.mark.shows("chat-parameters.9")
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_stop_string_ends_the_work_on_a_stream(shared: Running, path: str) -> None:
    body = chat(temperature=0, max_tokens=20) | {"prompt": "One day"}
    del body["messages" if path == TEXT else "prompt"]
    (whole,) = shared.post(path, body).json()["choices"]
    text = whole["text"] if path == TEXT else whole["message"]["content"]
    stop = text[len(text) // 2 :][:3]
    *_, last, done = shared.stream(path, body | {"max_tokens": 900, "stop": stop})
    assert done == "[DONE]"
    assert last["choices"][0]["finish_reason"] == "stop"
    assert last["usage"]["completion_tokens"] <= 20


@pytest.mark.shows("seeds.9")
def test_each_prompt_of_a_list_is_seeded_by_itself(shared: Running) -> None:
    fields = {"seed": 5, "temperature": 1.5, "max_tokens": 24}
    answer = shared.complete(["One day", "The sea", "One day"], **fields)
    first, second, third = (choice["text"] for choice in answer["choices"])
    assert first == third == shared.complete("One day", **fields)["choices"][0]["text"]
    assert second == shared.complete("The sea", **fields)["choices"][0]["text"]


# ---------------------------------------------------------------- fields that nothing reads


@pytest.mark.shows("request-validation.2")
def test_a_field_that_nothing_reads_changes_no_answer(shared: Running) -> None:
    odd = [STORY[0] | {"mood": "glad"}]
    answer = shared.post(CHAT, chat(messages=odd, user="me", verbosity="low"))
    assert answer.headers["x-service-ignored-fields"]
    plain = shared.post(CHAT, chat())
    told = [{**one.json(), "id": "", "created": 0} for one in (answer, plain)]
    assert told[0] == told[1]


@pytest.mark.shows("request-validation.3")
def test_fields_that_nothing_reads_are_logged_once_without_their_values(
    shared: Running, caplog: pytest.LogCaptureFixture
) -> None:
    body = chat(max_tokens=1, user="sentinel-1", messages=[STORY[0] | {"mood": "sentinel-2"}])
    shared.post(CHAT, body)
    (record,) = [one for one in caplog.records if "request_fields_unused" in one.getMessage()]
    assert record.levelname == "WARNING"
    for location in ("user", "messages[0].mood"):
        assert location in record.getMessage()
    assert "sentinel" not in caplog.text
