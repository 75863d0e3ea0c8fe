"""The directions of stored probes and vectors that a request names by their ids."""

from __future__ import annotations

from dataclasses import dataclass

from steerserve.errors import Refusal
from steerserve.rules.steering.probe import ID_PREFIX as PROBE
from steerserve.rules.steering.probe import Probe
from steerserve.rules.steering.vector import ID_PREFIX as VECTOR
from steerserve.rules.steering.vector import Direction, Vector


@dataclass(frozen=True, slots=True)
class NamedDirection:
    """A direction of the probe or the vector `id`. `where` names it in refusals. A projection p = x · v / |v| on it is
    told as scale x p + bias."""

    id: str
    where: str
    direction: Direction
    scale: float = 1.0
    bias: float = 0.0

    def value(self, projection: float) -> float:
        return self.scale * projection + self.bias


def is_probe(where: str, name: str) -> bool:
    """Whether an id is that of a probe, and not of a vector.

    Raises:
        Refusal: INVALID_PARAMETER for anything else.
    """
    if name.startswith((PROBE, VECTOR)):
        return name.startswith(PROBE)
    why = f"{where} must be the id of a probe ({PROBE}…) or of a vector ({VECTOR}…)"
    raise Refusal("INVALID_PARAMETER", why, param=where)


def of_probe(where: str, probe: Probe) -> NamedDirection:
    """The direction of a probe at its best layer, or else at its only one, which is read as w · x + b.

    Raises:
        Refusal: INVALID_PARAMETER for a probe with several layers of which none is known to be the best.
    """
    place = probe.chosen
    if place is None:
        layers = [direction.layer for direction in probe.directions]
        why = f"{where} must be a probe with one layer, or with a best layer from held-out texts"
        raise Refusal("INVALID_PARAMETER", why, param=where, layers=layers)
    direction = probe.directions[place]
    return NamedDirection(probe.id, where, direction, direction.norm, probe.biases[place])


def of_vector(where: str, vector: Vector) -> list[NamedDirection]:
    """The directions of a vector at its layers, each of which is read as the projection on it."""
    return [NamedDirection(vector.id, where, direction) for direction in vector.directions]
