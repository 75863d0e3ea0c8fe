"""Which progress reports are passed on: the first, the last, and between them at most one in each short interval."""

from __future__ import annotations

from dataclasses import dataclass

LEAST_SECONDS = 0.25
"""Time between two reports of the same work."""


@dataclass(frozen=True, slots=True)
class WorkReport:
    """The work that a report is about.

    Attributes:
        work: the kind of the work, and its id.
        is_last: whether the work is over.
        least: the least seconds between two reports of the work.
    """

    work: tuple[str, int | str]
    is_last: bool = False
    least: float = LEAST_SECONDS


def may_pass(last: float | None, now: float, least: float = LEAST_SECONDS) -> bool:
    """Whether a report may pass that is not the last of its work. A report that may not pass is dropped, and never sent
    later.

    Args:
        last: when the last report passed, in seconds of the same clock as `now`; None before the first report.
        least: the least seconds between two reports.
    """
    return last is None or now - last >= least
