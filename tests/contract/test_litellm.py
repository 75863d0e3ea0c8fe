"""litellm against a running service: what goes through it, and how its errors come out."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from steerserve import demo
from tests.contract.conftest import Weather
from tests.service import Running

CHAT = f"openai/{demo.MODEL_NAME}"
TEXT = f"text-completion-openai/{demo.MODEL_NAME}"
STORY = [{"role": "user", "content": "Tell me a story."}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
SEEDED = {"max_tokens": 8, "seed": 1}


@pytest.fixture(scope="module")
def litellm() -> Any:
    """The library. Every worker of the suite collects this file, and the import takes seconds."""
    return importlib.import_module("litellm")


@pytest.fixture
def there(shared: Running, litellm: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Where the service is, as every call of litellm wants it."""
    monkeypatch.setattr(litellm, "suppress_debug_info", True)
    return {"api_base": f"{shared.url}/v1", "api_key": "any", "max_retries": 0}


def test_it_chats(litellm: Any, there: dict[str, Any]) -> None:
    answer = litellm.completion(CHAT, STORY, **SEEDED, **there)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 8
    assert answer.system_fingerprint.startswith("service:")
    assert answer._response_headers["x-service-seed"] == "1;scope=request"


def test_its_stream_joins_to_the_whole_answer_with_its_usage(
    litellm: Any, there: dict[str, Any]
) -> None:
    whole = litellm.completion(CHAT, STORY, **SEEDED, **there)
    options = {"include_usage": True}
    stream = litellm.completion(CHAT, STORY, stream=True, stream_options=options, **SEEDED, **there)
    chunks = list(stream)
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["length"]
    joined = litellm.stream_chunk_builder(chunks)
    assert joined.choices[0].message.content == whole.choices[0].message.content
    assert joined.usage.completion_tokens == whole.usage.completion_tokens
    assert joined.usage.prompt_tokens == whole.usage.prompt_tokens


async def test_its_asynchronous_calls_do_the_same(litellm: Any, there: dict[str, Any]) -> None:
    whole = litellm.completion(CHAT, STORY, **SEEDED, **there)
    awaited = await litellm.acompletion(CHAT, STORY, **SEEDED, **there)
    assert awaited.choices[0].message.content == whole.choices[0].message.content
    stream = await litellm.acompletion(CHAT, STORY, stream=True, **SEEDED, **there)
    texts = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(texts) == whole.choices[0].message.content


def test_it_completes_texts(litellm: Any, there: dict[str, Any]) -> None:
    whole = litellm.text_completion("One day", TEXT, **SEEDED, **there)
    assert whole.choices[0].text
    stream = litellm.text_completion("One day", TEXT, stream=True, **SEEDED, **there)
    joined = "".join(c.choices[0].text or "" for c in stream)
    assert joined == whole.choices[0].text


def test_it_embeds(litellm: Any, there: dict[str, Any]) -> None:
    answer = litellm.embedding(CHAT, ["The sea", "A mountain path"], **there)
    one, other = (entry["embedding"] for entry in answer.data)
    assert len(one) == len(other) > 1
    assert one != other
    assert answer.usage.prompt_tokens > 0


def test_a_pydantic_model_shapes_its_answer(litellm: Any, there: dict[str, Any]) -> None:
    answer = litellm.completion(CHAT, STORY, response_format=Weather, **there)
    assert Weather.model_validate_json(answer.choices[0].message.content)


def test_it_reads_log_probabilities(litellm: Any, there: dict[str, Any]) -> None:
    ask = {"logprobs": True, "top_logprobs": 2, "max_tokens": 1}
    answer = litellm.completion(CHAT, STORY, **ask, **there)
    (token,) = answer.choices[0].logprobs.content
    assert token.token == answer.choices[0].message.content
    assert len(token.top_logprobs) == 2


def test_extensions_travel_through_it(litellm: Any, there: dict[str, Any]) -> None:
    with pytest.raises(litellm.NotFoundError, match="no profile"):
        litellm.completion(CHAT, STORY, extra_body={"profile": "unknown"}, **there)
    body = {"steering_intensity": "off"}
    answer = litellm.completion(CHAT, STORY, extra_body=body, **SEEDED, **there)
    assert "x-service-ignored-fields" not in answer._response_headers


def test_it_raises_its_own_typed_errors(litellm: Any, there: dict[str, Any]) -> None:
    with pytest.raises(litellm.NotFoundError, match="nobody"):
        litellm.completion("openai/nobody", STORY, **there)
    with pytest.raises(litellm.BadRequestError, match="tools: not honoured"):
        litellm.completion(CHAT, STORY, tools=[TOOL], **there)
    with pytest.raises(litellm.BadRequestError, match="1024 tokens"):
        litellm.completion(CHAT, STORY, max_tokens=5000, **there)
