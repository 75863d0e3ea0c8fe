"""The calls of litellm."""

from __future__ import annotations

from typing import Any, Literal

import litellm
from pydantic import BaseModel
from told import BASE_URL, MODEL, STORY, Calls

calls = Calls("litellm")
litellm.suppress_debug_info = True
CHAT, TEXT = f"openai/{MODEL}", f"text-completion-openai/{MODEL}"
messages = [{"role": "user", "content": STORY}]
there: dict[str, Any] = {"api_base": BASE_URL, "api_key": "any", "max_retries": 0}


class Weather(BaseModel):
    sky: Literal["blue", "grey"]
    is_calm: bool


@calls.works("`completion` with `openai/<model>`")
def chat() -> None:
    answer = litellm.completion(CHAT, messages, max_tokens=5, seed=1, **there)
    assert answer.choices[0].message.content


@calls.works("`completion` with `stream`")
def stream() -> None:
    options = {"include_usage": True}
    ask = {"max_tokens": 5, "stream": True, "stream_options": options}
    chunks = list(litellm.completion(CHAT, messages, **ask, **there))
    assert litellm.stream_chunk_builder(chunks).usage.completion_tokens == 5


@calls.works("`completion` with a pydantic `response_format`")
def parse() -> None:
    answer = litellm.completion(CHAT, messages, response_format=Weather, **there)
    assert Weather.model_validate_json(answer.choices[0].message.content)


@calls.works("`text_completion` with `text-completion-openai/<model>`, with `stream`")
def complete() -> None:
    assert litellm.text_completion("One day", TEXT, max_tokens=5, **there).choices[0].text
    chunks = litellm.text_completion("One day", TEXT, max_tokens=5, stream=True, **there)
    assert "".join(chunk.choices[0].text or "" for chunk in chunks)


@calls.works("`embedding`")
def embed() -> None:
    assert len(litellm.embedding(CHAT, ["The sea"], **there).data[0]["embedding"]) > 1


@calls.refused("tools", says="tools: not honoured", instead="`response_format`")
def tools() -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    litellm.completion(CHAT, messages, tools=[tool], **there)


calls.tell()
