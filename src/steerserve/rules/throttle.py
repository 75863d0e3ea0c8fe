"""Which progress reports are passed on: the first, the last, and between them at most one in each short interval."""

from __future__ import annotations

LEAST_SECONDS = 0.25
"""Time between two reports of the same work."""


def may_pass(
    last: float | None, now: float, *, is_final: bool, least: float = LEAST_SECONDS
) -> bool:
    """Whether a report may pass. A report that may not pass is dropped, and never sent later.

    Args:
        last: when the last report passed, in seconds of the same clock as `now`; None before the first report.
        is_final: whether no other report follows.
        least: the least seconds between two reports.
    """
    return is_final or last is None or now - last >= least
