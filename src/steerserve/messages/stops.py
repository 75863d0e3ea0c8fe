"""Stop strings in a text that comes in pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def stopping_tokens(stops: Sequence[str], hidden: Mapping[int, str]) -> dict[int, str]:
    """Those of the tokens `hidden`, which are no text of an answer, whose own text a stop string has."""
    return {
        token: text
        for token, text in hidden.items()
        if text and any(text in stop for stop in stops)
    }


class StopStrings:
    """Cuts a text at the first stop string, and holds back an end of the text that may be the beginning of one.

    Some of the text may be hidden: it counts for stop strings, but is never shown. Stop strings are also found in the
    shown text by itself.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self._hidden: list[tuple[int, int]] = []
        self.is_stopped = False

    def push(self, new: str, *, is_hidden: bool = False) -> str:
        """The text that is certain now. Sets `is_stopped` when a stop string was completed."""
        if is_hidden:
            self._hidden.append((len(self._held), len(self._held) + len(new)))
        self._held += new
        places = self._places(self._held)
        cut = len(self._held) - self._beginning_of_a_stop(self._held)
        if self._hidden:
            shown = self._shown(len(self._held))
            places += [self._place(at) for at in self._places(shown)]
            cut = min(cut, self._place(len(shown) - self._beginning_of_a_stop(shown)))
        if places:
            self.is_stopped = True
            cut = min(places)
        text = self._shown(cut)
        self._held = "" if self.is_stopped else self._held[cut:]
        self._hidden = [
            (max(0, first - cut), end - cut) for first, end in self._hidden if cut < end
        ]
        return text

    def finish(self) -> str:
        """The text that is still held back; no text follows."""
        text, self._held, self._hidden = self._shown(len(self._held)), "", []
        return text

    def _places(self, text: str) -> list[int]:
        return [at for at in (text.find(stop) for stop in self._stops) if at >= 0]

    def _shown(self, end: int) -> str:
        """The held text up to `end`, without what is hidden."""
        text, start = "", 0
        for first, last in self._hidden:
            if first < end:
                text += self._held[start:first]
                start = last
        return text + self._held[start:end]

    def _place(self, shown: int) -> int:
        """The place in the held text of the character `shown` of the shown text."""
        for first, end in self._hidden:
            if first <= shown:
                shown += end - first
        return shown

    def _beginning_of_a_stop(self, text: str) -> int:
        """The length of the longest end of a text with which a stop string begins."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for size in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stops):
                return size
        return 0
