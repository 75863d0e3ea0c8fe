"""The calls of the official Python client."""

from __future__ import annotations

import asyncio
import json
from typing import Literal

from pydantic import BaseModel
from told import BASE_URL, MODEL, STORY, Calls, raises

import openai

calls = Calls("openai")
client = openai.OpenAI(base_url=BASE_URL, api_key="any", max_retries=0)
messages = [{"role": "user", "content": STORY}]
chats = client.chat.completions
ASKED = {"model": MODEL, "input": STORY, "max_output_tokens": 8, "temperature": 0}
WHOLE = {"model": MODEL, "input": STORY, "temperature": 0}
"""A request whose answer ends by itself; the `stream` helper takes no other as complete."""

CHAT = "/v1/chat/completions"
OVER = ("completed", "failed", "expired", "cancelled")


class Weather(BaseModel):
    sky: Literal["blue", "grey"]
    is_calm: bool


@calls.works("chat")
def chat() -> None:
    answer = chats.create(model=MODEL, messages=messages, max_tokens=4, n=3, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert {choice.message.role for choice in answer.choices} == {"assistant"}
    assert {choice.finish_reason for choice in answer.choices} == {"length"}
    assert all(choice.message.content for choice in answer.choices)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert str(answer.system_fingerprint).startswith("service:")
    with raises(openai.NotFoundError, "model_not_found", param="model"):
        chats.create(model="nobody", messages=messages)
    with raises(openai.BadRequestError, "temperature", param="temperature"):
        chats.create(model=MODEL, messages=messages, temperature=3)
    with raises(openai.BadRequestError, "context_length_exceeded"):
        chats.create(model=MODEL, messages=messages, max_tokens=5000)


@calls.works("chat stream")
def stream() -> None:
    ask = {"model": MODEL, "messages": messages, "max_tokens": 8, "seed": 1}
    whole = chats.create(**ask)
    chunks = list(chats.create(**ask, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    joined = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert joined == whole.choices[0].message.content
    assert [chunk.usage for chunk in chunks if chunk.usage] == [whole.usage]


@calls.works("`chat.completions.stream` helper")
def helper() -> None:
    with chats.stream(model=MODEL, messages=messages, stop=["."]) as events:
        deltas = [event.delta for event in events if event.type == "content.delta"]
        final = events.get_final_completion()
    assert final.choices[0].finish_reason == "stop"
    assert final.choices[0].message.content == "".join(deltas) != ""


@calls.works("`chat.completions.parse` with a pydantic model")
def parse() -> None:
    answer = chats.parse(model=MODEL, messages=messages, response_format=Weather)
    assert isinstance(answer.choices[0].message.parsed, Weather)
    with raises(openai.LengthFinishReasonError, "length limit"):
        chats.parse(model=MODEL, messages=messages, response_format=Weather, max_tokens=3)


@calls.works("`completions.create`, `logprobs`")
def complete() -> None:
    ask = {"model": MODEL, "max_tokens": 5}
    prompts = client.completions.create(**ask, prompt=["One day", "The sea"])
    assert [choice.index for choice in prompts.choices] == [0, 1]
    streamed = client.completions.create(**ask, prompt="One day", stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed)
    text = client.completions.create(model=MODEL, prompt="One day", max_tokens=1, logprobs=3)
    found = text.choices[0].logprobs
    assert found is not None
    assert (found.tokens, found.text_offset) == ([text.choices[0].text], [len("One day")])
    (near,) = found.top_logprobs or []
    assert len(near) == 3
    assert max(near.values()) == found.token_logprobs[0] < 0
    chat = chats.create(
        model=MODEL, messages=messages, logprobs=True, top_logprobs=2, max_tokens=1
    ).choices[0]
    (token,) = chat.logprobs.content
    assert token.token == chat.message.content
    assert bytes(token.bytes or []) == token.token.encode()
    assert token.top_logprobs[0].logprob == token.logprob > token.top_logprobs[1].logprob


@calls.works("`embeddings.create` (base64 by default) and `float`")
def embed() -> None:
    texts = ["The sea", "A mountain path"]
    default = client.embeddings.create(model=MODEL, input=texts)
    raw = client.embeddings.with_raw_response.create(model=MODEL, input=texts)
    assert b'"encoding_format":"base64"' in raw.http_request.content
    plain = client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    assert [one.index for one in default.data] == [0, 1]
    assert [one.embedding for one in default.data] == [one.embedding for one in plain.data]
    assert default.data[0].embedding != default.data[1].embedding
    assert default.usage.total_tokens == plain.usage.total_tokens > 0


@calls.works("`models.list`, `models.retrieve`")
def models() -> None:
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL
    with raises(openai.NotFoundError, "nobody"):
        client.models.retrieve("nobody")


@calls.works("extensions in `extra_body`")
def extensions() -> None:
    feature = {"index": 90, "value": 52.5}
    asked = {
        "sae_steering": {"features": [feature]},
        "steering_intensity": 0.5,
        "return_sae_activations": {"features": [90], "positions": "last"},
    }
    ask = {"model": MODEL, "messages": messages, "max_tokens": 2}
    raw = chats.with_raw_response.create(**ask, extra_body=asked)
    assert "X-Service-Ignored-Fields" not in raw.headers
    assert raw.headers["X-Service-Steering-Intensity"] == "0.5"
    answer = raw.parse()
    assert answer.model_extra is not None
    (last,) = answer.model_extra["service"]["sae_activations"]["positions"]
    assert [one["index"] for one in last["features"]] == [90]


@calls.works("`user`, `store`, `metadata` and the like, which change nothing")
def unused() -> None:
    raw = chats.with_raw_response.create(
        model=MODEL,
        messages=messages,
        max_tokens=2,
        seed=3,
        user="u",
        store=False,
        metadata={"run": "1"},
        reasoning_effort="low",
        service_tier="auto",
        parallel_tool_calls=False,
        top_p=0.9,
    )
    assert set(raw.headers["X-Service-Ignored-Fields"].split(", ")) == {
        "user",
        "metadata",
        "reasoning_effort",
        "service_tier",
        "parallel_tool_calls",
    }
    assert raw.headers["X-Service-Seed"] == "3;scope=request"
    strict = {"X-Service-Strict": "true"}
    with raises(openai.BadRequestError, "unused_fields_refused"):
        chats.create(model=MODEL, messages=messages, user="u", extra_headers=strict)


@calls.refused("tools", says="tools: not honoured", instead="`response_format` with a schema")
def tools() -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    chats.create(model=MODEL, messages=messages, tools=[tool])


@calls.refused(
    "the `stream` helper with a pydantic model",
    says="cannot be streamed",
    instead="`chat.completions.parse`",
)
def streamed_model() -> None:
    with chats.stream(model=MODEL, messages=messages, response_format=Weather):
        pass


@calls.works("`responses.create`, streamed and not")
def responses() -> None:
    whole = client.responses.create(**ASKED)
    stream = client.responses.create(**ASKED, stream=True)
    deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text != ""


@calls.works("`responses.stream` helper; `responses.parse` with a pydantic model")
def responses_of_models() -> None:
    with client.responses.stream(**WHOLE) as events:
        text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
        assert events.get_final_response().output_text == text != ""
    parsed = client.responses.parse(model=MODEL, input=STORY, text_format=Weather)
    assert isinstance(parsed.output_parsed, Weather)


@calls.works("the same with `AsyncOpenAI`")
def async_responses() -> None:
    async def ask() -> None:
        async with openai.AsyncOpenAI(base_url=BASE_URL, api_key="any", max_retries=0) as client:
            responses = client.responses
            whole = await responses.create(**ASKED)
            stream = await responses.create(**ASKED, stream=True)
            deltas = [e.delta async for e in stream if e.type == "response.output_text.delta"]
            assert "".join(deltas) == whole.output_text != ""
            async with responses.stream(**WHOLE) as events:
                assert (await events.get_final_response()).output_text
            parsed = await responses.parse(model=MODEL, input=STORY, text_format=Weather)
            assert isinstance(parsed.output_parsed, Weather)
            chats = client.chat.completions
            short = {"model": MODEL, "messages": messages, "stop": ["."], "seed": 1}
            async with chats.stream(**short) as events:
                final = await events.get_final_completion()
            same = await asyncio.gather(*(chats.create(**short) for _ in range(24)))
            texts = {one.choices[0].message.content for one in (final, *same)}
            assert len(texts) == 1
            shaped, vectors = await asyncio.gather(
                chats.parse(model=MODEL, messages=messages, response_format=Weather),
                client.embeddings.create(model=MODEL, input=STORY),
            )
            assert isinstance(shaped.choices[0].message.parsed, Weather)
            assert len(vectors.data[0].embedding) > 1
            with raises(openai.NotFoundError, "model_not_found"):
                await chats.create(model="nobody", messages=messages)

    asyncio.run(ask())


@calls.refused(
    "a response that is stored", says="store: not honoured", instead="the whole conversation"
)
def stored() -> None:
    client.responses.create(model=MODEL, input=STORY, store=True)


@calls.works(
    "`files.create`, `retrieve`, `list`, `content`, `delete`; "
    "`batches.create`, `retrieve`, `list`, `cancel`, with the files of answers and of errors"
)
def batches() -> None:
    lines = [line("good", max_tokens=2), line("bad", temperature=9)]
    file = client.files.create(file=("lines.jsonl", jsonl(lines)), purpose="batch")
    assert client.files.retrieve(file.id).bytes == len(jsonl(lines))
    assert client.files.content(file.id).read() == jsonl(lines)
    assert file.id in {one.id for one in client.files.list()}
    batch = client.batches.create(
        input_file_id=file.id, metadata={"run": "1"}, endpoint=CHAT, completion_window="24h"
    )
    while batch.status not in OVER:
        batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed"
    assert batch.metadata == {"run": "1"}
    (good,) = client.files.content(batch.output_file_id).text.splitlines()
    (bad,) = client.files.content(batch.error_file_id).text.splitlines()
    assert json.loads(good)["response"]["body"]["choices"]
    assert json.loads(bad)["response"]["status_code"] == 400
    again = client.batches.create(
        input_file_id=many(client).id, endpoint=CHAT, completion_window="24h"
    )
    assert again.id in {one.id for one in client.batches.list(limit=1)}
    assert client.batches.cancel(again.id).status == "cancelling"
    while again.status not in OVER:
        again = client.batches.retrieve(again.id)
    assert again.status == "cancelled"
    for one in (file.id, again.input_file_id):
        assert client.files.delete(one).deleted


@calls.works("the same with `AsyncOpenAI`")
def async_batches() -> None:
    async def ask() -> None:
        async with openai.AsyncOpenAI(base_url=BASE_URL, api_key="any", max_retries=0) as client:
            lines = jsonl([line("good", max_tokens=2), line("bad", temperature=9)])
            file = await client.files.create(file=("lines.jsonl", lines), purpose="batch")
            assert (await client.files.retrieve(file.id)).bytes == len(lines)
            assert file.id in [one.id async for one in client.files.list()]
            batch = await client.batches.create(
                input_file_id=file.id, endpoint=CHAT, completion_window="24h"
            )
            while batch.status not in OVER:
                batch = await client.batches.retrieve(batch.id)
            good = await client.files.content(batch.output_file_id)
            bad = await client.files.content(batch.error_file_id)
            assert json.loads(good.text)["response"]["body"]["choices"]
            assert json.loads(bad.text)["response"]["status_code"] == 400
            again = await client.batches.create(
                input_file_id=many(openai.OpenAI(base_url=BASE_URL, api_key="any")).id,
                endpoint=CHAT,
                completion_window="24h",
            )
            assert again.id in [one.id async for one in client.batches.list(limit=1)]
            again = await client.batches.cancel(again.id)
            assert again.status == "cancelling"
            while again.status not in OVER:
                again = await client.batches.retrieve(again.id)
            for one in (file.id, again.input_file_id):
                assert (await client.files.delete(one)).deleted

    asyncio.run(ask())


def line(custom_id: str, **fields: object) -> dict[str, object]:
    body = {"model": MODEL, "messages": messages, **fields}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}


def jsonl(lines: list[dict[str, object]]) -> bytes:
    return "".join(json.dumps(one) + "\n" for one in lines).encode()


def many(client: openai.OpenAI) -> openai.types.FileObject:
    """An input that takes long enough to be cancelled."""
    lines = jsonl([line(str(n), max_tokens=500) for n in range(64)])
    return client.files.create(file=("many.jsonl", lines), purpose="batch")


calls.tell()
