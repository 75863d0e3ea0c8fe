"""Turns token ids into text, piece by piece. Incomplete UTF-8 and possible beginnings of stop strings are held back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from steerserve.messages.stops import StopStrings
from steerserve.worker.model.transformer import CONTEXT_TOKENS

INCOMPLETE = "\ufffd"
HELD_MAXIMUM = 8
CHARACTER_TOKENS = 4
"""The most tokens of one character: one for each byte."""

Decode = Callable[[list[int]], str]


class TextStream:
    """The text of one choice.

    The last tokens of the prompt are decoded together with the completion, so that a tokenizer that drops a leading
    blank keeps the blank between prompt and completion. The joined pieces are the whole text, even where tokens cut a
    character. `hidden` has the texts of tokens that end the text with a stop string, but are never shown.
    """

    def __init__(
        self,
        decode: Decode,
        prompt: Sequence[int],
        stops: Sequence[str],
        hidden: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self._decode = decode
        self._ids = list(prompt[-CONTEXT_TOKENS:])
        self._from = 0
        self._read = len(self._ids)
        self._stops = StopStrings(stops)
        self._hidden = hidden
        self.incomplete = ""
        """The text of the last tokens that ends within a character, and may still change."""

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string was completed."""
        return self._stops.is_stopped

    def push(self, token: int) -> str:
        """The text that is certain after one more token. Sets `is_stopped` when a stop string was completed."""
        if token in self._hidden:
            return self._stops.push(self._hidden[token], is_hidden=True)
        self._ids.append(token)
        self.incomplete = ""
        before = self._decode(self._ids[self._from : self._read])
        after = self._decode(self._ids[self._from :])
        upto = len(self._ids)
        if after.endswith(INCOMPLETE):
            if upto - self._read <= HELD_MAXIMUM:
                self.incomplete = after[len(before) :]
                return ""
            # a long run of broken bytes: send it, except for the last ones, which may still become a character
            upto -= CHARACTER_TOKENS - 1
            after = self._decode(self._ids[self._from : upto])
        elif after == before and not self._decode([token, token]):
            # the text of the next token depends on the last token that has a text
            self._ids.pop()
            return ""
        self._from, self._read = self._read, upto
        return self._stops.push(after[len(before) :])

    def finish(self) -> str:
        """The text that is still held back, when no token follows. Bytes that never became a character are dropped."""
        before = self._decode(self._ids[self._from : self._read])
        rest = self._decode(self._ids[self._from :])[len(before) :].rstrip(INCOMPLETE)
        return self._stops.push(rest) + self._stops.finish()


class Answer:
    """The text of an answer whose list of tokens grows. Each token is decoded once, whatever is looked for."""

    def __init__(self, decode: Decode, prompt: Sequence[int], out: Sequence[int]) -> None:
        self._out = out
        self._stream = TextStream(decode, prompt, ())
        self._text = ""
        self._ends: list[tuple[int, str]] = []

    def around(self, index: int, size: int) -> str:
        """The text up to the end of token `index`, from `size` characters before that token on."""
        while len(self._ends) <= index:
            self._text += self._stream.push(self._out[len(self._ends)])
            self._ends.append((len(self._text), self._stream.incomplete))
        end, incomplete = self._ends[index]
        begin = self._ends[index - 1][0] if index else 0
        return self._text[max(0, begin - size) : end] + incomplete
