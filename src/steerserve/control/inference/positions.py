"""Puts what parts of a request give one token late at the outcome of their own token."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping

import msgspec
from msgspec.structs import replace

from steerserve.control.inference.planning import Admitted
from steerserve.messages import Outcome, Piece, Scored, Started
from steerserve.parts.registry import parts

Chunks = Mapping[str, msgspec.Raw]


def late_parts(admitted: Admitted) -> frozenset[str]:
    """The parts of a request whose chunks a stream has with the text of their tokens, and which come one token late."""
    known = parts()
    return frozenset(
        name
        for name, planned in admitted.parts.items()
        if known[name].is_late and known[name].is_streamed(planned)
    )


async def with_own_chunks(
    events: AsyncIterator[Started | Outcome], late: Collection[str]
) -> AsyncIterator[Piece | Scored]:
    """The outcomes of an answer, each with the chunks of its own token. A piece is held back until the next one brings
    them. Chunks that belong to no piece have one without text. Where the answer fails, the pieces that are held back
    come before the error."""
    held: dict[int, Piece] = {}
    try:
        async for event in events:
            if not isinstance(event, Piece | Scored):
                continue
            before = {name: raw for name, raw in event.parts.items() if name in late}
            own = {name: raw for name, raw in event.parts.items() if name not in late}
            piece, event = held.pop(event.choice, None), replace(event, parts=own)
            if piece is not None:
                yield replace(piece, parts={**piece.parts, **before})
            elif before:
                yield Piece(event.id, event.choice, "", 0, parts=before)
            if isinstance(event, Scored) or event.finish:
                yield event
            elif event.text:
                held[event.choice] = event
            elif own:
                yield event
    except Exception:
        for piece in held.values():
            yield piece
        raise
