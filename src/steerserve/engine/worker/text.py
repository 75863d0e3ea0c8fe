"""Token ids to text, piece by piece: incomplete UTF-8 and possible beginnings of stop strings are held back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

INCOMPLETE = "\ufffd"
CONTEXT_TOKENS = 5
HELD_MAXIMUM = 8
CHARACTER_TOKENS = 4
"""Most tokens that one character is made of, a byte each."""

Decode = Callable[[list[int]], str]


class TextStream:
    """The text of one choice.

    The last prompt tokens are decoded along, so that a tokenizer that drops a leading blank keeps the one between
    prompt and completion. The pieces joined are the whole text, whatever the cuts.
    """

    def __init__(self, decode: Decode, prompt: Sequence[int], stops: Sequence[str]) -> None:
        self._decode = decode
        self._ids = list(prompt[-CONTEXT_TOKENS:])
        self._from = 0
        self._read = len(self._ids)
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.is_stopped = False

    def push(self, token: int) -> str:
        """Text that is certain after one more token; sets `is_stopped` when a stop string was completed."""
        self._ids.append(token)
        before = self._decode(self._ids[self._from : self._read])
        after = self._decode(self._ids[self._from :])
        upto = len(self._ids)
        if after.endswith(INCOMPLETE):
            if upto - self._read <= HELD_MAXIMUM:
                return ""
            # a long run of broken bytes: let it go, but for the end that may still become a character
            upto -= CHARACTER_TOKENS - 1
            after = self._decode(self._ids[self._from : upto])
        self._from, self._read = self._read, upto
        return self._release(after[len(before) :])

    def finish(self) -> str:
        """What is still held when no token follows; bytes that never became a character are dropped."""
        before = self._decode(self._ids[self._from : self._read])
        rest = self._decode(self._ids[self._from :])[len(before) :].rstrip(INCOMPLETE)
        text = self._release(rest)
        if self.is_stopped:
            return text
        text, self._held = text + self._held, ""
        return text

    def _release(self, new: str) -> str:
        self._held += new
        found = [at for at in (self._held.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.is_stopped = True
            text, self._held = self._held[: min(found)], ""
            return text
        keep = self._beginning_of_a_stop()
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text

    def _beginning_of_a_stop(self) -> int:
        """Length of the longest end of the held text that a stop string begins with."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stops):
                return size
        return 0
