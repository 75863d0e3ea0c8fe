"""How activating a circuit edits the live values, in one step of the epoch.

The values of a circuit belong to an owner of their own, so they are added to the values that other circuits, profiles
and operators set, and ending the circuit removes only them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from steerserve.rules.saes.attachment import AttachedSae
from steerserve.rules.steering import live as steering
from steerserve.rules.steering.live import Live
from steerserve.rules.steering.placed import MANUAL
from steerserve.rules.steering.served import Served, ServedCircuit, ServedProfile

INTENSITY = 1.0
"""The intensity of a circuit whose document asks for none."""


def activate(live: Live, circuit: ServedCircuit, attached: Sequence[AttachedSae]) -> Live:
    """Serve a circuit. (1) Its values, each clamped, become the values of its owner, and steering is switched on. (2)
    The active profile ends if it steers one of the layers. The values of MANUAL at its SAE are cleared, those at other
    SAEs stay. (3) Where a cluster serves one layer of the circuit, no live value changes."""
    active = None if circuit.is_slice else displaced(live, circuit, attached)
    if active is None:
        return steering.serve(live, circuit, live.owned)  # (1), (3)
    others = tuple(one for one in live.served if one is not active)
    kept = dict(live.owned)
    if active.key is not None and MANUAL in kept:
        kept[MANUAL] = kept[MANUAL].without(active.key)
    return steering.serve(replace(live, served=others), circuit, kept)  # (2)


def displaced(
    live: Live, circuit: ServedCircuit, attached: Sequence[AttachedSae]
) -> ServedProfile | None:
    """The active profile that a circuit displaces: one that steers a layer of the circuit. The cluster of another
    circuit's slice stays, because two circuits share a layer only where an operator allowed the overlap."""
    active = live.active
    others = [other.cluster_id for other in live.circuits if other.id != circuit.id]
    if active is None or active.id in others:
        return None
    fitting = [sae for sae in attached if sae.key == active.key] or active.choice.among(attached)
    return active if fitting and fitting[0].layer in circuit.layers else None


def is_steering(live: Live, circuit: Served) -> bool:
    """Whether a circuit that serves whole changes what the model computes now."""
    held_values = live.by(circuit.owner).values()
    return live.enabled and any(value for values in held_values for value in values.values())
