"""The slot: the resident model, and the model that will be loaded once the resident model is unloaded."""

from __future__ import annotations

from steerserve.control.residency.occupant import Occupant
from steerserve.rules.residency.swap import EngineEnd, Phase


class Slot:
    """Holds the resident model in any phase. `next` is the model for which the resident model is being unloaded."""

    def __init__(self) -> None:
        self.resident: Occupant | None = None
        self.next: Occupant | None = None
        self.engine_end: EngineEnd | None = None
        """How the engine of the last resident model ended by itself; None once a load has begun since."""

    @property
    def is_changing(self) -> bool:
        """Whether a load or an unload is under way."""
        return self.resident is not None and self.resident.phase is not Phase.LOADED

    def enter(self, coming: Occupant) -> Occupant | None:
        """Put a model into the empty slot, or make it the next one. Returns the model that has to leave, if any."""
        if self.resident is None:
            self.resident, self.engine_end = coming, None
            return None
        self.next = coming
        return self.resident

    def leave(self, who: Occupant) -> None:
        """Take a model out of the slot, if it is there. The next model then becomes the resident model."""
        if self.resident is who:
            self.resident, self.next = self.next, None
            if self.resident is not None:
                self.engine_end = None
        elif self.next is who:
            self.next = None

    def coming(self, model_id: int) -> Occupant | None:
        """The occupant of this model id: the resident model or the next one."""
        for candidate in (self.next, self.resident):
            if candidate is not None and candidate.row.id == model_id:
                return candidate
        return None
