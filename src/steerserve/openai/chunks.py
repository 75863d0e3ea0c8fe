"""Writes the chunks of a streamed answer, each as one server-sent event."""

from __future__ import annotations

import msgspec

from steerserve.http.event_stream import event
from steerserve.openai.shape import AnswerShape

_json = msgspec.json.Encoder().encode
_GAP = b"\0"
"""Stands for the text of a chunk. No JSON has this byte, because JSON escapes control characters."""


class Chunks:
    """Writes the chunks of one answer.

    The chunks of the texts of one choice differ in the text only. The bytes around the text are made once, because most
    tokens are such a chunk.

    Args:
        base: the fields that every chunk begins with.
        shape: how the route writes choices.
    """

    def __init__(self, base: dict[str, object], shape: AnswerShape) -> None:
        self._base = {**base, "object": shape.chunk}
        self._shape = shape
        self._around: dict[int, tuple[bytes, bytes]] = {}

    def chunk(self, choices: list[dict[str, object]], **more: object) -> bytes:
        return event(_json({**self._base, "choices": choices, **more}))

    def text(self, index: int, text: str) -> bytes:
        """The chunk of new text of the choice `index`, which goes on."""
        around = self._around.get(index)
        if around is None:
            choice = self._shape.delta(index, msgspec.Raw(_GAP), None)
            before, after = self.chunk([choice]).split(_GAP)
            around = self._around[index] = before, after
        return around[0] + _json(text) + around[1]
