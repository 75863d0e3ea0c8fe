"""The HTTP client of llama.cpp's server: tokens, completions and vectors. This module knows nothing of requests and
choices."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import httpx2
import msgspec

from steerserve import messages as m
from steerserve.errors import Refusal
from steerserve.rules.text_offsets import BROKEN

COLDEST = 1e-4
"""Temperatures below this are greedy, as in the checkpoint engine."""

FIRST_LOOK = 0.005
LONGEST_PAUSE = 0.25
ANSWER_BYTES = 1 << 26
"""The most bytes in a body, or in a line of a completion. The last line of a completion repeats the prompt."""

SPARE_LINES = 1024
"""How many lines a completion may have beside one for each token of the prompt and each new token."""

MESSAGE_CHARACTERS = 200
SEPARATOR = "\u241f"
"""The symbol for a unit separator, which hardly any token has in its text."""

TEXTS_BATCH = 1000
"""How many tokens the server is asked for at once when each is to have its own text."""

LARGEST = 3.4e38
"""The largest value of a vector. Larger numbers are not finite in float32."""

_DATA = b"data:"
_FINISHES: dict[str, m.FinishReason] = {"eos": "stop", "word": "stop", "limit": "length"}

Answer = TypeVar("Answer")


class Lost(Exception):
    """The connection broke, or the answer cannot be read: the engine has ended or is broken."""


class PromptProgress(msgspec.Struct):
    """How many of the `total` tokens of a prompt were `processed`, of which `cache` were in the cache, in `time_ms`."""

    total: int = 0
    cache: int = 0
    processed: int = 0
    time_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """New text of a completion. `count` is the number of tokens of the completion so far, `tokens` are the new ones;
    `finish` is None, `stop` or `length`. `progress` is set while the prompt is read."""

    text: str
    count: int
    tokens: list[int]
    finish: m.FinishReason | None = None
    progress: PromptProgress | None = None


def sampling_fields(wanted: m.Sampling, context: int) -> dict[str, object]:
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
    """A server at `url` that accepts requests with `key`. Every answer is bounded, and has the form that the server
    documents; any other answer is `Lost`."""

    def __init__(self, url: str, key: str) -> None:
        self._http = httpx2.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {key}", "Accept-Encoding": "identity"},
            timeout=httpx2.Timeout(None),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=16),
            # a request to the loopback address must not go through a proxy of the environment
            trust_env=False,
            # and needs no certificates, whose reading would hold up the event loop
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def alive(self) -> None:
        """Return when the server has answered that it is alive."""
        async with self._answer("GET", "/health") as response:
            await _body(response)

    async def tokenize(self, text: str, *, special: bool) -> list[int]:
        """The tokens of a text; `special` adds the special tokens that the tokenizer puts around a text."""
        body = {"content": text, "add_special": special, "parse_special": True}
        return (await self._post("/tokenize", body, _Tokenized)).tokens

    async def pieces(self, text: str, *, special: bool) -> list[tuple[int, str]]:
        """The tokens of a text, each with its own text. A token that has a part of a character has U+FFFD there."""
        body = {"content": text, "add_special": special, "parse_special": True, "with_pieces": True}
        answer = await self._post("/tokenize", body, _Spelled)
        return [(one.id, _text(one.piece)) for one in answer.tokens]

    async def text(self, tokens: list[int]) -> str:
        """The text that tokens stand for."""
        return (await self._post("/detokenize", {"tokens": tokens}, _Detokenized)).content

    async def texts(self, tokens: list[int]) -> list[str]:
        """The text of each token by itself. The server joins the texts of all tokens that it is asked for, so a batch
        of tokens is sent with a separator before each."""
        separator = await self.tokenize(SEPARATOR, special=False)
        shown = await self.text(separator) if separator else ""
        batch = TEXTS_BATCH if _separates(shown) else 1
        texts: list[str] = []
        for at in range(0, len(tokens), batch):
            texts += await self._split(tokens[at : at + batch], separator, shown)
        return texts

    async def _split(self, tokens: list[int], separator: list[int], shown: str) -> list[str]:
        """The text of each token; `shown` is the text of the separator. Tokens whose own text has the separator are
        found by halving the list, and asked for one by one."""
        if len(tokens) == 1:
            return [await self.text(tokens)]
        joined = await self.text([one for token in tokens for one in (*separator, token)])
        _, *texts = joined.split(shown)
        if len(texts) == len(tokens):
            return texts
        half = len(tokens) // 2
        first = await self._split(tokens[:half], separator, shown)
        return first + await self._split(tokens[half:], separator, shown)

    async def embed(self, tokens: list[int]) -> bytes:
        """The mean of the last hidden layer over the tokens: little-endian float32, not normalised.

        Raises:
            Refusal: NON_FINITE_LOGITS, INTERNAL_ERROR.
        """
        body = {"content": tokens, "embd_normalize": -1}
        answer = await self._post("/embedding", body, list[_Embedding])
        if len(answer) != 1 or len(answer[0].embedding) != 1:
            raise Lost("the server answers no vector")
        vector = answer[0].embedding[0]
        finite = [value for value in vector if value is not None and abs(value) <= LARGEST]
        if not finite or len(finite) != len(vector):
            raise Refusal("NON_FINITE_LOGITS", "the model produced NaN or infinite states")
        return struct.pack(f"<{len(finite)}f", *finite)

    async def complete(
        self, tokens: list[int], max_tokens: int, slot: int, fields: dict[str, object]
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
        left = max_tokens + len(tokens) + SPARE_LINES
        async with self._answer("POST", "/completion", body) as response:
            async for line in _lines(response):
                left -= 1
                if left < 0:
                    raise Lost("the server writes without end")
                if line.startswith(_DATA):
                    chunk = _chunk(line[len(_DATA) :])
                    if chunk.count > max_tokens:
                        raise Lost("the server writes more tokens than it was asked for")
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
        async with self._answer("GET", "/slots") as response:
            states = _decoded(await _body(response), list[_SlotState])
        return any(state.id == slot and state.is_processing for state in states)

    async def _post(self, path: str, body: dict[str, object], kind: type[Answer]) -> Answer:
        async with self._answer("POST", path, body) as response:
            return _decoded(await _body(response), kind)

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, body: dict[str, object] | None = None
    ) -> AsyncIterator[httpx2.Response]:
        """A successful answer, before its body.

        Raises:
            Lost: the connection broke, here or inside the block.
            Refusal: INTERNAL_ERROR for another answer than a success.
        """
        try:
            async with self._http.stream(method, path, json=body) as response:
                if response.status_code != httpx2.codes.OK:
                    raise _failed(_decoded(await _body(response), _Failure).error)
                yield response
        except httpx2.HTTPError as error:
            raise Lost(str(error)) from error


class _Tokenized(msgspec.Struct):
    tokens: list[int]


class _SpelledToken(msgspec.Struct):
    """The server writes a piece that is no whole text as its bytes."""

    id: int
    piece: str | list[int]


class _Spelled(msgspec.Struct):
    tokens: list[_SpelledToken]


class _Detokenized(msgspec.Struct):
    content: str


class _Embedding(msgspec.Struct):
    """The server writes numbers that are not finite as null."""

    embedding: list[list[float | None]]


class _SlotState(msgspec.Struct):
    id: int
    is_processing: bool


class _Failure(msgspec.Struct):
    error: object = None


class _Written(msgspec.Struct):
    """One event of a completion: text, progress of the prompt, or an error."""

    content: str | None = None
    tokens_predicted: int = 0
    tokens: list[int] = []
    stop: bool = False
    stop_type: str = "none"
    prompt_progress: PromptProgress | None = None
    error: object = None


def _separates(text: str) -> bool:
    """Whether a text joins and splits other texts without a doubt: it is whole, and no end of it is its beginning too,
    so that it cannot appear where a text and a separator touch."""
    ends = (text[at:] for at in range(1, len(text)))
    return bool(text) and BROKEN not in text and not any(text.startswith(end) for end in ends)


def _text(piece: str | list[int]) -> str:
    if isinstance(piece, str):
        return piece
    return bytes(byte & 0xFF for byte in piece).decode("utf-8", "replace")


async def _body(response: httpx2.Response) -> bytes:
    body = bytearray()
    # the raw bytes, because a small packed body may unpack to a huge one
    async for data in response.aiter_raw():
        body += data
        if len(body) > ANSWER_BYTES:
            raise Lost("the server answers too much")
    return bytes(body)


async def _lines(response: httpx2.Response) -> AsyncIterator[bytes]:
    """The lines of a body that are not empty."""
    rest = bytearray()
    async for data in response.aiter_raw():
        rest += data
        if len(rest) > ANSWER_BYTES:
            raise Lost("the server answers too much")
        if b"\n" not in data:
            continue
        *whole, rest = rest.split(b"\n")
        for line in whole:
            if text := bytes(line).rstrip(b"\r"):
                yield text


def _decoded(body: bytes, kind: type[Answer]) -> Answer:
    """Raises:
    Lost: the body is not JSON of this form.
    """
    try:
        return msgspec.json.decode(body.decode("utf-8", "replace"), type=kind)
    except (msgspec.DecodeError, RecursionError):
        raise Lost("the server answers in another form than it documents") from None


def _chunk(data: bytes) -> Chunk:
    answer = _decoded(data, _Written)
    if answer.error is not None:
        raise _failed(answer.error)
    if answer.content is None:
        raise Lost("the server answers in another form than it documents")
    return Chunk(
        text=answer.content,
        count=answer.tokens_predicted,
        tokens=answer.tokens if answer.prompt_progress is None else [],
        finish=_FINISHES.get(answer.stop_type, "length") if answer.stop else None,
        progress=answer.prompt_progress,
    )


def _failed(error: object) -> Refusal:
    message = error.get("message") if isinstance(error, dict) else None
    said = "".join(c for c in str(message or "unknown")[:MESSAGE_CHARACTERS] if c.isprintable())
    return Refusal("INTERNAL_ERROR", f"the GGUF engine failed: {said}")
