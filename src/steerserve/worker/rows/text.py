"""Turns token ids into text, piece by piece. Incomplete UTF-8 and possible beginnings of stop strings are held back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from steerserve.messages.stops import StopStrings

INCOMPLETE = "\ufffd"
CONTEXT_TOKENS = 5
HELD_MAXIMUM = 8
CHARACTER_TOKENS = 4
"""The most tokens of one character: one for each byte."""

Decode = Callable[[list[int]], str]


class TextStream:
    """The text of one choice.

    The last tokens of the prompt are decoded together with the completion, so that a tokenizer that drops a leading
    blank keeps the blank between prompt and completion. The joined pieces are the whole text, even where tokens cut a
    character.
    """

    def __init__(self, decode: Decode, prompt: Sequence[int], stops: Sequence[str]) -> None:
        self._decode = decode
        self._ids = list(prompt[-CONTEXT_TOKENS:])
        self._from = 0
        self._read = len(self._ids)
        self._stops = StopStrings(stops)

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string was completed."""
        return self._stops.is_stopped

    def push(self, token: int) -> str:
        """The text that is certain after one more token. Sets `is_stopped` when a stop string was completed."""
        self._ids.append(token)
        before = self._decode(self._ids[self._from : self._read])
        after = self._decode(self._ids[self._from :])
        upto = len(self._ids)
        if after.endswith(INCOMPLETE):
            if upto - self._read <= HELD_MAXIMUM:
                return ""
            # a long run of broken bytes: send it, except for the last ones, which may still become a character
            upto -= CHARACTER_TOKENS - 1
            after = self._decode(self._ids[self._from : upto])
        self._from, self._read = self._read, upto
        return self._stops.push(after[len(before) :])

    def finish(self) -> str:
        """The text that is still held back, when no token follows. Bytes that never became a character are dropped."""
        before = self._decode(self._ids[self._from : self._read])
        rest = self._decode(self._ids[self._from :])[len(before) :].rstrip(INCOMPLETE)
        return self._stops.push(rest) + self._stops.finish()
