"""Puts each piece of text together with the activations of its token, which the engine reads one pass later."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from steerserve.messages import Outcome, Piece, Scored, Started
from steerserve.parts.activations.form import ACTIVATIONS, Reading


@dataclass(frozen=True, slots=True)
class TextWithReadings:
    """A piece of one choice with the readings at its token. Without a piece, they are readings of the prompt."""

    choice: int
    piece: Piece | Scored | None
    readings: Sequence[Reading] = ()


async def paired(events: AsyncIterator[Started | Outcome]) -> AsyncIterator[TextWithReadings]:
    """The pieces of an answer whose readings are streamed. A piece is held back until the next pass has read its token.
    Where the stream fails, the pieces that are held back come before the error."""
    held: dict[int, Piece] = {}
    try:
        async for event in events:
            if not isinstance(event, Piece | Scored):
                continue
            piece, readings = held.pop(event.choice, None), ACTIVATIONS.read(event.parts) or ()
            if piece is not None or readings:
                yield TextWithReadings(event.choice, piece, readings)
            if isinstance(event, Scored) or event.finish:
                yield TextWithReadings(event.choice, event)
            elif event.text:
                held[event.choice] = event
    except Exception:
        for choice, piece in held.items():
            yield TextWithReadings(choice, piece)
        raise


async def unpaired(events: AsyncIterator[Started | Outcome]) -> AsyncIterator[TextWithReadings]:
    """The pieces of an answer as they come, and the readings apart from them."""
    async for event in events:
        if isinstance(event, Piece | Scored):
            readings = ACTIVATIONS.read(event.parts)
            if readings is not None:
                yield TextWithReadings(event.choice, None, readings)
            if isinstance(event, Scored) or event.text or event.finish:
                yield TextWithReadings(event.choice, event)
