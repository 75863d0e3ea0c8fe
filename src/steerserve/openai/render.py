"""Makes answers from the events of the engine, as chunks of a stream or as one body, and writes refusals in the form of
the OpenAI API."""

from __future__ import annotations

import asyncio
import base64
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response

from steerserve.control import retry
from steerserve.control.inference.asked import Asked
from steerserve.control.inference.generate import Generation, Run
from steerserve.control.inference.positions import late_parts, with_own_chunks
from steerserve.control.metrics import Metrics
from steerserve.errors import Refusal
from steerserve.http.disconnect import unless_disconnected
from steerserve.http.event_stream import COMMENT, EventStream, event, with_waits
from steerserve.messages import Embedded, Outcome, Piece, Scored, Started
from steerserve.nouns.runs.owner import Runs
from steerserve.openai import headers as service_headers
from steerserve.openai.chunks import Chunks
from steerserve.openai.intake import Accepted
from steerserve.openai.shape import (
    AnswerChoice,
    AnswerShape,
    beside,
    service,
    service_of_token,
)
from steerserve.settings import Settings

log = structlog.get_logger(__name__)
DONE = b"data: [DONE]\n\n"
_json = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class AnswerParts:
    """The parts of the service that make an answer. `metrics` counts the failures of streams, whose status 200 was sent
    before; `runs` records answers."""

    generation: Generation
    settings: Settings
    metrics: Metrics
    runs: Runs


async def answer(
    request: Request,
    accepted: Accepted,
    shape: AnswerShape,
    parts: AnswerParts,
) -> Response:
    """The response to a generating or scoring request.

    No status is sent before the engine's Started, so that every refusal has its own status. A client that goes away
    cancels the request, whether it streams, waits for one body, or still queues.
    """
    asked = accepted.asked

    async def respond(stack: AsyncExitStack, opened: Opened) -> Response:
        base = {
            "id": asked.answer_id,
            "created": int(time.time()),
            "model": opened.run.model_name,
        }
        if asked.is_stream:
            frames = _stream(stack, base, shape, asked, opened, parts)
            return EventStream(frames, stack.aclose, opened.headers)
        body = await unless_disconnected(request, _fold(base, shape, asked, opened))
        return await finished(stack, body, opened)

    return await serve(request, accepted, parts, respond)


async def embed(request: Request, accepted: Accepted, parts: AnswerParts) -> Response:
    """The response to an embeddings request."""

    async def respond(stack: AsyncExitStack, opened: Opened) -> Response:
        body = await unless_disconnected(request, _vectors(accepted.asked, opened))
        return await finished(stack, body, opened)

    return await serve(request, accepted, parts, respond)


@dataclass(frozen=True, slots=True)
class Opened:
    """A request that the engine has started, the headers of its answer, and its remaining events."""

    run: Run
    started: Started
    headers: dict[str, str]
    events: AsyncIterator[Started | Outcome]


async def serve(
    request: Request,
    accepted: Accepted,
    parts: AnswerParts,
    respond: Callable[[AsyncExitStack, Opened], Awaitable[Response]],
) -> Response:
    """What `respond` makes of a request that the engine has started. The request is cancelled where that fails, and
    where the client goes away."""
    stack = AsyncExitStack()
    try:
        opened = await unless_disconnected(request, _start(stack, accepted, parts))
        return await respond(stack, opened)
    except BaseException:
        await stack.aclose()
        raise


async def finished(stack: AsyncExitStack, body: dict[str, object], opened: Opened) -> Response:
    """An answer of one body, after its request has given back what it held."""
    await stack.aclose()
    is_changed = bool(body.get("steering_changed"))
    headers = {**opened.headers, **(service_headers.CHANGED if is_changed else {})}
    return Response(_json(body), media_type="application/json", headers=headers)


async def _start(stack: AsyncExitStack, accepted: Accepted, parts: AnswerParts) -> Opened:
    sent = accepted.sent
    asked = parts.runs.prepared(accepted.asked, accepted.model, sent)
    run = await stack.enter_async_context(parts.generation.open(asked, accepted.model))
    events = aiter(run.events)
    started = await anext(events)
    assert isinstance(started, Started)
    if started.unused:
        log.warning("request_fields_unused", locations=started.unused)
        asked = replace(asked, ignored=(*asked.ignored, *started.unused))
    headers = service_headers.answer_headers(
        asked,
        run,
        limit=parts.settings.ignored_fields_header_max_bytes,
        is_shared=parts.settings.enable_continuous_batching,
    )
    watched = parts.runs.watched(sent, asked, run, started, events)
    return Opened(run, started, headers, watched)


async def gather(asked: Asked, opened: Opened) -> tuple[list[AnswerChoice], dict[str, object]]:
    """The whole choices of an answer, and its `service` object, which is empty where the request asks for none."""
    choices = [AnswerChoice() for _ in range(asked.choices)]
    async for outcome in opened.events:
        match outcome:
            case Piece():
                choices[outcome.choice].take_piece(outcome)
            case Scored():
                choices[outcome.choice].score(outcome, asked)
    return choices, service(opened.run, choices)


async def _fold(
    base: dict[str, object],
    shape: AnswerShape,
    asked: Asked,
    opened: Opened,
) -> dict[str, object]:
    choices, told = await gather(asked, opened)
    return {
        "id": base["id"],
        "object": shape.whole,
        "created": base["created"],
        "model": base["model"],
        "choices": [shape.choice(i, choice, asked) for i, choice in enumerate(choices)],
        "usage": _usage(opened.started, choices),
        "system_fingerprint": opened.run.fingerprint,
        **beside(opened.run, asked, choices),
        **({"service": told} if told else {}),
    }


async def _stream(
    stack: AsyncExitStack,
    base: dict[str, object],
    shape: AnswerShape,
    asked: Asked,
    opened: Opened,
    parts: AnswerParts,
) -> AsyncIterator[bytes]:
    """The server-sent events of an answer: the role, the pieces of text, the finish reason with the usage, `[DONE]`. A
    failure is sent as an error event before `[DONE]`. What parts of the request tell has a chunk at the end, or is in
    the chunks of its tokens."""

    chunks = Chunks(base, shape)
    run, late = opened.run, late_parts(opened.run.admitted)
    async with stack:
        choices = [AnswerChoice() for _ in range(asked.choices)]
        if shape.is_chat:
            for index in range(len(choices)):
                yield chunks.chunk([shape.opening(index)])
        try:
            events = with_own_chunks(opened.events, late) if late else opened.events
            async for outcome in with_waits(events):
                if not isinstance(outcome, Piece | Scored):
                    yield COMMENT if outcome is None else chunks.chunk([])
                    continue
                index = outcome.choice
                if isinstance(outcome, Scored):
                    choices[index].score(outcome, asked)
                    end = shape.choice(index, choices[index], asked)
                else:
                    choices[index].take_piece(outcome)
                    told = service_of_token(run, outcome, len(choices)) if outcome.parts else {}
                    if told:
                        new = [shape.delta(index, outcome.text, None)] if outcome.text else []
                        yield chunks.chunk(new, service=told)
                    elif outcome.text:
                        yield chunks.text(index, outcome.text)
                    if outcome.finish is None:
                        continue
                    end = shape.delta(index, "", outcome.finish)
                yield chunks.chunk([end], **_ending(opened, asked, choices))
            at_end = service(run, choices, is_streamed=True)
            if at_end:
                yield chunks.chunk([], service=at_end)
        except Exception as error:
            yield event(_json(failure(error, parts)))
        yield DONE


def _ending(opened: Opened, asked: Asked, choices: list[AnswerChoice]) -> dict[str, object]:
    """What the chunk with a finish reason has beside it: after the last choice, the usage, and what there is to say
    about the steering."""
    if not all(choice.finish for choice in choices):
        return {}
    usage = _usage(opened.started, choices)
    return {"usage": usage, **beside(opened.run, asked, choices)}


def failure(error: Exception, parts: AnswerParts) -> dict[str, dict[str, object]]:
    """The error event of a stream which failed after its 200 was sent. An error that is no refusal is logged."""
    if isinstance(error, Refusal):
        refusal = error
    else:
        log.error("stream_failed", exc_info=error)
        refusal = Refusal("INTERNAL_ERROR", "an error inside the service")
    parts.metrics.failed(refusal.code)
    after = retry.seconds(parts.settings, refusal, refusal.row.v1, parts.metrics.defaulted)
    return in_stream(refusal, after)


async def _vectors(asked: Asked, opened: Opened) -> dict[str, object]:
    vectors: dict[int, msgspec.Raw] = {}
    async for outcome in opened.events:
        assert isinstance(outcome, Embedded)
        vectors[outcome.choice] = _embedding(outcome.vector, asked.is_base64)
        # other requests are served between two vectors, which are long
        await asyncio.sleep(0)
    tokens = sum(opened.started.prompt_tokens)
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": vectors[index]}
            for index in sorted(vectors)
        ],
        "model": opened.run.model_name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _embedding(vector: bytes, is_base64: bool) -> msgspec.Raw:
    """A vector of float32 as JSON."""
    if is_base64:
        return msgspec.Raw(_json(base64.b64encode(vector).decode()))
    return msgspec.Raw(_json([number for (number,) in struct.iter_unpack("<f", vector)]))


def _usage(started: Started, choices: list[AnswerChoice]) -> dict[str, int]:
    prompt, completion = sum(started.prompt_tokens), sum(choice.tokens for choice in choices)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def error_body(refusal: Refusal) -> dict[str, dict[str, object]]:
    """A refusal in the form of the OpenAI API. A refusal without details has no field `details`."""
    row = refusal.row
    error: dict[str, object] = {
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


def in_stream(refusal: Refusal, retry_after: int | None) -> dict[str, dict[str, object]]:
    """The error event of a refusal inside a stream. The headers were sent before, so `retry_after` is a field here."""
    body = error_body(refusal)
    if retry_after is not None:
        body["error"]["retry_after"] = retry_after
    return body
