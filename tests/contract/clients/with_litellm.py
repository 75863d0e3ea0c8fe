"""The calls of litellm."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import litellm
from pydantic import BaseModel
from told import BASE_URL, MODEL, STORY, Calls, raises

calls = Calls("litellm")
litellm.suppress_debug_info = True
CHAT, TEXT = f"openai/{MODEL}", f"text-completion-openai/{MODEL}"
messages = [{"role": "user", "content": STORY}]
SEEDED = {"max_tokens": 8, "seed": 1}
there: dict[str, Any] = {"api_base": BASE_URL, "api_key": "any", "max_retries": 0}


class Weather(BaseModel):
    sky: Literal["blue", "grey"]
    is_calm: bool


@calls.works("`completion` with `openai/<model>`")
def chat() -> None:
    whole = litellm.completion(CHAT, messages, **SEEDED, **there)
    assert whole.choices[0].message.content
    assert (whole.choices[0].finish_reason, whole.usage.completion_tokens) == ("length", 8)
    assert whole.system_fingerprint.startswith("service:")
    assert whole._response_headers["x-service-seed"] == "1;scope=request"
    awaited = asyncio.run(litellm.acompletion(CHAT, messages, **SEEDED, **there))
    assert awaited.choices[0].message.content == whole.choices[0].message.content
    scored = litellm.completion(
        CHAT, messages, logprobs=True, top_logprobs=2, max_tokens=1, **there
    ).choices[0]
    (token,) = scored.logprobs.content
    assert token.token == scored.message.content
    assert len(token.top_logprobs) == 2
    own = {"extra_body": {"steering_intensity": "off"}}
    answer = litellm.completion(CHAT, messages, **own, **SEEDED, **there)
    assert "x-service-ignored-fields" not in answer._response_headers
    for fields, error, says in (
        ({"model": "openai/nobody"}, litellm.NotFoundError, "nobody"),
        ({"extra_body": {"profile": "unknown"}}, litellm.NotFoundError, "no profile"),
        ({"max_tokens": 5000}, litellm.BadRequestError, "1024 tokens"),
    ):
        with raises(error, says):
            litellm.completion(**{"model": CHAT, "messages": messages} | there | fields)


@calls.works("`completion` with `stream`")
def stream() -> None:
    whole = litellm.completion(CHAT, messages, **SEEDED, **there)
    ask = {"stream": True, "stream_options": {"include_usage": True}, **SEEDED, **there}
    joined = litellm.stream_chunk_builder(list(litellm.completion(CHAT, messages, **ask)))
    assert joined.choices[0].message.content == whole.choices[0].message.content
    assert joined.usage.completion_tokens == whole.usage.completion_tokens
    assert joined.usage.prompt_tokens == whole.usage.prompt_tokens

    async def pieces() -> list[str]:
        chunks = await litellm.acompletion(CHAT, messages, **ask)
        return [chunk.choices[0].delta.content or "" async for chunk in chunks]

    assert "".join(asyncio.run(pieces())) == whole.choices[0].message.content


@calls.works("`completion` with a pydantic `response_format`")
def parse() -> None:
    answer = litellm.completion(CHAT, messages, response_format=Weather, **there)
    assert Weather.model_validate_json(answer.choices[0].message.content)


@calls.works("`text_completion` with `text-completion-openai/<model>`, with `stream`")
def complete() -> None:
    whole = litellm.text_completion("One day", TEXT, **SEEDED, **there).choices[0].text
    chunks = litellm.text_completion("One day", TEXT, stream=True, **SEEDED, **there)
    assert "".join(chunk.choices[0].text or "" for chunk in chunks) == whole != ""


@calls.works("`embedding`")
def embed() -> None:
    answer = litellm.embedding(CHAT, ["The sea", "A mountain path"], **there)
    one, other = (entry["embedding"] for entry in answer.data)
    assert len(one) == len(other) > 1
    assert one != other
    assert answer.usage.prompt_tokens > 0


@calls.refused("tools", says="tools: not honoured", instead="`response_format`")
def tools() -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    litellm.completion(CHAT, messages, tools=[tool], **there)


calls.tell()
