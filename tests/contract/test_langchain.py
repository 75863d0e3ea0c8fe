"""langchain-openai against a running service: its chat model, its text model and its embeddings."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import tiktoken

import openai
from steerserve import demo
from tests.contract.conftest import Weather
from tests.service import Running

STORY = "Tell me a story."


@pytest.fixture(scope="module")
def langchain() -> Any:
    """The library. Every worker of the suite collects this file, and the import takes seconds."""
    return importlib.import_module("langchain_openai")


@pytest.fixture
def there(shared: Running) -> Iterator[dict[str, Any]]:
    """Where the service is, and the model, as every class of the library wants it."""
    with httpx2.Client() as client:
        yield {
            "base_url": f"{shared.url}/v1",
            "api_key": "any",
            "model": demo.MODEL_NAME,
            "max_retries": 0,
            "http_client": client,
        }


def test_it_invokes_streams_and_batches(langchain: Any, there: dict[str, Any]) -> None:
    chat = langchain.ChatOpenAI(max_tokens=8, seed=1, include_response_headers=True, **there)
    whole = chat.invoke(STORY)
    assert whole.content
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] == 8
    assert whole.response_metadata["finish_reason"] == "length"
    assert "x-service-ignored-fields" not in whole.response_metadata["headers"]
    chunks = list(chat.stream(STORY))
    assert "".join(str(chunk.content) for chunk in chunks) == whole.content
    assert [c.usage_metadata["output_tokens"] for c in chunks if c.usage_metadata] == [8]
    assert [answer.content for answer in chat.batch([STORY, STORY])] == [whole.content] * 2


async def test_it_does_the_same_asynchronously(langchain: Any, there: dict[str, Any]) -> None:
    async with httpx2.AsyncClient() as client:
        chat = langchain.ChatOpenAI(max_tokens=8, seed=1, http_async_client=client, **there)
        whole = await chat.ainvoke(STORY)
        streamed = [chunk async for chunk in chat.astream(STORY)]
    assert "".join(str(chunk.content) for chunk in streamed) == whole.content != ""


def test_a_pydantic_model_shapes_its_answer_by_schema(
    langchain: Any, there: dict[str, Any]
) -> None:
    chat = langchain.ChatOpenAI(**there)
    assert isinstance(chat.with_structured_output(Weather).invoke(STORY), Weather)
    named = chat.with_structured_output(Weather, method="json_schema")
    assert isinstance(named.invoke(STORY), Weather)


def test_calling_a_function_for_it_is_refused_by_name(
    langchain: Any, there: dict[str, Any]
) -> None:
    calling = langchain.ChatOpenAI(**there).with_structured_output(
        Weather, method="function_calling"
    )
    with pytest.raises(openai.BadRequestError, match=r"tool_choice, tools: not honoured"):
        calling.invoke(STORY)


def test_it_reads_log_probabilities(langchain: Any, there: dict[str, Any]) -> None:
    chat = langchain.ChatOpenAI(max_tokens=1, logprobs=True, top_logprobs=2, **there)
    answer = chat.invoke(STORY)
    (token,) = answer.response_metadata["logprobs"]["content"]
    assert token["token"] == answer.content
    assert len(token["top_logprobs"]) == 2


def test_its_text_model_completes(langchain: Any, there: dict[str, Any]) -> None:
    text = langchain.OpenAI(max_tokens=8, seed=1, **there)
    whole = text.invoke("One day")
    assert whole
    assert "".join(text.stream("One day")) == whole


def test_its_embeddings_send_texts_when_told_to(langchain: Any, there: dict[str, Any]) -> None:
    embeddings = langchain.OpenAIEmbeddings(check_embedding_ctx_length=False, **there)
    one, other = embeddings.embed_documents(["The sea", "A mountain path"])
    assert len(one) == len(other) > 1
    assert one != other
    assert embeddings.embed_query("The sea") == pytest.approx(one)


def test_its_embeddings_send_token_ids_by_default_which_are_refused(
    langchain: Any, there: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bytewise = tiktoken.Encoding(
        "bytewise",
        pat_str=".",
        mergeable_ranks={bytes([byte]): byte for byte in range(256)},
        special_tokens={},
    )
    # the library would fetch a vocabulary from elsewhere
    monkeypatch.setattr(tiktoken, "get_encoding", lambda _: bytewise)
    with pytest.raises(openai.BadRequestError, match="token ids are not taken") as refused:
        langchain.OpenAIEmbeddings(**there).embed_documents(["The sea"])
    assert refused.value.param == "input[0]"


def test_it_raises_its_own_typed_errors(langchain: Any, there: dict[str, Any]) -> None:
    with pytest.raises(openai.NotFoundError, match="nobody"):
        langchain.ChatOpenAI(**there | {"model": "nobody"}).invoke(STORY)
    with pytest.raises(openai.BadRequestError) as long:
        langchain.ChatOpenAI(max_tokens=5000, **there).invoke(STORY)
    assert long.value.code == "context_length_exceeded"
