"""Replicas of the resident model: their states, and when so many of them count as ready, degraded or not ready."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

COUNT_MAXIMUM = 64
"""The largest number of replicas. ENGINE_REPLICAS has the same bound."""
NAMED_MAXIMUM = 4
"""The number of replicas that a sentence for people names."""


class ReplicaState(StrEnum):
    """What a replica does."""

    STARTING = "starting"
    """Its engine is started, and loads the model."""
    RESTORING = "restoring"
    """Its engine is told what the other replicas were told: SAEs, steering, monitoring, sensing."""
    SERVING = "serving"
    DRAINING = "draining"
    """It ends after its requests, and gets no new ones."""
    STALLED = "stalled"
    """Its engine gives no sign of life. It gets no new requests."""
    LOST = "lost"
    """Its engine has ended. It is started again after a pause."""
    ENDED = "ended"
    """It has been taken away. Only the announcement of a change has this state."""


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica, as everybody may read it.

    Attributes:
        name: its name in the fleet, which stays the same when it is started again.
        node: the name of the node where its engine runs; None where the engine names no node.
        address: the address of that node; None for this host.
        pid: the id of the process of its engine on that node; None where none runs.
        epoch: the last epoch of the fleet that it has acknowledged.
        requests: the requests that run on it.
        slots: the requests that are meant to run on it at once.
        devices: the devices of its weights (`cpu`, `cuda:0`).
        memory_mb: the memory of the loaded model on each of these devices.
        kind: replicas with the same kind compute the same bits; None before the model is loaded.
        restarts: how often it was started again.
        reason: why it was lost, stalls, or was started again last; None where nothing of this happened.
        since: when it came into its state.
    """

    name: str
    node: str | None
    address: str | None
    pid: int | None
    state: ReplicaState
    epoch: int
    requests: int
    slots: int
    gpu_indices: tuple[int, ...]
    devices: tuple[str, ...]
    memory_mb: tuple[int, ...]
    kind: str | None
    restarts: int
    reason: str | None
    since: datetime


class Strength(StrEnum):
    """How many of the wanted replicas serve."""

    WHOLE = "whole"
    DEGRADED = "degraded"
    """Fewer than wanted, and as many as a load needs."""
    WEAK = "weak"
    """Fewer than a load needs, and at least one."""
    NONE = "none"


def wanted(views: Sequence[ReplicaView]) -> int:
    """The number of replicas that an operator wants: all but those that are being taken away."""
    return sum(view.state is not ReplicaState.DRAINING for view in views)


def serving(views: Sequence[ReplicaView]) -> int:
    """The number of replicas that get requests."""
    return sum(view.state is ReplicaState.SERVING for view in views)


def strength(views: Sequence[ReplicaView], least: int) -> Strength:
    """What the replicas amount to, where a load needs `least` of them."""
    count = serving(views)
    if not count:
        return Strength.NONE
    if count >= wanted(views):
        return Strength.WHOLE
    return Strength.DEGRADED if count >= least else Strength.WEAK


def described(views: Sequence[ReplicaView]) -> str:
    """How many of the wanted replicas serve, and what the others do, as a clause for people."""
    away = [v for v in views if v.state not in (ReplicaState.SERVING, ReplicaState.DRAINING)]
    named = [f"{v.name} is {v.state}" + (f": {v.reason}" if v.reason else "") for v in away]
    if len(named) > NAMED_MAXIMUM:
        named[NAMED_MAXIMUM:] = [f"{len(named) - NAMED_MAXIMUM} more do not serve"]
    return "; ".join([f"{serving(views)} of {wanted(views)} replicas serve", *named])
