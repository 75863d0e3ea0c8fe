"""Chats with OpenAI-compatible endpoints of others. Only the addresses of a setting are asked."""

from __future__ import annotations

import asyncio
import os

import httpx2
import msgspec

from steerserve.errors import Refusal
from steerserve.rules.bounds import (
    LABEL_ANSWER_BYTES,
    LABEL_ANSWER_PARTS,
    LABEL_ANSWER_SECONDS,
)
from steerserve.settings import Settings
from steerserve.settings.checks import chat_endpoint

PARTS_AT_ONCE = 64
"""Parts of an answer that are read before others have their turn. A part takes about 50 microseconds."""

FIELD = "endpoint.base_url"


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message


class _Answer(msgspec.Struct):
    choices: list[_Choice]


class ChatEndpoint:
    """One endpoint at `url`, and the key that is sent to it."""

    def __init__(self, url: str, key: str | None) -> None:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._url = url
        self._http = httpx2.AsyncClient(
            headers=headers | {"Accept-Encoding": "identity"},
            timeout=httpx2.Timeout(LABEL_ANSWER_SECONDS),
            # a key goes to the address that the operator has named, and to no proxy or other address
            trust_env=False,
            follow_redirects=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(self, model: str, text: str, max_tokens: int) -> str:
        """The answer to a text, at temperature 0.

        Raises:
            Refusal: LABEL_ENDPOINT_FAILED. No text of the endpoint is in it.
        """
        body: dict[str, object] = {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": max_tokens,
            "temperature": 0,
        }
        try:
            async with asyncio.timeout(LABEL_ANSWER_SECONDS):
                content = await self._content(body)
            choices = msgspec.json.decode(content, type=_Answer).choices
        except TimeoutError:
            why = f"its answer takes longer than {LABEL_ANSWER_SECONDS:g} s"
            raise _failed(why, self._url) from None
        except httpx2.HTTPError as error:
            raise _failed(f"it cannot be asked: {type(error).__name__}", self._url) from None
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise _failed("its answer is no chat completion", self._url) from None
        return (choices[0].message.content if choices else None) or ""

    async def _content(self, body: dict[str, object]) -> bytes:
        content, count = bytearray(), 0
        address = f"{self._url}/chat/completions"
        async with self._http.stream("POST", address, json=body) as answer:
            if answer.status_code != httpx2.codes.OK:
                raise _failed(f"it answers {answer.status_code}", self._url)
            async for part in answer.aiter_bytes():
                content += part
                count += 1
                if len(content) > LABEL_ANSWER_BYTES:
                    why = f"its answer has more than {LABEL_ANSWER_BYTES} bytes"
                    raise _failed(why, self._url)
                if count > LABEL_ANSWER_PARTS:
                    why = f"its answer comes in more than {LABEL_ANSWER_PARTS} parts"
                    raise _failed(why, self._url)
                if count % PARTS_AT_ONCE == 0:
                    # parts that arrived together are read without a wait
                    await asyncio.sleep(0)
        return bytes(content)


class ChatEndpoints:
    """The endpoints that may be asked."""

    def __init__(self, settings: Settings) -> None:
        self._names = dict(map(chat_endpoint, settings.label_endpoints))

    def open(self, base_url: str, api_key_env: str | None) -> ChatEndpoint:
        """An endpoint of the setting LABEL_ENDPOINTS, with the key in the variable that the setting names for it.

        Raises:
            Refusal: LABEL_ENDPOINT_REFUSED for another address or another variable; LABEL_ENDPOINT_FAILED where the
                variable is not set.
        """
        url = base_url.rstrip("/")
        if url not in self._names:
            raise _refused(FIELD, "is not in the setting LABEL_ENDPOINTS")
        name = self._names[url]
        if api_key_env is not None and api_key_env != name:
            raise _refused(
                "endpoint.api_key_env", "is not the variable that LABEL_ENDPOINTS has for it"
            )
        key = None if name is None else os.environ.get(name)
        if name is not None and not key:
            raise _failed(f"the variable {name} is not set", url)
        return ChatEndpoint(url, key)


def _refused(param: str, why: str) -> Refusal:
    return Refusal("LABEL_ENDPOINT_REFUSED", f"{param} {why}", param=param)


def _failed(why: str, url: str) -> Refusal:
    return Refusal("LABEL_ENDPOINT_FAILED", f"the endpoint {url}: {why}", base_url=url)
