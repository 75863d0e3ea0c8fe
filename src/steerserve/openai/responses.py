"""Writes the answer to a chat in the form of the Responses API. No response is stored."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from starlette.requests import Request
from starlette.responses import Response

from steerserve.control.inference.asked import Asked
from steerserve.errors import Refusal
from steerserve.http.disconnect import unless_disconnected
from steerserve.http.event_stream import COMMENT, EventStream, with_waits
from steerserve.messages import Piece
from steerserve.openai import bodies, render
from steerserve.openai.intake import Accepted
from steerserve.openai.render import AnswerParts, Opened
from steerserve.openai.response_body import as_sent
from steerserve.openai.response_shape import Events, ResponseShape, status_of
from steerserve.openai.shape import AnswerChoice, beside, service


async def answer(
    request: Request,
    accepted: Accepted,
    body: bodies.ResponseBody,
    parts: AnswerParts,
) -> Response:
    """The response to a request, whole or as the events of a stream."""
    asked = accepted.asked

    async def respond(stack: AsyncExitStack, opened: Opened) -> Response:
        run = opened.run
        shape = ResponseShape(
            body,
            asked.answer_id,
            int(time.time()),
            run.model_name,
            run.fingerprint,
            run.admitted.parts,
        )
        if asked.is_stream:
            frames = _stream(stack, shape, asked, opened, parts)
            return EventStream(frames, stack.aclose, opened.headers)
        (choice,), told = await unless_disconnected(request, render.gather(asked, opened))
        return await render.finished(stack, _whole(shape, choice, asked, opened, told), opened)

    return await render.serve(request, accepted, parts, respond)


def _whole(
    shape: ResponseShape,
    choice: AnswerChoice,
    asked: Asked,
    opened: Opened,
    told: dict[str, object],
) -> dict[str, object]:
    more = beside(opened.run, asked, [choice]) | ({"service": told} if told else {})
    return shape.whole(choice, sum(opened.started.prompt_tokens), **more)


async def _stream(
    stack: AsyncExitStack,
    shape: ResponseShape,
    asked: Asked,
    opened: Opened,
    parts: AnswerParts,
) -> AsyncIterator[bytes]:
    """The events of a response: it begins, its message and the part with the text begin, the pieces of text, and the
    ends of all of them. A failure ends the stream with `response.failed`."""
    events, choice = Events(shape.item_id), AnswerChoice()
    async with stack:
        for kind in ("response.created", "response.in_progress"):
            yield events.write(kind, response=shape.begun())
        begun = shape.item("in_progress")
        yield events.write("response.output_item.added", output_index=0, item=begun)
        yield events.of_text("response.content_part.added", part=shape.part(choice))
        try:
            async for outcome in with_waits(opened.events):
                match outcome:
                    case None:
                        yield COMMENT
                    case Piece():
                        choice.take_piece(outcome)
                        if outcome.text:
                            yield events.of_text(
                                "response.output_text.delta", delta=outcome.text, logprobs=[]
                            )
            text, status = "".join(choice.text), status_of(choice)
            logprobs = shape.logprobs(choice)
            yield events.of_text("response.output_text.done", text=text, logprobs=logprobs)
            yield events.of_text("response.content_part.done", part=shape.part(choice))
            item = shape.item(status, choice)
            yield events.write("response.output_item.done", output_index=0, item=item)
            whole = _whole(shape, choice, asked, opened, service(opened.run, [choice]))
            yield events.write(f"response.{status}", response=whole)
        except Exception as error:
            told = as_sent(error) if isinstance(error, Refusal) else error
            fault = render.failure(told, parts)["error"]
            yield events.write("response.failed", response=shape.failed(choice, fault))
