"""The one place for a model, and the one behind it that waits for the place: who may be told to come, and who goes when."""

from __future__ import annotations

from steerserve.control.residency.occupant import Occupant


class Slot:
    """Holds the resident model in whatever phase, and while it is unloaded for another one, that one."""

    def __init__(self) -> None:
        self.resident: Occupant | None = None
        self.next: Occupant | None = None

    def enter(self, coming: Occupant) -> Occupant | None:
        """Give the place to a model, or the one behind who has it; who has to leave for it."""
        if self.resident is None:
            self.resident = coming
            return None
        self.next = coming
        return self.resident

    def leave(self, who: Occupant) -> None:
        """Free the place that this one has, if it still has one; who waits behind it moves up."""
        if self.resident is who:
            self.resident, self.next = self.next, None
        elif self.next is who:
            self.next = None

    def coming(self, model_id: int) -> Occupant | None:
        """Who serves this model, or will."""
        for candidate in (self.next, self.resident):
            if candidate is not None and candidate.row.id == model_id:
                return candidate
        return None
