"""Where the edits of one row acted."""

from __future__ import annotations

from steerserve.messages import EditActs
from steerserve.parts.row_part import RowFacts, RowPart
from steerserve.parts.steering_report.form import CountedEdits


class SteeringReportRow(RowPart):
    """Has the acts of the row's edits counted, and gives them at the end of the row."""

    def __init__(self, form: CountedEdits, facts: RowFacts) -> None:
        self.counted = form.edits
        self._acts = facts.acts

    def chunk(self, *, is_last: bool) -> list[EditActs] | None:
        return self._acts() if is_last else None
