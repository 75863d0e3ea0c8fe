"""The state of an engine: everything beside requests that shapes a forward pass, as one value.

A change is a function from the state before to the state after. An engine gets the whole state, and works out the
difference to the state that it holds.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from steerserve.messages.sensing import ArmedCircuit, ArmedCluster
from steerserve.messages.values import Message, SaeSource
from steerserve.rules.steering.edits import Edit
from steerserve.rules.steering.placed import NO_MODIFIERS, Modifiers


class PlacedSae(Message, frozen=True):
    """An SAE at a layer under `key` (`sae_id@layer`); `check` runs the self-check on a short text. `dtype` is the dtype
    of its matrices (`float32`, `bfloat16`, `float16`); None keeps the dtype of the file."""

    key: str
    source: SaeSource
    layer: int
    dtype: str | None = None
    check: bool = True


class Steering(Message, frozen=True):
    """The live steering. `values` maps the key of an attached SAE to feature index -> value. `edits` and `modifiers`
    are those of an `Overlay`."""

    epoch: int = 0
    enabled: bool = False
    values: dict[str, dict[int, float]] = {}
    edits: tuple[Edit, ...] = ()
    modifiers: Modifiers = NO_MODIFIERS


class Monitored(Message, frozen=True):
    """The features of the SAE `key` are watched in every generation. Only `features` are encoded, or all features where
    it is None. A record names the `top_k` largest features. The text around the last `contexts` monitored tokens is
    kept. The statistics and the contexts stay until `ResetStatistics`, or until the SAE is detached."""

    key: str
    features: list[int] | None = None
    top_k: int = 10
    contexts: int = 0


class State(Message, frozen=True):
    """What an engine holds beside its model. `saes` are in the order in which they were attached, and no two of them
    have the same key. `cluster` and `circuits` are sensed in the rows that begin from now on; a row that has begun
    keeps those with which it began, as far as they are still sensed."""

    saes: tuple[PlacedSae, ...] = ()
    steering: Steering = Steering()
    monitored: Monitored | None = None
    cluster: ArmedCluster | None = None
    circuits: tuple[ArmedCircuit, ...] = ()

    @property
    def keys(self) -> list[str]:
        """The keys of the attached SAEs."""
        return [sae.key for sae in self.saes]

    def attached(self, sae: PlacedSae) -> State:
        """With one more SAE."""
        return structs.replace(self, saes=(*self.saes, sae))

    def detached(self, *keys: str) -> State:
        """Without the SAEs of these keys, and without everything that reads or steers one of them."""
        values = {key: of for key, of in self.steering.values.items() if key not in keys}
        edits = tuple(edit for edit in self.steering.edits if edit.keys.isdisjoint(keys))
        is_watched = self.monitored is not None and self.monitored.key in keys
        is_sensed = self.cluster is not None and self.cluster.key in keys
        return State(
            tuple(sae for sae in self.saes if sae.key not in keys),
            structs.replace(self.steering, values=values, edits=edits),
            None if is_watched else self.monitored,
            None if is_sensed else self.cluster,
            tuple(
                circuit
                for circuit in self.circuits
                if all(feature.key not in keys for feature in circuit.features)
            ),
        )

    def since(self, before: State) -> Difference:
        """The difference from the state `before` to this state."""
        gone = tuple(sae.key for sae in before.saes if sae not in self.saes)
        left = before.detached(*gone)
        return Difference(
            gone=gone,
            coming=tuple(sae for sae in self.saes if sae not in left.saes),
            is_steered=self.steering != left.steering,
            is_monitored=self.monitored != left.monitored,
            is_sensed=(self.cluster, self.circuits) != (left.cluster, left.circuits),
        )


class Difference(Message, frozen=True):
    """What an engine does to get from one state to another: it detaches the SAEs `gone` with everything that goes with
    them, attaches the SAEs `coming`, and takes those parts of the new state that differ beside that."""

    gone: tuple[str, ...]
    coming: tuple[PlacedSae, ...]
    is_steered: bool
    is_monitored: bool
    is_sensed: bool

    def __bool__(self) -> bool:
        return bool(
            self.gone or self.coming or self.is_steered or self.is_monitored or self.is_sensed
        )


Step = Callable[[State], State]
"""A change: the state before -> the state after."""


def setting(**parts: object) -> Step:
    """The change that replaces these fields of the state."""
    return lambda state: structs.replace(state, **parts)
