"""What sensing answers to its readers, and the events of the engine as they are recorded."""

from __future__ import annotations

from dataclasses import dataclass

from steerserve import messages as m
from steerserve.rules.form import Form
from steerserve.rules.sensing.firings import ContextParts


@dataclass(frozen=True, slots=True)
class SensingIntent:
    """A cluster or circuit whose sensing is enabled. It is sensed only while it is active."""

    id: str
    name: str
    is_active: bool


class DeletedFirings(Form, frozen=True):
    """How many records were deleted."""

    deleted: int


def context_of(
    window: m.Window,
) -> tuple[str | None, tuple[int, ...] | None, ContextParts | None]:
    """The text of a window, its tokens, and its text before, in and after the event."""
    return (
        window.text,
        None if window.token_ids is None else tuple(window.token_ids),
        None if window.parts is None else ContextParts(*window.parts),
    )
