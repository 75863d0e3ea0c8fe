"""The official OpenAI client against a running service."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest

from steerserve import demo
from tests.service import Running

MODEL = demo.MODEL_NAME
STORY = [{"role": "user", "content": "Tell me a story."}]


@pytest.fixture
def client(shared: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{shared.url}/v1", api_key="any", max_retries=0) as made:
        yield made


def test_it_chats(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=STORY, max_tokens=20, seed=1)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 20
    assert answer.system_fingerprint is not None
    assert answer.system_fingerprint.startswith("service:")


def test_it_streams(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=STORY,
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks)
    assert [c.usage.completion_tokens for c in chunks if c.usage] == [20]


def test_its_stream_helper_builds_the_whole_message(client: openai.OpenAI) -> None:
    ask = {"model": MODEL, "messages": STORY, "stop": ["."]}
    with client.chat.completions.stream(**ask) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].finish_reason == "stop"
    assert final.choices[0].message.content


def test_it_completes_a_list_of_prompts(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=["One day", "The sea"], max_tokens=5)
    assert [c.index for c in answer.choices] == [0, 1]
    streamed = client.completions.create(model=MODEL, prompt="One day", max_tokens=5, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed)


def test_it_lists_models(client: openai.OpenAI) -> None:
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL


def test_it_raises_its_own_typed_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nobody", messages=STORY)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=MODEL, messages=STORY, temperature=3)
    assert bad.value.param == "temperature"


async def test_the_asynchronous_client_serves_many_at_once(shared: Running) -> None:
    async with openai.AsyncOpenAI(base_url=f"{shared.url}/v1", api_key="any") as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(model=MODEL, messages=STORY, max_tokens=8)
                for _ in range(24)
            )
        )
    assert all(answer.choices[0].message.content for answer in answers)
