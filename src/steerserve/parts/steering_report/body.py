"""The field `return_steering_report` of bodies, and `steering_report` of answers, as types."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

ReturnSteeringReport = bool


class EditReport(TypedDict):
    """Where one edit acted. `edit` is its place in the list, and `layers` are those of its features or directions;
    `first` and `last` are the first and the last position at which it changed something, and `max_change` is the
    largest change there, as a part of the norm of the value. `at` has all these positions as runs [first, last] where
    the answer has one choice; null where there are too many runs."""

    edit: int
    source: str
    op: str
    layers: list[int]
    evaluated: int
    acted: int
    first: int | None
    last: int | None
    max_change: float
    at: NotRequired[list[list[int]] | None]


class SteeringReport(TypedDict):
    """The digest of the steering at the start of the answer, whether an operator changed it meanwhile, and where each
    edit acted."""

    state: str | None
    changed: bool
    edits: list[EditReport]
