"""How parts of jobs, which read many texts, share the model with live requests.

(1) A part takes a slot for which no request waits. (2) Where there is none, one part at a time is read beside the
slots, so that a job goes on beside requests that never leave a slot free. (3) Such a part, and every part of a job that
is to leave the time to requests, is followed by a pause, so that parts take at most SHARE of the time. The time of a
part counts whole, though decode passes of live requests run in it too. (4) It has so many texts that it takes about
PART_SECONDS.
"""

from __future__ import annotations

from dataclasses import dataclass

from steerserve.rules.inference.stepping import STEP_SECONDS

SHARE = 0.08
"""The most of the time that parts take beside live requests."""

PART_SECONDS = STEP_SECONDS
"""How long a part beside live requests is to take: as long as a live text waits for any prefill pass."""

_SMOOTHING = 0.3


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the texts of a job are read: `text` is the time of one text in seconds, smoothed; None before the first
    part."""

    text: float | None = None

    def after(self, texts: int, seconds: float) -> Pace:
        """The pace after a part of so many texts."""
        now = seconds / texts
        return Pace(now if self.text is None else self.text + _SMOOTHING * (now - self.text))

    def texts(self, most: int) -> int:
        """The texts of the next part beside live requests, at least one and at most `most`; one while the pace is not
        known."""
        if not self.text:
            return 1
        return max(1, min(most, int(PART_SECONDS / self.text)))  # (4)


def pause(seconds: float) -> float:
    """The pause in seconds after a part that took so long beside live requests."""
    return seconds * (1 - SHARE) / SHARE  # (3)
