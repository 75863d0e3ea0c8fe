"""One completion, or one text to embed, of a request to a GGUF model, and the events about it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from steerserve import messages as m
from steerserve.engines.gguf.server import Chunk
from steerserve.errors import Refusal
from steerserve.messages.stops import StopStrings
from steerserve.parts.registry import parts

Events = asyncio.Queue[m.Outcome | Exception]
"""The outcomes of the rows of a request, or the error that ends it."""


@dataclass(slots=True, eq=False)
class LlamaRow:
    """One completion or one text to embed: its prompt's tokens, its most new tokens, its stop strings with the texts of
    their tokens, whether a client still waits for it, and whether its request yields to others."""

    choice: int
    tokens: list[int]
    max_tokens: int
    stops: Sequence[str]
    stop_tokens: Mapping[int, str]
    is_wanted: bool = True
    is_sent: bool = False
    yields: bool = False
    task: asyncio.Task[None] | None = None

    def drop(self) -> None:
        """Note that no client waits for the row any more. A row that was sent to the server ends with its next token,
        and only then is its slot free."""
        self.is_wanted = False
        if self.task is not None and not self.is_sent:
            self.task.cancel()


async def until_finished(events: Events, choices: int) -> AsyncGenerator[m.Outcome, None]:
    while choices:
        event = await events.get()
        if isinstance(event, Exception):
            raise event
        choices -= m.is_last(event)
        yield event


def piece_of(stops: StopStrings, chunk: Chunk, number: int, row: LlamaRow) -> m.Piece:
    """The piece of a choice whose text is certain after one more chunk. A special token has no text in its chunk, and
    ends the choice where a stop string has it."""
    text = stops.push(chunk.text)
    if not chunk.text:
        for token in chunk.tokens:
            if token in row.stop_tokens:
                text += stops.push(row.stop_tokens[token], is_hidden=True)
    if stops.is_stopped:
        return m.Piece(number, row.choice, text, chunk.count, "stop")
    if chunk.finish is not None:
        text += stops.finish()
    return m.Piece(number, row.choice, text, chunk.count, chunk.finish)


def refuse_unhonoured(request: m.Request, goal: m.Generate) -> None:
    """Refuse the fields that have no effect on a GGUF model. The routes normally refuse them before."""
    if goal.n != 1:
        not_honoured("n")
    if goal.sampling.seed is not None:
        not_honoured("seed")
    for name in request.parts:
        fields = parts()[name].fields if name in parts() else ()
        not_honoured(next(iter(fields), name))
    plan = request.plan
    if isinstance(plan, m.Overlay) and (plan.edits or any(plan.values.values())):
        not_honoured("steering")


def not_honoured(field: str) -> NoReturn:
    raise Refusal("FIELD_NOT_HONOURED", f"{field} is not honoured on a GGUF model", param=field)
