"""The calls of langchain-openai."""

from __future__ import annotations

from typing import Any, Literal

import tiktoken
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel
from told import BASE_URL, MODEL, STORY, Calls

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
    assert chat.invoke(STORY).content
    assert list(chat.stream(STORY))
    assert len(chat.batch([STORY, STORY])) == 2


@calls.works('`with_structured_output`, its default `method="json_schema"`')
def structured() -> None:
    assert isinstance(chat.with_structured_output(Weather).invoke(STORY), Weather)


@calls.works("`OpenAI` (text completions): `invoke`, `stream`")
def complete() -> None:
    text = OpenAI(max_tokens=5, **there)
    assert text.invoke("One day")
    assert list(text.stream("One day"))


@calls.works("`OpenAIEmbeddings(check_embedding_ctx_length=False)`")
def embed() -> None:
    embeddings = OpenAIEmbeddings(check_embedding_ctx_length=False, **there)
    assert len(embeddings.embed_documents(["The sea", "A path"])) == 2


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
