"""The calls of the official Python client."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel
from told import BASE_URL, MODEL, STORY, Calls

import openai

calls = Calls("openai")
client = openai.OpenAI(base_url=BASE_URL, api_key="any", max_retries=0)
messages = [{"role": "user", "content": STORY}]
chats = client.chat.completions


class Weather(BaseModel):
    sky: Literal["blue", "grey"]
    is_calm: bool


@calls.works("chat")
def chat() -> None:
    assert chats.create(model=MODEL, messages=messages, max_tokens=5).choices[0].message.content


@calls.works("chat stream")
def stream() -> None:
    options = {"include_usage": True}
    ask = {"model": MODEL, "messages": messages, "max_tokens": 5, "stream_options": options}
    assert [chunk.usage for chunk in chats.create(**ask, stream=True) if chunk.usage]


@calls.works("`chat.completions.stream` helper")
def helper() -> None:
    with chats.stream(model=MODEL, messages=messages, stop=["."]) as events:
        assert events.get_final_completion().choices[0].message.content


@calls.works("`chat.completions.parse` with a pydantic model")
def parse() -> None:
    answer = chats.parse(model=MODEL, messages=messages, response_format=Weather)
    assert isinstance(answer.choices[0].message.parsed, Weather)


@calls.works("`completions.create`, `logprobs`")
def complete() -> None:
    answer = client.completions.create(model=MODEL, prompt="One day", max_tokens=1, logprobs=2)
    assert answer.choices[0].logprobs is not None


@calls.works("`embeddings.create` (base64 by default) and `float`")
def embed() -> None:
    default = client.embeddings.create(model=MODEL, input="The sea")
    plain = client.embeddings.create(model=MODEL, input="The sea", encoding_format="float")
    assert default.data[0].embedding == plain.data[0].embedding


@calls.works("`models.list`, `models.retrieve`")
def models() -> None:
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL


@calls.works("extensions in `extra_body`")
def extensions() -> None:
    asked = {"return_sae_activations": {"top_k": 1}, "steering_intensity": 0.5}
    answer = chats.create(model=MODEL, messages=messages, max_tokens=2, extra_body=asked)
    assert answer.model_extra is not None
    assert answer.model_extra["service"]["sae_activations"]["positions"]


@calls.works("`user`, `store`, `metadata` and the like, which change nothing")
def unused() -> None:
    chats.create(
        model=MODEL,
        messages=messages,
        max_tokens=2,
        user="u",
        store=False,
        metadata={"run": "1"},
        reasoning_effort="low",
        service_tier="auto",
        parallel_tool_calls=False,
        top_p=0.9,
    )


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


@calls.works("`responses.create`, streamed and not; `responses.parse` with a pydantic model")
def responses() -> None:
    whole = client.responses.create(model=MODEL, input=STORY, max_output_tokens=8, temperature=0)
    stream = client.responses.create(
        model=MODEL, input=STORY, max_output_tokens=8, temperature=0, stream=True
    )
    deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text != ""
    parsed = client.responses.parse(model=MODEL, input=STORY, text_format=Weather)
    assert isinstance(parsed.output_parsed, Weather)


@calls.refused(
    "a response that is stored", says="store: not honoured", instead="the whole conversation"
)
def stored() -> None:
    client.responses.create(model=MODEL, input=STORY, store=True)


calls.tell()
