"""What serves: the profiles, clusters and circuits that an operator activated, and when one of them ends."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from steerserve.rules.saes.attachment import FIRST_SAE, ClusterChoice, SaeChoice
from steerserve.rules.steering.intensity import WHOLE, Range
from steerserve.rules.steering.placed import INTERVENTIONS, MANUAL, NOTHING, Placed, Values

OWNER = "circuit:"
"""The owner of the live values of a circuit is this prefix and the id of the circuit."""

Owned = Mapping[str, Placed]
"""Owner -> what it adds and edits."""


def owner_of(circuit_id: str) -> str:
    """The owner of the live values of a circuit."""
    return OWNER + circuit_id


@dataclass(frozen=True, slots=True)
class Served:
    """A profile, a cluster or a circuit that serves.

    Attributes:
        parts: owner of live values -> what it was given at intensity 1. Empty where no live value was changed.
        intensity: the intensity at which the parts were applied.
        cluster_id: the cluster that serves in its place, and with which it ends.
    """

    id: str
    parts: Owned = field(default_factory=dict)
    intensity: float = 1.0
    cluster_id: str | None = None

    @property
    def owner(self) -> str:
        """The owner of its values."""
        return MANUAL

    def own(self, owned: Owned) -> Owned:
        """The parts that are still its own. Interventions are not any more once others took their place."""
        return {
            owner: part
            for owner, part in self.parts.items()
            if part.standing == owned.get(owner, NOTHING).standing
        }

    def stands(self, owned: Owned) -> bool:
        """Whether each attachment that it steers has a value of its owner left."""
        return all(
            part.values.keys() <= owned.get(owner, NOTHING).values.keys()
            for owner, part in self.own(owned).items()
        )

    def without(self, key: str) -> Served:
        """Its interventions lose what reads or edits the SAE `key`."""
        part = self.parts.get(INTERVENTIONS)
        if part is None:
            return self
        return replace(self, parts={**self.parts, INTERVENTIONS: part.without(key)})

    def switched(self, *, enabled: bool, mutes: bool) -> Served:
        """The same after an edit that leaves steering switched on or off. `mutes` says that an operator switched it
        off."""
        return self


@dataclass(frozen=True, slots=True)
class ServedProfile(Served):
    """The profile that was activated last.

    Attributes:
        authored: the values of the profile as saved now, before any intensity.
        choice: the SAE that the profile was made for.
        is_muted: for a profile that was not applied: an operator has switched steering off, so the dial does not switch
            it on.
        is_cluster: whether the profile is a cluster.
        declared_range: the range of the intensity that the cluster declares.
    """

    authored: Values = field(default_factory=dict)
    choice: SaeChoice | ClusterChoice = FIRST_SAE
    is_muted: bool = False
    is_cluster: bool = False
    declared_range: tuple[float, float] | None = None

    @property
    def is_applied(self) -> bool:
        """Whether the values of the profile became live values when it was activated."""
        return bool(self.parts)

    @property
    def key(self) -> str | None:
        """The SAE that got these values; None where the profile has no values or was not applied."""
        return next(iter(self.parts.get(MANUAL, NOTHING).values), None)

    @property
    def applied(self) -> Mapping[str, Values]:
        """All values of MANUAL right after the activation, or after the last change of the intensity."""
        return self.parts.get(MANUAL, NOTHING).at(self.intensity).values

    def stands(self, owned: Owned) -> bool:
        """Whether its values or its edits are left. A profile that has neither stands until it is ended."""
        had = [o for o, part in self.parts.items() if part.values or o == INTERVENTIONS]
        return not had or any(self._has_left(owner, owned) for owner in had)

    def _has_left(self, owner: str, owned: Owned) -> bool:
        part, held = self.parts[owner], owned.get(owner, NOTHING)
        if owner == INTERVENTIONS:
            return bool(part.standing) and part.standing == held.standing
        return part.values.keys() <= held.values.keys()

    def switched(self, *, enabled: bool, mutes: bool) -> Served:
        if self.is_applied:
            return self
        return replace(self, is_muted=(self.is_muted or mutes) and not enabled)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedCircuit(Served):
    """A circuit that serves, whole or with one of its layers by a cluster. In this case it has no parts, because the
    values belong to the cluster.

    Attributes:
        layers: the layers that it serves, in ascending order.
        limits: the intensities that the dial of a request may reach.
    """

    name: str
    rung: int
    layers: tuple[int, ...]
    limits: Range = WHOLE

    @property
    def owner(self) -> str:
        return owner_of(self.id)

    @property
    def authored(self) -> Mapping[str, Values]:
        """Key of an SAE -> feature -> value at intensity 1."""
        return self.parts.get(self.owner, NOTHING).values

    @property
    def is_slice(self) -> bool:
        """Whether a cluster serves one layer in the place of the whole circuit."""
        return self.cluster_id is not None

    def is_whole(self, values: Mapping[str, Mapping[int, float]]) -> bool:
        """Whether these values of the circuit have every member. An operator may have removed members by hand."""
        return all(
            features.keys() == values.get(key, {}).keys() for key, features in self.authored.items()
        )


def left(owned: Owned, served: Sequence[Served]) -> tuple[Owned, tuple[Served, ...]]:
    """What is left of the owned values and of what serves after an edit. (1) A circuit ends when one of the attachments
    that it steers has no value of its owner any more, so that no circuit serves with less layers than it claims. A
    profile ends when neither its values nor its edits are left. (2) A slice ends with its cluster. (3) What has ended
    takes along all that is its own but the values of MANUAL, which an operator may have set."""
    standing = {one.id: one for one in served if one.stands(owned)}  # (1)
    still = {i: one for i, one in standing.items() if one.cluster_id in (None, *standing)}  # (2)
    gone = {owner for one in served if one.id not in still for owner in one.own(owned)} - {MANUAL}
    kept = {owner: held for owner, held in owned.items() if owner not in gone}  # (3)
    return kept, tuple(still.values())


def composed(circuits: Collection[ServedCircuit]) -> frozenset[int]:
    """The layers that several circuits serve."""
    layers = [layer for circuit in circuits for layer in circuit.layers]
    return frozenset(layer for layer in layers if layers.count(layer) > 1)
