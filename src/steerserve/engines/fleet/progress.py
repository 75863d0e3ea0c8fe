"""How far the loads of replicas are, and how long a load may take."""

from __future__ import annotations

import asyncio

from steerserve import messages as m
from steerserve.messages.engine import Report


def extend(limit: asyncio.Timeout, progress: m.Progress, seconds: float) -> None:
    """Give a load its whole time again while a node fetches the files of the model."""
    if progress.stage == m.FETCHING_FILES and not limit.expired():
        limit.reschedule(asyncio.get_running_loop().time() + seconds)


class LoadsProgress:
    """Reports the load of the replica that is least far, once all have begun; of nodes that fetch files, the one that
    is least far."""

    def __init__(self, report: Report, count: int) -> None:
        self._report = report
        self._count = count
        self._latest: dict[str, m.Progress] = {}

    def report_for(self, name: str) -> Report:
        def take_progress(progress: m.Progress) -> None:
            self._latest[name] = progress
            is_fetch = progress.stage == m.FETCHING_FILES
            alike = [
                one for one in self._latest.values() if (one.stage == m.FETCHING_FILES) == is_fetch
            ]
            if is_fetch or len(self._latest) == self._count:
                self._report(min(alike, key=lambda p: p.percent))

        return take_progress
