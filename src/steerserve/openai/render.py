"""Makes answers from the events of the engine, as chunks of a stream or as one body, and writes refusals in the form of
the OpenAI API."""

from __future__ import annotations

import asyncio
import base64
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response

from steerserve.control import retry
from steerserve.control.inference.generate import (
    Embedded,
    Generation,
    Outcome,
    Piece,
    Run,
    Scored,
    Started,
)
from steerserve.control.inference.positions import TextWithReadings, paired
from steerserve.control.inference.runs import Runs
from steerserve.control.metrics import Metrics
from steerserve.errors import Refusal
from steerserve.http.disconnect import Disconnected, unless_disconnected
from steerserve.http.event_stream import COMMENT, EventStream, event, with_waits
from steerserve.openai import headers as service_headers
from steerserve.openai.chunks import Chunks
from steerserve.openai.intake import Accepted, Kind
from steerserve.openai.shape import (
    UNSTEERED,
    AnswerChoice,
    AnswerShape,
    activations,
    logprobs,
    readings,
    steering,
)
from steerserve.parts.activations.form import ACTIVATIONS, Reading
from steerserve.parts.readings.form import READINGS
from steerserve.rules.inference.intent import EmbedIntent, GenerateIntent, ScoreIntent
from steerserve.settings import Settings

log = structlog.get_logger(__name__)
DONE = b"data: [DONE]\n\n"
_json = msgspec.json.Encoder().encode

LabelsOf = Callable[[str], Awaitable[Mapping[int, str]]]


@dataclass(frozen=True, slots=True)
class AnswerParts:
    """The parts of the service that make an answer. `metrics` counts the failures of streams, whose status 200 was sent
    before; `labels_of` gives the labels of an SAE's features; `runs` records answers."""

    generation: Generation
    settings: Settings
    metrics: Metrics
    labels_of: LabelsOf
    runs: Runs


async def answer(
    request: Request,
    accepted: Accepted[GenerateIntent | ScoreIntent],
    shape: AnswerShape,
    parts: AnswerParts,
) -> Response:
    """The response to a generating or scoring request.

    No status is sent before the engine's Started, so that every refusal has its own status. A client that goes away
    cancels the request, whether it streams, waits for one body, or still queues.
    """
    intent = accepted.intent

    async def respond(stack: AsyncExitStack, opened: Opened) -> Response:
        base = {
            "id": intent.answer_id,
            "created": int(time.time()),
            "model": opened.run.model_name,
        }
        if intent.is_stream:
            frames = _stream(stack, base, shape, intent, opened, parts)
            return EventStream(frames, stack.aclose, opened.headers)
        body = await unless_disconnected(request, _fold(base, shape, intent, opened))
        return await finished(stack, body, opened)

    return await serve(request, accepted, parts, respond)


async def embed(request: Request, accepted: Accepted[EmbedIntent], parts: AnswerParts) -> Response:
    """The response to an embeddings request."""

    async def respond(stack: AsyncExitStack, opened: Opened) -> Response:
        body = await unless_disconnected(request, _vectors(accepted.intent, opened))
        return await finished(stack, body, opened)

    return await serve(request, accepted, parts, respond)


@dataclass(frozen=True, slots=True)
class Opened:
    """A request that the engine has started, the headers of its answer, and its remaining events. `labels` are the
    labels of the SAE whose activations the request asks for."""

    run: Run
    started: Started
    headers: dict[str, str]
    events: AsyncIterator[Started | Outcome]
    labels: Mapping[int, str]


async def serve(
    request: Request,
    accepted: Accepted[Kind],
    parts: AnswerParts,
    respond: Callable[[AsyncExitStack, Opened], Awaitable[Response]],
) -> Response:
    """What `respond` makes of a request that the engine has started. The request is cancelled where that fails, and
    where the client goes away."""
    stack = AsyncExitStack()
    try:
        opened = await unless_disconnected(request, _start(stack, accepted, parts))
        return await respond(stack, opened)
    except Disconnected:
        await stack.aclose()
        return Response(status_code=499)
    except BaseException:
        await stack.aclose()
        raise


async def finished(stack: AsyncExitStack, body: dict[str, object], opened: Opened) -> Response:
    """An answer of one body, after its request has given back what it held."""
    await stack.aclose()
    is_changed = bool(body.get("steering_changed"))
    headers = {**opened.headers, **(service_headers.CHANGED if is_changed else {})}
    return Response(_json(body), media_type="application/json", headers=headers)


async def _start(stack: AsyncExitStack, accepted: Accepted[Kind], parts: AnswerParts) -> Opened:
    sent = accepted.sent
    intent = parts.runs.prepared(accepted.intent, accepted.model, sent)
    run = await stack.enter_async_context(parts.generation.open(intent, accepted.model))
    events = aiter(run.events)
    started = await anext(events)
    assert isinstance(started, Started)
    if started.unused:
        log.warning("request_fields_unused", locations=started.unused)
        intent = replace(intent, ignored=(*intent.ignored, *started.unused))
    headers = service_headers.of(
        intent,
        run,
        limit=parts.settings.ignored_fields_header_max_bytes,
        is_shared=parts.settings.enable_continuous_batching,
    )
    tapped = run.admitted.tapped
    labels = await parts.labels_of(tapped.sae_id) if tapped else {}
    watched = parts.runs.watched(sent, intent, run, started, events)
    return Opened(run, started, headers, watched, labels)


async def gather(
    intent: GenerateIntent | ScoreIntent, opened: Opened
) -> tuple[list[AnswerChoice], dict[str, object]]:
    """The whole choices of an answer, and its `service` object, which is empty where the request asks for none."""
    choices = [AnswerChoice() for _ in range(intent.choices)]
    service: dict[str, object] = {}
    async for outcome in opened.events:
        match outcome:
            case Piece():
                choices[outcome.choice].take(outcome)
                service |= activations_of(intent, opened, outcome)
            case Scored() if isinstance(intent, ScoreIntent):
                choices[outcome.choice].score(outcome, intent)
                service |= activations_of(intent, opened, outcome)
    service |= logprobs_of(intent, choices)
    return choices, service | readings_of(opened, choices)


async def _fold(
    base: dict[str, object],
    shape: AnswerShape,
    intent: GenerateIntent | ScoreIntent,
    opened: Opened,
) -> dict[str, object]:
    choices, service = await gather(intent, opened)
    return {
        "id": base["id"],
        "object": shape.whole,
        "created": base["created"],
        "model": base["model"],
        "choices": [shape.choice(i, choice, intent) for i, choice in enumerate(choices)],
        "usage": _usage(opened.started, choices),
        "system_fingerprint": opened.run.fingerprint,
        **steering(opened.run, intent, choices),
        **({"service": service} if service else {}),
    }


async def _stream(
    stack: AsyncExitStack,
    base: dict[str, object],
    shape: AnswerShape,
    intent: GenerateIntent | ScoreIntent,
    opened: Opened,
    parts: AnswerParts,
) -> AsyncIterator[bytes]:
    """The server-sent events of an answer: the role, the pieces of text, the finish reason with the usage, `[DONE]`. A
    failure is sent as an error event before `[DONE]`. Activations have a chunk at the end, or with `stream_positions`
    each position's are in the chunk of its token, as readings always are."""

    chunks = Chunks(base, shape)
    is_streamed = intent.activations is not None and intent.activations.is_streamed
    async with stack:
        choices = [AnswerChoice() for _ in range(intent.choices)]
        service: dict[str, object] = {}
        if shape.is_chat:
            for index in range(len(choices)):
                yield chunks.chunk([shape.opening(index)])
        try:
            parted = paired(opened.events) if is_streamed else opened.events
            async for written in with_waits(parted):
                piece: Started | Outcome | None
                if isinstance(written, TextWithReadings):
                    piece, read = written.piece, _read(intent, opened, written.readings)
                else:
                    piece, read = written, {}
                match piece:
                    case Piece():
                        index = piece.choice
                        choices[index].take(piece)
                        if not is_streamed:
                            service |= activations_of(intent, opened, piece)
                        read = _with_readings(opened, piece, read, len(choices))
                        if read:
                            yield chunks.chunk([shape.delta(index, piece.text, None)], **read)
                        elif piece.text:
                            yield chunks.text(index, piece.text)
                        if piece.finish is None:
                            continue
                        end = shape.delta(index, "", piece.finish)
                    case Scored():
                        assert isinstance(intent, ScoreIntent)
                        index = piece.choice
                        choices[index].score(piece, intent)
                        if not is_streamed:
                            service |= activations_of(intent, opened, piece)
                        end = shape.choice(index, choices[index], intent)
                    case _:
                        yield COMMENT if written is None else chunks.chunk([], **read)
                        continue
                yield chunks.chunk([end], **_ending(opened, intent, choices))
            service |= logprobs_of(intent, choices)
            if service:
                yield chunks.chunk([], service=service)
        except Exception as error:
            yield event(_json(failure(error, parts)))
        yield DONE


def _ending(
    opened: Opened, intent: GenerateIntent | ScoreIntent, choices: list[AnswerChoice]
) -> dict[str, object]:
    """What the chunk with a finish reason has beside it: after the last choice, the usage, and what there is to say
    about the steering."""
    if not all(choice.finish for choice in choices):
        return {}
    usage = _usage(opened.started, choices)
    return {"usage": usage, **steering(opened.run, intent, choices)}


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


async def _vectors(intent: EmbedIntent, opened: Opened) -> dict[str, object]:
    vectors: dict[int, msgspec.Raw] = {}
    async for outcome in opened.events:
        assert isinstance(outcome, Embedded)
        vectors[outcome.choice] = _embedding(outcome.vector, intent.is_base64)
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


def service_of(
    intent: GenerateIntent | ScoreIntent, opened: Opened, readings: Sequence[Reading]
) -> dict[str, object]:
    asked = intent.activations
    assert asked is not None
    read_point = UNSTEERED if isinstance(intent, ScoreIntent) else asked.read_point
    told = activations(
        opened.run, readings, read_point, opened.labels, is_streamed=asked.is_streamed
    )
    return {"sae_activations": told}


def activations_of(
    intent: GenerateIntent | ScoreIntent, opened: Opened, outcome: Piece | Scored
) -> dict[str, object]:
    """The activations that come with an outcome."""
    found = ACTIVATIONS.read(outcome.parts)
    return {} if found is None else service_of(intent, opened, found)


def logprobs_of(
    intent: GenerateIntent | ScoreIntent, choices: Sequence[AnswerChoice]
) -> dict[str, object]:
    """The log-probabilities of the generated tokens, where they are asked for."""
    if isinstance(intent, ScoreIntent) or intent.logprobs is None:
        return {}
    return {"logprobs": logprobs(choices)}


def readings_of(opened: Opened, choices: Sequence[AnswerChoice]) -> dict[str, object]:
    """The readings of the generated tokens, where they are asked for."""
    if not opened.run.admitted.watched:
        return {}
    read = {index: choice.readings for index, choice in enumerate(choices)}
    return {"readings": readings(opened.run, read, has_several=len(choices) > 1)}


def _with_readings(
    opened: Opened, piece: Piece, read: dict[str, object], choices: int
) -> dict[str, object]:
    """What a chunk has beside its choices, with the readings of its token."""
    found = READINGS.read(piece.parts)
    if found is None:
        return read
    told = readings(opened.run, {piece.choice: [found]}, has_several=choices > 1)
    service = read.get("service")
    return {"service": {**(service if isinstance(service, dict) else {}), "readings": told}}


def _read(
    intent: GenerateIntent | ScoreIntent, opened: Opened, readings: Sequence[Reading]
) -> dict[str, object]:
    """What a chunk has beside its choices: the readings of its token, where there are any."""
    return {"service": service_of(intent, opened, readings)} if readings else {}


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
