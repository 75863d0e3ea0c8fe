"""Imported circuits: their records and documents. `circuit_serving.py` makes them serve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from steerserve.control.residency.conductor import Conductor
from steerserve.control.steering.circuit_state import CircuitDetail, CircuitView
from steerserve.control.steering.reading import DocumentReader
from steerserve.control.steering.steering import Steering
from steerserve.database.circuits import CircuitRow, CircuitStore
from steerserve.rules.steering import binding, circuit_serving, hazards, served
from steerserve.rules.steering import circuit as rules
from steerserve.rules.steering.circuit import ImportedCircuit
from steerserve.rules.steering.circuit_shape import NAME_MAXIMUM
from steerserve.rules.steering.members import names_to_try
from steerserve.settings import Settings

OnNameConflict = Literal["rename", "fail"]


@dataclass(frozen=True, slots=True)
class CircuitPage:
    """Some of the circuits that a list asks for, and how many there are in all. `active_id` is the circuit that was
    activated first of those that serve."""

    circuits: tuple[CircuitView, ...]
    total: int
    active_id: str | None


class Circuits:
    """Reads, imports and describes circuits."""

    def __init__(
        self,
        store: CircuitStore,
        reader: DocumentReader,
        steering: Steering,
        conductor: Conductor,
        settings: Settings,
    ) -> None:
        self._store = store
        self._reader = reader
        self._steering = steering
        self._conductor = conductor
        self._envelope = (settings.circuit_intensity_min, settings.circuit_intensity_max)

    # ------------------------------------------------------------- reading

    async def list(
        self, *, min_rung: int, is_serveable: bool | None, limit: int, offset: int
    ) -> CircuitPage:
        """Circuits from a rung on, newest first. With `is_serveable`, only those that can, or cannot, be served whole
        by the SAEs that are attached now."""
        if is_serveable is None:
            rows, total = await self._store.page(limit, offset, min_rung)
        else:
            attached = self._conductor.attachments()
            ids = [
                one.id
                for one in await self._store.outlines(min_rung)
                if binding.is_serveable(binding.bind(one.outline.needs, attached)) is is_serveable
            ]
            rows, total = await self._store.some(ids[offset : offset + limit]), len(ids)
        active = next((circuit.id for circuit in self._steering.circuits), None)
        return CircuitPage(tuple(map(self._described, rows)), total, active)

    async def active(self) -> Sequence[CircuitView]:
        """The circuits that serve, in the order of their activation."""
        rows = await self._store.stored([one.id for one in self._steering.circuits])
        return [self.described(row) for row in rows]

    async def detail(self, circuit_id: str) -> CircuitDetail:
        """A circuit with the range of its dial and its hazards.

        Raises:
            Refusal: CIRCUIT_NOT_FOUND.
        """
        row = await self._store.circuit(circuit_id)
        view = self.described(row)
        return CircuitDetail(view, row.circuit, self.limits(row), tuple(hazards.of(row.circuit)))

    async def document(self, circuit_id: str) -> str:
        """The JSON text of the document of a circuit, as it was imported.

        Raises:
            Refusal: CIRCUIT_NOT_FOUND.
        """
        return await self._store.document(circuit_id)

    def described(self, row: CircuitRow) -> CircuitView:
        """A circuit as it is now, and whether it steers."""
        view = self._described(row)
        live = self._steering.live
        now = circuit_serving.served(live, row.id)
        is_steering = now is not None and circuit_serving.is_steering(live, now)
        shared = served.composed(self._steering.circuits)
        layers = view.served.layers if view.served is not None else ()
        composed = tuple(layer for layer in layers if layer in shared)
        return replace(view, is_steering=is_steering, composed_layers=composed)

    def limits(self, row: CircuitRow) -> tuple[float, float]:
        """The lowest and the highest intensity of a circuit."""
        return circuit_serving.limits(row.outline.intensity_range, self._envelope)

    def intensity(self, row: CircuitRow) -> float:
        """The saved intensity of a circuit, held within its limits: the intensity at which the circuit serves."""
        return circuit_serving.held(row.intensity, self.limits(row))

    # ------------------------------------------------------------- importing

    async def add_body(
        self, body: bytes, on_conflict: OnNameConflict, own_id: str | None = None
    ) -> tuple[CircuitView, tuple[str, ...]]:
        """Save the circuit in the body of an import, and return warnings.

        Raises:
            DocumentRefusal: PAYLOAD_TOO_LARGE, UNKNOWN_KIND, VALIDATION_ERROR.
            Refusal: VALIDATION_ERROR for a body that is not JSON, and for a name that is taken.
        """
        return await self.add(await self._reader.read(rules.parse, body), on_conflict, own_id)

    async def add(
        self,
        imported: ImportedCircuit,
        on_conflict: OnNameConflict,
        own_id: str | None = None,
    ) -> tuple[CircuitView, tuple[str, ...]]:
        """Save a circuit, and return warnings. A circuit whose name is taken is renamed, or refused. `own_id` is the id
        of the record, by default a new one.

        Raises:
            Refusal: VALIDATION_ERROR for a name that is taken.
        """
        circuit = imported.circuit
        intensity = circuit_serving.INTENSITY if circuit.intensity is None else circuit.intensity
        names = names_to_try(circuit.name, NAME_MAXIMUM, may_rename=on_conflict == "rename")
        row = await self._store.first_free(
            names,
            lambda name: self._store.add(name, imported, intensity, own_id),
            told=circuit.name,
        )
        limits = self.limits(row)
        warnings = rules.warnings(circuit, limits[1])
        return self._described(row), warnings + circuit_serving.outside(intensity, limits)

    # ------------------------------------------------------------- inside

    def _described(self, row: CircuitRow) -> CircuitView:
        serving = (one for one in self._steering.circuits if one.id == row.id)
        bindings = binding.bind(row.outline.needs, self._conductor.attachments())
        return CircuitView(row, self.intensity(row), bindings, next(serving, None))
