"""What a request has read along probes and vectors, at each position from which one of its tokens is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from steerserve.errors import Refusal
from steerserve.rules.steering.placing import ModelFacts, check_fits
from steerserve.rules.steering.probe import ID_PREFIX as PROBE
from steerserve.rules.steering.probe import Probe
from steerserve.rules.steering.vector import ID_PREFIX as VECTOR
from steerserve.rules.steering.vector import Direction, Vector

FIELD = "return_readings"
NAMED_MAXIMUM = 16
"""The probes and vectors of one request."""
DIRECTIONS_MAXIMUM = 128
"""The directions of all of them."""


@dataclass(frozen=True, slots=True)
class Watched:
    """One direction that is read: `id` is that of its probe or vector, and `where` names it in refusals. The projection
    p = x · v / |v| is told as scale x p + bias."""

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


def of_probe(where: str, probe: Probe) -> Watched:
    """A probe is read at its best layer, or else at its only one, as w · x + b.

    Raises:
        Refusal: INVALID_PARAMETER for a probe with several layers of which none is known to be the best.
    """
    place = probe.chosen
    if place is None:
        layers = [direction.layer for direction in probe.directions]
        why = f"{where} must be a probe with one layer, or with a best layer from held-out texts"
        raise Refusal("INVALID_PARAMETER", why, param=where, layers=layers)
    direction = probe.directions[place]
    return Watched(probe.id, where, direction, direction.norm, probe.biases[place])


def of_vector(where: str, vector: Vector) -> list[Watched]:
    """A vector is read at each of its layers, as the projection on its direction there."""
    return [Watched(vector.id, where, direction) for direction in vector.directions]


def check(watched: Sequence[Watched], model: ModelFacts) -> None:
    """Raises:
    Refusal: INVALID_PARAMETER for too many directions; VECTOR_MISMATCH for one that the model has no place for;
        INVALID_INTERVENTION for a direction without length.
    """
    if len(watched) > DIRECTIONS_MAXIMUM:
        why = f"{FIELD}: {len(watched)} directions; at most {DIRECTIONS_MAXIMUM}"
        raise Refusal("INVALID_PARAMETER", why, param=FIELD, maximum=DIRECTIONS_MAXIMUM)
    for one in watched:
        check_fits(one.where, one.direction, model)
