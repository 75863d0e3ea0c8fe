"""The events of the downloads of SAEs."""

from __future__ import annotations

from typing import ClassVar

from steerserve.rules.events import LiveEvent
from steerserve.rules.throttle import WorkReport


class SaeDownloadProgress(LiveEvent, frozen=True):
    """How far the download of an SAE is; `percent` is 100 in the last report only."""

    wire: ClassVar = "sae:download:progress"
    sae_id: str
    percent: int

    def work_report(self) -> WorkReport:
        return WorkReport(("sae", self.sae_id), is_last=self.percent >= 100)


class SaeDownloadComplete(LiveEvent, frozen=True):
    """An SAE was downloaded."""

    wire: ClassVar = "sae:download:complete"
    sae_id: str

    def work_report(self) -> WorkReport:
        return WorkReport(("sae", self.sae_id), is_last=True)


class SaeDownloadError(LiveEvent, frozen=True):
    """A download of an SAE failed. `error` says why."""

    wire: ClassVar = "sae:download:error"
    sae_id: str
    error: str

    def work_report(self) -> WorkReport:
        return WorkReport(("sae", self.sae_id), is_last=True)
