"""Which progress reports are passed on: the first, then at most so many a second, and always the last."""

from __future__ import annotations

LEAST_SECONDS = 0.25
"""Time between two reports of the same work."""


def may_pass(
    last: float | None, now: float, *, is_final: bool, least: float = LEAST_SECONDS
) -> bool:
    """Whether a report may pass; one that may not is dropped, never held back.

    Args:
        last: when the last one passed, None before the first; seconds of the same clock as `now`.
        is_final: no other follows it.
        least: seconds between two reports.
    """
    return is_final or last is None or now - last >= least
