"""How activating, dialing and ending a circuit edits the live values. Each edit is one step of the epoch.

The values of a circuit belong to an owner of their own, so they are added to the values that other circuits, profiles
and operators set, and ending the circuit removes only them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from steerserve.rules.saes.attachment import AttachedSae
from steerserve.rules.steering import activation as serving
from steerserve.rules.steering import live as steering
from steerserve.rules.steering.binding import scaled
from steerserve.rules.steering.live import MANUAL, Active, Live
from steerserve.rules.steering.served import ServedCircuit

INTENSITY = 1.0
"""The intensity of a circuit whose document asks for none."""


def limits(
    declared: tuple[float, float] | None, envelope: tuple[float, float]
) -> tuple[float, float]:
    """The lowest and the highest intensity of a circuit: the declared range within the configured envelope."""
    lowest, highest = envelope
    first, second = declared or envelope
    return min(max(first, lowest), highest), min(max(second, lowest), highest)


def held(intensity: float, within: tuple[float, float]) -> float:
    """An intensity within the limits. Exactly 0 is honoured below them too."""
    return intensity if intensity == 0.0 else min(max(intensity, within[0]), within[1])


def outside(intensity: float, within: tuple[float, float]) -> tuple[str, ...]:
    """A warning about an intensity that the limits change."""
    used = held(intensity, within)
    if used == intensity:
        return ()
    lowest, highest = within
    return (f"the intensity {intensity:g} is outside [{lowest:g}, {highest:g}]; {used:g} is used",)


def activate(live: Live, circuit: ServedCircuit, attached: Sequence[AttachedSae]) -> Live:
    """Serve a circuit whole. (1) Its values, each clamped, become the values of its owner, and steering is switched on.
    (2) The active profile ends if it steers one of the layers, and the values at its SAE that no circuit owns are
    cleared. Activating a circuit again changes only what is different."""
    bare = replace(live, circuits=_without(live, circuit.circuit_id))
    active = bare.active
    if active is not None and displaced(live, circuit, attached):
        bare, active = _clear_profile(bare, active), None  # (2)
    values = scaled(circuit.authored, circuit.intensity)
    after = steering.replace_all(bare, circuit.owner, values)  # (1)
    return steering.mark(live, replace(after, circuits=_with(live, circuit)), active)


def serve_slice(live: Live, circuit: ServedCircuit) -> Live:
    """Note that the active cluster serves one layer of a circuit. The live values and the epoch do not change."""
    return replace(live, circuits=_with(live, circuit))


def displaced(live: Live, circuit: ServedCircuit, attached: Sequence[AttachedSae]) -> Active | None:
    """The active profile that a circuit displaces: one that steers a layer of the circuit. The cluster of another
    circuit's slice stays, because two circuits share a layer only where an operator allowed the overlap."""
    active = live.active
    others = _without(live, circuit.circuit_id)
    if active is None or active.profile_id in [other.profile_id for other in others]:
        return None
    fitting = [sae for sae in attached if sae.key == active.key] or active.choice.among(attached)
    return active if fitting and fitting[0].layer in circuit.layers else None


def redial(live: Live, circuit_id: str, intensity: float) -> Live:
    """Give a circuit that serves whole another intensity. Its values are made from its authored strengths anew. The
    steering switch stays as it is."""
    circuit = served(live, circuit_id)
    if circuit is None or circuit.is_slice:
        return live
    again = replace(circuit, intensity=intensity)
    values = scaled(circuit.authored, intensity)
    after = replace(steering.replace_all(live, circuit.owner, values), enabled=live.enabled)
    return steering.mark(live, replace(after, circuits=_with(live, again)), live.active)


def end(live: Live, circuit_id: str) -> Live:
    """End a circuit if it serves, and remove its values. A cluster that serves its slice ends with it."""
    circuit = served(live, circuit_id)
    if circuit is None:
        return live
    if circuit.profile_id is not None:
        return serving.deactivate(live, circuit.profile_id, clears=True)
    return steering.replace_all(live, circuit.owner, {})


def served(live: Live, circuit_id: str) -> ServedCircuit | None:
    """The circuit with this id, if it serves."""
    return next((circuit for circuit in live.circuits if circuit.circuit_id == circuit_id), None)


def is_steering(live: Live, circuit: ServedCircuit) -> bool:
    """Whether a circuit that serves whole changes what the model computes now."""
    held_values = live.by(circuit.owner).values()
    return live.enabled and any(value for values in held_values for value in values.values())


def _with(live: Live, circuit: ServedCircuit) -> tuple[ServedCircuit, ...]:
    """The circuits that serve, with this one in its old place or at the end."""
    ids = [one.circuit_id for one in live.circuits]
    if circuit.circuit_id not in ids:
        return (*live.circuits, circuit)
    return tuple(circuit if one.circuit_id == circuit.circuit_id else one for one in live.circuits)


def _without(live: Live, circuit_id: str) -> tuple[ServedCircuit, ...]:
    return tuple(one for one in live.circuits if one.circuit_id != circuit_id)


def _clear_profile(live: Live, active: Active) -> Live:
    """End the active profile. The values of MANUAL at its SAE are cleared, those at other SAEs stay."""
    kept = {key: values for key, values in live.by(MANUAL).items() if key != active.key}
    return steering.replace_all(replace(live, active=None), MANUAL, kept)
