"""The calls of langchain-openai."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import tiktoken
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel
from told import BASE_URL, MODEL, STORY, Calls, raises

import openai

calls = Calls("langchain-openai")
there: dict[str, Any] = {
    "base_url": BASE_URL,
    "api_key": "any",
    "model": MODEL,
    "max_retries": 0,
}
chat = ChatOpenAI(max_tokens=60, **there)


class Weather(BaseModel):
    """The weather of the story."""

    sky: Literal["blue", "grey"]
    is_calm: bool


@calls.works("`ChatOpenAI`: `invoke`, `stream`, `batch`")
def invoke() -> None:
    chat = ChatOpenAI(max_tokens=8, seed=1, include_response_headers=True, **there)
    whole = chat.invoke(STORY)
    assert whole.content
    assert whole.usage_metadata["output_tokens"] == 8
    assert whole.response_metadata["finish_reason"] == "length"
    assert "x-service-ignored-fields" not in whole.response_metadata["headers"]
    chunks = list(chat.stream(STORY))
    assert "".join(str(chunk.content) for chunk in chunks) == whole.content
    assert [c.usage_metadata["output_tokens"] for c in chunks if c.usage_metadata] == [8]
    assert [answer.content for answer in chat.batch([STORY, STORY])] == [whole.content] * 2
    assert asyncio.run(asked_asynchronously()) == (whole.content, whole.content)
    scored = ChatOpenAI(max_tokens=1, logprobs=True, top_logprobs=2, **there).invoke(STORY)
    (token,) = scored.response_metadata["logprobs"]["content"]
    assert token["token"] == scored.content
    assert len(token["top_logprobs"]) == 2
    for fields, error, says in (
        ({"model": "nobody"}, openai.NotFoundError, "nobody"),
        ({"max_tokens": 5000}, openai.BadRequestError, "context_length_exceeded"),
    ):
        with raises(error, says):
            ChatOpenAI(**there | fields).invoke(STORY)


async def asked_asynchronously() -> tuple[str, str]:
    """The answer as a whole, and put together from its stream."""
    chat = ChatOpenAI(max_tokens=8, seed=1, **there)
    whole = await chat.ainvoke(STORY)
    return whole.content, "".join([chunk.content async for chunk in chat.astream(STORY)])


@calls.works('`with_structured_output`, its default `method="json_schema"`')
def structured() -> None:
    assert isinstance(chat.with_structured_output(Weather).invoke(STORY), Weather)


@calls.works("`OpenAI` (text completions): `invoke`, `stream`")
def complete() -> None:
    text = OpenAI(max_tokens=8, seed=1, **there)
    whole = text.invoke("One day")
    assert "".join(text.stream("One day")) == whole != ""


@calls.works("`OpenAIEmbeddings(check_embedding_ctx_length=False)`")
def embed() -> None:
    embeddings = OpenAIEmbeddings(check_embedding_ctx_length=False, **there)
    one, other = embeddings.embed_documents(["The sea", "A mountain path"])
    assert len(one) == len(other) > 1
    assert one != other
    assert embeddings.embed_query("The sea") == one


@calls.refused(
    "`OpenAIEmbeddings` as it is: it sends token ids",
    says="must be a text",
    instead="`check_embedding_ctx_length=False`",
)
def embed_ids() -> None:
    ranks = {bytes([byte]): byte for byte in range(256)}
    bytewise = tiktoken.Encoding("bytewise", pat_str=".", mergeable_ranks=ranks, special_tokens={})
    tiktoken.get_encoding = lambda _: bytewise  # it would fetch a vocabulary from elsewhere
    OpenAIEmbeddings(**there).embed_documents(["The sea"])


@calls.refused(
    '`with_structured_output(method="function_calling")`',
    says="tools: not honoured",
    instead='`method="json_schema"`',
)
def calling() -> None:
    chat.with_structured_output(Weather, method="function_calling").invoke(STORY)


calls.tell()
