"""What a pin may be."""

from __future__ import annotations

from steerserve.errors import Refusal

NOTES = 200


def check_note(note: str) -> None:
    """Raises:
    Refusal: VALIDATION_ERROR for a note that says nothing.
    """
    if not note.strip():
        raise Refusal("VALIDATION_ERROR", "note: says nothing", param="note")
