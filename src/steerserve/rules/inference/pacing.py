"""How parts of jobs, which read many texts, share the model with live requests.

(1) A part takes a slot for which no request waits. (2) Where there is none, one part at a time is read beside the
slots, so that a job goes on beside requests that never leave a slot free. (3) Such a part, and every part of a job that
is to leave the time to requests, is followed by a pause, so that the engine works for parts at most SHARE of the time.
Where the engine does not say how long it worked for a part, the whole time until the answer counts, with the decode
passes of live requests in it, and parts take at most WHOLE_SHARE of the time. How long a live text waits for one
prefill pass is bounded by the engine (`stepping.STEP_SECONDS`). (4) Every other part is followed by a pause as long as
itself while requests run, so that they take at most twice as long beside it.
"""

from __future__ import annotations

GROWTH = 1.1
"""How many times as long live requests take beside parts, at most."""

SHARE = 1 - 1 / GROWTH
"""The most of the time of the engine that parts take beside live requests."""

WHOLE_SHARE = 0.08
"""The most of the whole time that passes until the answers of parts."""


def pause(seconds: float, worked: float | None = None) -> float:
    """The pause in seconds after a part that was answered after `seconds`, for which the engine worked so long."""
    whole = seconds / WHOLE_SHARE if worked is None else worked / SHARE
    return max(0.0, whole - seconds)
