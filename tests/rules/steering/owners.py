"""Owners of live values, and circuits that serve, as the tests of the rules write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steerserve.rules.steering import live as steering
from steerserve.rules.steering.live import Live
from steerserve.rules.steering.placed import Placed, Values, not_zero
from steerserve.rules.steering.served import ServedCircuit, owner_of


def owned(values: Mapping[str, Mapping[str, Values]]) -> dict[str, Placed]:
    """Owner -> key -> values, as `Live` has them."""
    return {owner: Placed(of) for owner, of in values.items()}


def values_of(live: Live) -> dict[str, Mapping[str, Values]]:
    """The values of each owner."""
    return {owner: held.values for owner, held in live.owned.items()}


def effective(
    live: Live, overlay: Mapping[str, Values] | None, planned_on: int | None, key: str
) -> dict[int, float]:
    """The values of a row of the batch at one attachment."""
    own = None if overlay is None else Placed(overlay)
    return not_zero(steering.effective(live, own, planned_on).values.get(key, {}))


def whole(
    circuit_id: str,
    name: str,
    rung: int,
    layers: tuple[int, ...],
    authored: Mapping[str, Values],
    **more: Any,
) -> ServedCircuit:
    """A circuit that serves whole."""
    parts = {owner_of(circuit_id): Placed(authored)}
    return ServedCircuit(circuit_id, parts, name=name, rung=rung, layers=layers, **more)


def moved(circuit: ServedCircuit, authored: Mapping[str, Values]) -> dict[str, Placed]:
    """The parts of a circuit with other values."""
    return {circuit.owner: Placed(authored)}
