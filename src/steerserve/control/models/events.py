"""The events of the downloads of models."""

from __future__ import annotations

from typing import ClassVar

from msgspec import UNSET, UnsetType

from steerserve.control.error_codes import ErrorCode
from steerserve.rules.events import LiveEvent
from steerserve.rules.form import Form
from steerserve.rules.throttle import WorkReport


class DownloadProgress(LiveEvent, frozen=True):
    """How far the download of a model is. `progress` is in percent. The bytes per second are left out until they were
    measured."""

    wire: ClassVar = "model:download:progress"
    model_id: int
    progress: float
    downloaded_bytes: int
    total_bytes: int
    speed_bps: int | UnsetType = UNSET

    def work_report(self) -> WorkReport:
        return WorkReport(("download", self.model_id), is_last=self.progress >= 100)


class DownloadComplete(LiveEvent, frozen=True):
    """A model was downloaded to a folder of this machine."""

    wire: ClassVar = "model:download:complete"
    model_id: int
    local_path: str

    def work_report(self) -> WorkReport:
        return WorkReport(("download", self.model_id), is_last=True)


class DownloadFailure(Form, frozen=True):
    """Why a download failed. `details` depend on the code; the page on errors names them."""

    code: ErrorCode
    message: str
    details: dict[str, object]


class DownloadError(LiveEvent, frozen=True):
    """A download of a model failed."""

    wire: ClassVar = "model:download:error"
    model_id: int
    error: DownloadFailure

    def work_report(self) -> WorkReport:
        return WorkReport(("download", self.model_id), is_last=True)
