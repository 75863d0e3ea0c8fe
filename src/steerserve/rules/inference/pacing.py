"""How parts of jobs, which read many texts, share the model with live requests.

(1) A part takes a slot for which no request waits. (2) Where there is none, one part at a time is read beside the
slots, so that a job goes on beside requests that never leave a slot free. (3) Such a part, and every part of a job that
is to leave the time to requests, is followed by a pause, so that parts take at most SHARE of the time. The time of a
part counts whole, though decode passes of live requests run in it too. How long a live text waits for one prefill pass
is bounded by the engine (`stepping.STEP_SECONDS`).
"""

from __future__ import annotations

SHARE = 0.08
"""The most of the time that parts take beside live requests."""


def pause(seconds: float) -> float:
    """The pause in seconds after a part that took so long beside live requests."""
    return seconds * (1 - SHARE) / SHARE
