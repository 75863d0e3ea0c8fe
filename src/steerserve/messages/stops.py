"""Stop strings in a text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Cuts a text at the first stop string, and holds back an end of the text that may be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.is_stopped = False

    def push(self, new: str) -> str:
        """The text that is certain now. Sets `is_stopped` when a stop string was completed."""
        self._held += new
        places = [at for at in (self._held.find(stop) for stop in self._stops) if at >= 0]
        if places:
            self.is_stopped = True
            text, self._held = self._held[: min(places)], ""
            return text
        cut = len(self._held) - self._beginning_of_a_stop()
        text, self._held = self._held[:cut], self._held[cut:]
        return text

    def finish(self) -> str:
        """The text that is still held back; no text follows."""
        text, self._held = self._held, ""
        return text

    def _beginning_of_a_stop(self) -> int:
        """The length of the longest end of the held text with which a stop string begins."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stops):
                return size
        return 0
