"""`return_readings`: what probes and vectors read at each position from which a token of the answer is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from steerserve.messages import Message
from steerserve.parts.part import BodyField, Lookups, Part, Resident, Sent
from steerserve.rules.field_faults import refuse_parameter
from steerserve.rules.steering.named_directions import NamedDirection, is_probe
from steerserve.rules.steering.placing import check_fits
from steerserve.rules.steering.vector import Direction

FIELD = "return_readings"
DIRECTIONS_MAXIMUM = 128
"""The directions of all probes and vectors of a request."""


class Readings(Message, frozen=True):
    """Directions along which a row is read. A row gives the projection x . v / |v| on each, before anything is added at
    its site."""

    directions: tuple[Direction, ...]


@dataclass(frozen=True, slots=True)
class PlannedReadings:
    """The directions of the probes and the vectors that a request names."""

    named: tuple[NamedDirection, ...]

    @property
    def form(self) -> Readings:
        return Readings(tuple(one.direction for one in self.named))


class ReadingsPart(Part[Readings, list[float]]):
    name = "readings"
    fields = MappingProxyType({FIELD: BodyField("steerserve.parts.readings.body:ReturnReadings")})
    told = MappingProxyType({"readings": "steerserve.parts.readings.body:AllReadings"})
    form = Readings
    chunk = list[float]
    row = "steerserve.parts.readings.row:ReadingsRow"

    def parse(self, body: Mapping[str, Any], sent: Sent) -> tuple[str, ...] | None:
        """The ids of probes and vectors.

        Raises:
            Refusal: INVALID_PARAMETER for what is no id of a probe or a vector, and for an id that is there twice.
        """
        named = body.get(FIELD)
        if named is None:
            return None
        for place, name in enumerate(named):
            where = f"{FIELD}[{place}]"
            is_probe(where, name)
            if name in named[:place]:
                raise refuse_parameter(where, "is there twice")
        return tuple(named)

    async def resolve(self, asked: Sequence[str], look: Lookups) -> PlannedReadings:
        found: list[NamedDirection] = []
        for place, name in enumerate(asked):
            found += await look.directions(f"{FIELD}[{place}]", name)
        return PlannedReadings(tuple(found))

    def plan(self, asked: PlannedReadings, resident: Resident) -> PlannedReadings:
        """Raises:
        Refusal: INVALID_PARAMETER for too many directions; VECTOR_MISMATCH for one that the model has no place for;
            INVALID_INTERVENTION for a direction without length.
        """
        if len(asked.named) > DIRECTIONS_MAXIMUM:
            why = f"{len(asked.named)} directions; at most {DIRECTIONS_MAXIMUM}"
            raise refuse_parameter(FIELD, why, maximum=DIRECTIONS_MAXIMUM)
        for one in asked.named:
            check_fits(one.where, one.direction, resident.model)
        return asked

    def is_streamed(self, planned: PlannedReadings) -> bool:
        return True

    def tell(
        self,
        planned: PlannedReadings,
        chunks: Mapping[int, Sequence[list[float]]],
        texts: Sequence[str],
    ) -> dict[str, object]:
        """For each probe or vector and layer a value for each token."""
        told = [
            {
                **({"choice": index} if len(texts) > 1 else {}),
                "id": one.id,
                "layer": one.direction.layer,
                "site": one.direction.site,
                "values": [one.value(projections[place]) for projections in tokens],
            }
            for index, tokens in chunks.items()
            for place, one in enumerate(planned.named)
        ]
        return {"readings": told}


READINGS = ReadingsPart()
