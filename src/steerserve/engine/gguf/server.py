"""The HTTP client of llama.cpp's server: tokens, completions and vectors. This module knows nothing of requests and
choices."""

from __future__ import annotations

import asyncio
import json
import math
import struct
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from steerserve.engine.wire import messages as m
from steerserve.errors import Refusal

COLDEST = 1e-4
"""Temperatures below this are greedy, as in the checkpoint engine."""

FIRST_LOOK = 0.005
LONGEST_PAUSE = 0.25
_DATA = "data:"
_FINISHES = {"eos": "stop", "word": "stop", "limit": "length"}


class Lost(Exception):
    """The connection broke, or the answer cannot be read: the engine has ended or is broken."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """New text of a completion. `count` is the number of tokens of the completion so far, `tokens` are the new ones;
    `finish` is None, `stop` or `length`."""

    text: str
    count: int
    tokens: list[int]
    finish: str | None = None


def sampling_fields(wanted: m.Sampling, context: int) -> dict[str, Any]:
    """The fields that say how tokens are chosen: by a penalty over the whole context, temperature and nucleus, and
    nothing else."""
    is_greedy = wanted.temperature < COLDEST or wanted.top_p == 0.0
    return {
        "samplers": ["penalties", "temperature", "top_p"],
        "temperature": 0.0 if is_greedy else wanted.temperature,
        "top_p": 1.0 if is_greedy else wanted.top_p,
        "repeat_penalty": wanted.repetition_penalty,
        "repeat_last_n": context,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        # `samplers` leaves these out; they are set all the same, because a model file may name other defaults
        "top_k": 0,
        "min_p": 0.0,
        "typical_p": 1.0,
        "mirostat": 0,
        "dynatemp_range": 0.0,
        "dry_multiplier": 0.0,
        "xtc_probability": 0.0,
    }


class LlamaServer:
    """A server at `url` that accepts requests with `key`."""

    def __init__(self, url: str, key: str) -> None:
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=16),
            # a request to the loopback address must not go through a proxy of the environment
            trust_env=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def tokenize(self, text: str, *, special: bool) -> list[int]:
        """The tokens of a text; `special` adds the special tokens that the tokenizer puts around a text."""
        body = {"content": text, "add_special": special, "parse_special": True}
        answer = await self._post("/tokenize", body)
        return [int(token) for token in answer["tokens"]]

    async def embed(self, tokens: list[int]) -> bytes:
        """The mean of the last hidden layer over the tokens: little-endian float32, not normalised.

        Raises:
            Refusal: NON_FINITE_LOGITS, INTERNAL_ERROR.
        """
        answer = await self._post("/embedding", {"content": tokens, "embd_normalize": -1})
        vector = answer[0]["embedding"][0]
        if not vector or not all(_is_finite(value) for value in vector):
            raise Refusal("NON_FINITE_LOGITS", "the model produced NaN or infinite states")
        return struct.pack(f"<{len(vector)}f", *vector)

    async def complete(
        self, tokens: list[int], max_tokens: int, slot: int, fields: dict[str, Any]
    ) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks of a completion, at least one for each forward pass; the last has its `finish`.

        Raises:
            Refusal: INTERNAL_ERROR with the engine's own words.
        """
        body = {
            **fields,
            "prompt": tokens,
            "n_predict": max_tokens,
            "id_slot": slot,
            "cache_prompt": True,
            "stream": True,
            "return_progress": True,
        }
        async with self._stream("/completion", body) as response:
            async for line in response.aiter_lines():
                if line.startswith(_DATA):
                    chunk = _chunk(json.loads(line[len(_DATA) :]))
                    yield chunk
                    if chunk.finish is not None:
                        return
        raise Lost("the answer ended early")

    async def until_idle(self, slot: int) -> None:
        """Return when the server has stopped working on a slot. The server notices that a client has left only when it
        writes to that client."""
        pause = FIRST_LOOK
        while await self._is_busy(slot):
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _is_busy(self, slot: int) -> bool:
        try:
            response = await self._http.get("/slots")
            answer = response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise Lost(str(error)) from error
        return any(entry["id"] == slot and entry["is_processing"] for entry in answer)

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        try:
            response = await self._http.post(path, json=body)
            answer = response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise Lost(str(error)) from error
        if response.status_code != httpx.codes.OK:
            raise _failed(answer)
        return answer

    @asynccontextmanager
    async def _stream(self, path: str, body: dict[str, Any]) -> AsyncIterator[httpx.Response]:
        try:
            async with self._http.stream("POST", path, json=body) as response:
                if response.status_code != httpx.codes.OK:
                    raise _failed(json.loads(await response.aread()))
                yield response
        except (httpx.HTTPError, ValueError) as error:
            raise Lost(str(error)) from error


def _chunk(answer: dict[str, Any]) -> Chunk:
    if "error" in answer:
        raise _failed(answer)
    is_progress = "prompt_progress" in answer
    return Chunk(
        text=answer["content"],
        count=answer["tokens_predicted"],
        tokens=[] if is_progress else answer.get("tokens", []),
        finish=_FINISHES.get(answer["stop_type"], "length") if answer["stop"] else None,
    )


def _failed(answer: Any) -> Refusal:
    error = answer.get("error", {}) if isinstance(answer, dict) else {}
    message = str(error.get("message", "unknown"))[:200] if isinstance(error, dict) else "unknown"
    return Refusal("INTERNAL_ERROR", f"the GGUF engine failed: {message}")


def _is_finite(value: object) -> bool:
    """Whether a value is a finite number; the server writes other numbers as null."""
    return isinstance(value, int | float) and math.isfinite(value)
