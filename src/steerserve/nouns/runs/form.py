"""What the routes of recorded runs answer."""

from __future__ import annotations

from steerserve.nouns.runs.rules import RunSummary
from steerserve.rules.form import Form


class RunList(Form, frozen=True, kw_only=True):
    """The newest recorded answers first, without their texts. `recording` says whether answers are recorded now."""

    runs: list[RunSummary]
    total: int
    stored_bytes: int
    recording: bool


class ImportedRuns(Form, frozen=True):
    """How many records an import has added, and how many were known before."""

    imported: int
    known: int


class DeletedRun(Form, frozen=True):
    """The recorded answer that was deleted."""

    request_id: str
