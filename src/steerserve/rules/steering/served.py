"""The circuits that serve: what is known about each of them beside its live values, and when one of them ends."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

OWNER = "circuit:"
"""The owner of the live values of a circuit is this prefix and the id of the circuit."""


@dataclass(frozen=True, slots=True)
class ServedCircuit:
    """A circuit that serves, whole or with one of its layers.

    Attributes:
        layers: the layers that it serves, in ascending order.
        authored: key of an SAE -> feature -> value at intensity 1. Empty for a circuit that serves one layer by a
            cluster, because these values belong to the cluster.
        intensity: the intensity at which it was applied.
        intensity_range: the intensities that the dial of a request may reach.
        profile_id: the cluster that serves one layer of the circuit; None for a circuit that serves whole.
    """

    circuit_id: str
    name: str
    rung: int
    layers: tuple[int, ...]
    authored: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    intensity: float = 1.0
    intensity_range: tuple[float, float] = (0.0, 2.0)
    profile_id: str | None = None

    @property
    def owner(self) -> str:
        return OWNER + self.circuit_id

    @property
    def is_slice(self) -> bool:
        """Whether a cluster serves one layer in the place of the whole circuit."""
        return self.profile_id is not None

    def is_whole(self, values: Mapping[str, Mapping[int, float]]) -> bool:
        """Whether these values of the circuit have every member. An operator may have removed members by hand."""
        return all(
            features.keys() == values.get(key, {}).keys() for key, features in self.authored.items()
        )


def still(
    circuits: Iterable[ServedCircuit],
    owned: Mapping[str, Mapping[str, Collection[int]]],
    profile_id: str | None,
) -> tuple[ServedCircuit, ...]:
    """The circuits that still serve after an edit. (1) A circuit ends when one of its layers has no value of its own
    any more, so that no circuit serves with less layers than it claims. (2) A slice ends with its cluster."""
    return tuple(
        circuit
        for circuit in circuits
        if (
            circuit.profile_id == profile_id  # (2)
            if circuit.is_slice
            else circuit.authored.keys() <= owned.get(circuit.owner, {}).keys()  # (1)
        )
    )


def composed(circuits: Collection[ServedCircuit]) -> frozenset[int]:
    """The layers that several circuits serve."""
    layers = [layer for circuit in circuits for layer in circuit.layers]
    return frozenset(layer for layer in layers if layers.count(layer) > 1)
