"""Circuits as they are now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from steerserve.control.steering.circuit_views import FULL, SLICE, ServingMode
from steerserve.database.circuits import CircuitRow
from steerserve.rules.steering.binding import LayerBinding, is_serveable
from steerserve.rules.steering.circuit import Circuit
from steerserve.rules.steering.hazards import Hazard
from steerserve.rules.steering.served import ServedCircuit


@dataclass(frozen=True, slots=True)
class CircuitView:
    """A circuit as it is now.

    Attributes:
        intensity: the saved intensity, held within the range of the circuit. An activation uses it.
        bindings: how each of its layers is bound to the SAEs that are attached now.
        served: how it serves; None while it does not.
        is_steering: whether it changes what the model computes; None where this was not looked at.
        composed_layers: the layers that it serves together with other circuits.
    """

    row: CircuitRow
    intensity: float
    bindings: tuple[LayerBinding, ...]
    served: ServedCircuit | None = None
    is_steering: bool | None = None
    composed_layers: tuple[int, ...] = ()

    @property
    def is_serveable(self) -> bool:
        return is_serveable(self.bindings)

    @property
    def mode(self) -> ServingMode | None:
        if self.served is None:
            return None
        return SLICE if self.served.is_slice else FULL


@dataclass(frozen=True, slots=True)
class CircuitDetail:
    """A circuit as it is now, with the lowest and the highest intensity of its dial."""

    view: CircuitView
    circuit: Circuit
    dial_range: tuple[float, float]
    hazards: tuple[Hazard, ...]


@dataclass(frozen=True, slots=True)
class CircuitActivation:
    """The outcome of an activation. `applied` has the live values of the circuit by layer; None where a cluster serves
    one layer. `shared` are the layers on which the operator allowed an overlap."""

    view: CircuitView
    bound_layers: tuple[int, ...]
    slice_layer: int | None
    applied: Mapping[int, Mapping[int, float]] | None
    hazards: tuple[Hazard, ...]
    warnings: tuple[str, ...]
    acknowledged: bool
    shared: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CircuitIntensity:
    """The outcome of a new intensity. `reapplied` says that it is live now. `superseded` says that it was applied, and
    that the steering was changed again since."""

    view: CircuitView
    reapplied: bool
    superseded: bool
    warnings: tuple[str, ...]
