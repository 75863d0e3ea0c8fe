"""The bounds of the intensity at which a profile, a cluster or a circuit serves."""

from __future__ import annotations

from dataclasses import dataclass

INTENSITY_MAXIMUM = 2.0


@dataclass(frozen=True, slots=True)
class Range:
    """The lowest and the highest intensity of a dial. `min` and `max` stand for them."""

    lowest: float = 0.5
    highest: float = 1.5

    def held(self, intensity: float) -> float:
        """An intensity within the range. Exactly 0 is honoured below the range too."""
        return intensity if intensity == 0.0 else min(max(intensity, self.lowest), self.highest)

    def outside(self, intensity: float) -> tuple[str, ...]:
        """A warning about an intensity that the range changes."""
        used, ends = self.held(intensity), f"[{self.lowest:g}, {self.highest:g}]"
        if used == intensity:
            return ()
        return (f"the intensity {intensity:g} is outside {ends}; {used:g} is used",)


WHOLE = Range(0.0, INTENSITY_MAXIMUM)


def find_limits(
    declared: tuple[float, float] | None, configured: Range, envelope: Range = WHOLE
) -> Range:
    """The range that a document declares, within an envelope; the configured range where none is declared."""
    if declared is None:
        return configured
    lowest, highest = (min(envelope.highest, max(envelope.lowest, end)) for end in declared)
    return Range(lowest, highest)
