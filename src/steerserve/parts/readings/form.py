"""What probes and vectors read at each position from which a token of the answer is drawn."""

from __future__ import annotations

from steerserve.messages import Message
from steerserve.parts.part import Part
from steerserve.rules.steering.vector import Direction


class Readings(Message, frozen=True):
    """Directions along which a row is read. A row gives the projection x . v / |v| on each, before anything is added at
    its site."""

    directions: tuple[Direction, ...]


READINGS = Part("readings", Readings, list[float], "steerserve.parts.readings.row:ReadingsRow")
