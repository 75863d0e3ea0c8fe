"""Engine events to an answer: chunks of a stream, or their fold into one body; and refusals in the protocol's form."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from steerserve.control.generate import Generation, Piece, Run, Started
from steerserve.errors import Refusal
from steerserve.rules.intent import Generate
from steerserve.v1 import headers as service_headers
from steerserve.v1.disconnect import Disconnected, unless_disconnected

log = structlog.get_logger(__name__)
DONE = b"data: [DONE]\n\n"
_json = msgspec.json.Encoder().encode

RetryAfter = Callable[[Refusal], int | None]


@dataclass(slots=True)
class Choice:
    """One choice so far."""

    text: list[str] = field(default_factory=list)
    tokens: int = 0
    finish: str | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """How a route writes its objects."""

    prefix: str
    whole: str
    chunk: str
    is_chat: bool

    def choice(self, index: int, text: str, finish: str | None) -> dict[str, Any]:
        if self.is_chat:
            body: dict[str, Any] = {"message": {"role": "assistant", "content": text}}
        else:
            body = {"text": text}
        return {"index": index, **body, "finish_reason": finish}

    def delta(self, index: int, text: str, finish: str | None) -> dict[str, Any]:
        if self.is_chat:
            body: dict[str, Any] = {"delta": {"content": text} if text else {}}
        else:
            body = {"text": text}
        return {"index": index, **body, "finish_reason": finish}


CHAT = Shape("chatcmpl", "chat.completion", "chat.completion.chunk", is_chat=True)
COMPLETION = Shape("cmpl", "text_completion", "text_completion", is_chat=False)


@dataclass(frozen=True, slots=True)
class Door:
    """What answering needs of the service."""

    generation: Generation
    header_limit: int
    retry_after: RetryAfter


async def answer(request: Request, intent: Generate, shape: Shape, door: Door) -> Response:
    """The response to a generating request.

    It waits for Started before any status is sent, so that every refusal has its own status. A client that goes away
    cancels the request, whether it streams, waits for one body, or still queues.
    """
    stack = AsyncExitStack()
    try:
        run, started, events = await unless_disconnected(request, _start(stack, intent, door))
        headers = service_headers.of(intent, door.header_limit)
        base = {
            "id": f"{shape.prefix}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": run.model_name,
        }
        if intent.is_stream:
            frames = _stream(stack, base, shape, intent, started, events, door)
            return _Stream(stack, frames, headers | _LIVE)
        body = await unless_disconnected(request, _fold(base, shape, intent, run, started, events))
        await stack.aclose()
        return Response(_json(body), media_type="application/json", headers=headers)
    except Disconnected:
        await stack.aclose()
        return Response(status_code=499)
    except BaseException:
        await stack.aclose()
        raise


class _Stream(StreamingResponse):
    """A stream whose request ends with it, even when nobody ever reads a byte."""

    def __init__(
        self, stack: AsyncExitStack, frames: AsyncIterator[bytes], headers: dict[str, str]
    ) -> None:
        super().__init__(frames, media_type="text/event-stream", headers=headers)
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._stack.aclose()


_LIVE = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


async def _start(
    stack: AsyncExitStack, intent: Generate, door: Door
) -> tuple[Run, Started, AsyncIterator[Started | Piece]]:
    run = await stack.enter_async_context(door.generation.open(intent))
    events = aiter(run.events)
    started = await anext(events)
    assert isinstance(started, Started)
    return run, started, events


async def _fold(
    base: dict[str, Any],
    shape: Shape,
    intent: Generate,
    run: Run,
    started: Started,
    events: AsyncIterator[Started | Piece],
) -> dict[str, Any]:
    choices = [Choice() for _ in range(intent.choices)]
    async for piece in events:
        assert isinstance(piece, Piece)
        _take(choices[piece.choice], piece)
    return {
        "id": base["id"],
        "object": shape.whole,
        "created": base["created"],
        "model": base["model"],
        "choices": [shape.choice(i, "".join(c.text), c.finish) for i, c in enumerate(choices)],
        "usage": _usage(started, choices),
        "system_fingerprint": run.fingerprint,
    }


async def _stream(
    stack: AsyncExitStack,
    base: dict[str, Any],
    shape: Shape,
    intent: Generate,
    started: Started,
    events: AsyncIterator[Started | Piece],
    door: Door,
) -> AsyncIterator[bytes]:
    """Server-sent events: the role, the text, the finish with the usage, `[DONE]`; an error event where it fails."""

    def chunk(choices: list[dict[str, Any]], **more: Any) -> bytes:
        return (
            b"data: " + _json({**base, "object": shape.chunk, "choices": choices, **more}) + b"\n\n"
        )

    async with stack:
        choices = [Choice() for _ in range(intent.choices)]
        if shape.is_chat:
            opening = {
                "index": 0,
                "delta": {"role": "assistant", "content": ""},
                "finish_reason": None,
            }
            yield chunk([opening])
        try:
            async for piece in events:
                assert isinstance(piece, Piece)
                _take(choices[piece.choice], piece)
                if piece.finish is None:
                    yield chunk([shape.delta(piece.choice, piece.text, None)])
                    continue
                if piece.text:
                    yield chunk([shape.delta(piece.choice, piece.text, None)])
                is_last = all(choice.finish for choice in choices)
                usage = {"usage": _usage(started, choices)} if is_last else {}
                yield chunk([shape.delta(piece.choice, "", piece.finish)], **usage)
        except Refusal as refusal:
            yield b"data: " + _json(in_stream(refusal, door.retry_after(refusal))) + b"\n\n"
        except Exception:
            log.exception("stream_failed")
            broken = Refusal("INTERNAL_ERROR", "an error inside the service")
            yield b"data: " + _json(in_stream(broken, None)) + b"\n\n"
        yield DONE


def _take(choice: Choice, piece: Piece) -> None:
    choice.text.append(piece.text)
    choice.tokens = piece.tokens
    choice.finish = piece.finish


def _usage(started: Started, choices: list[Choice]) -> dict[str, int]:
    prompt, completion = sum(started.prompt_tokens), sum(choice.tokens for choice in choices)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def error_body(refusal: Refusal) -> dict[str, Any]:
    """A refusal in the protocol's form; `details` is left out where there are none."""
    row = refusal.row
    error: dict[str, Any] = {
        "message": refusal.message,
        "type": row.v1_type,
        "code": row.v1_code,
        "param": refusal.param,
    }
    if refusal.details:
        error["details"] = refusal.details
    return {"error": error}


def error_bytes(refusal: Refusal) -> bytes:
    return _json(error_body(refusal))


def in_stream(refusal: Refusal, retry_after: int | None) -> dict[str, Any]:
    """A refusal after the 200 was sent; `retry_after` stands in for the header."""
    body = error_body(refusal)
    if retry_after is not None:
        body["error"]["retry_after"] = retry_after
    return body
