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
    """Its engine sends no heartbeat. It gets no new requests."""
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
        reason: why it was lost, stalls, or is started again; None while it serves.
        since: when it came into its state.
        replaces: the name of the replica in whose place it is started, until it serves; None for all others.
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
    replaces: str | None


class Strength(StrEnum):
    """How many of the wanted replicas serve."""

    WHOLE = "whole"
    DEGRADED = "degraded"
    """Fewer than wanted, and as many as a load needs."""
    WEAK = "weak"
    """Fewer than a load needs, and at least one."""
    NONE = "none"


def wanted(views: Sequence[ReplicaView]) -> int:
    """The number of replicas that an operator wants: all but those that are being taken away, and those that are
    started in the place of another one, which still counts."""
    return sum(view.state is not ReplicaState.DRAINING and view.replaces is None for view in views)


def serving(views: Sequence[ReplicaView]) -> int:
    """The number of replicas that get requests."""
    return sum(view.state is ReplicaState.SERVING for view in views)


def holds_memory(view: ReplicaView) -> bool:
    """Whether the model is in the memory of a replica, so that its node tells less free memory."""
    return view.state not in (ReplicaState.STARTING, ReplicaState.LOST, ReplicaState.ENDED)


def to_place(views: Sequence[ReplicaView], count: int) -> int:
    """How many replicas still have to find room when `count` are wanted: also those that start or are lost now, or are
    started in the place of another one."""
    staying = [view for view in views if view.state is not ReplicaState.DRAINING]
    starting = sum(view.replaces is not None for view in staying)
    return count + starting - sum(holds_memory(view) for view in staying)


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


# ------------------------------------------------------------- which replica gets a request

BUSIER_ROWS = 4
"""The most rows by which a replica that holds the beginning of a prompt may be busier than the replica with the fewest
rows, and still get the request. Each block of the prompt that it holds is worth one row."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica as the choice for a request sees it.

    Attributes:
        epoch: the last epoch that it has acknowledged.
        kind: what it computes, see `ReplicaView`.
        rows: the rows of the requests that run on it.
        tokens: the tokens of these rows: those of their prompts, and those that may still be written.
        held: how many blocks of the beginning of the prompt it holds, from earlier requests.
        turn: the number of the last request that it got; the smaller, the longer ago.
    """

    state: ReplicaState
    epoch: int
    kind: str | None
    rows: int
    tokens: int
    held: int
    turn: int


def may_begin(one: Candidate, epoch: int, kind: str | None) -> bool:
    """Whether a request may begin on a replica.

    (1) The replica serves. (2) It has acknowledged the present epoch of the fleet. (3) It is of the kind that the
    request needs; None stands for any.
    """
    is_kind = kind is None or one.kind == kind
    return one.state is ReplicaState.SERVING and one.epoch == epoch and is_kind  # (1) (2) (3)


def choose(
    candidates: Sequence[Candidate], epoch: int, kind: str | None = None, slots: int = 1
) -> int | None:
    """The place of the replica that gets a request; None while it has to wait. `slots` is the number of requests that
    are meant to run on one replica.

    (1) Only replicas on which the request may begin. (2) While others have not acknowledged the epoch yet, none gets
    more than `slots` rows more than the least busy of all has. So the first to acknowledge does not get all requests
    that wait. (3) Those that hold the most of the beginning of the prompt, where they are not much busier than the
    replica with the fewest rows. (4) The fewest rows, because the time of a step depends on the rows in it; of equals,
    the fewest tokens; of equals, the one whose last request is longest ago.
    """
    fit = [one for one in enumerate(candidates) if may_begin(one[1], epoch, kind)]  # (1)
    late = [
        one.rows for one in candidates if one.epoch != epoch and may_begin(one, one.epoch, kind)
    ]
    if late:
        fit = [p for p in fit if p[1].rows < min(late) + slots]  # (2)
    if not fit:
        return None
    fewest = min(one.rows for _, one in fit)
    near = [p for p in fit if p[1].held and p[1].rows <= fewest + min(BUSIER_ROWS, p[1].held)]
    most = max((one.held for _, one in near), default=0)
    holders = [(place, one) for place, one in near if one.held == most]
    best = min(holders or fit, key=lambda p: (p[1].rows, p[1].tokens, p[1].turn))  # (3) (4)
    return best[0]


def seeded_kind(before: str | None, kinds: Sequence[str | None]) -> str | None:
    """The kind that serves requests with a seed. `kinds` has the kinds of all wanted replicas, None for one that has
    not been loaded yet.

    The kind of the first replica stays the kind of seeded requests, also while none of its replicas serves. Once an
    operator has taken all of them away, it is the kind of the first replica that is left.
    """
    if before in kinds and before is not None:
        return before
    return next((kind for kind in kinds if kind is not None), before)


# ------------------------------------------------------------- what the end of a replica does

RUNS = 3
"""How often a request is run at most. A request that ends every engine that takes it must not end all of them."""


def may_run_again(runs: int, *, has_outcome: bool) -> bool:
    """Whether a request whose replica has ended is run again on another one: only where nothing of its answer was sent,
    and RUNS times in all."""
    return not has_outcome and runs < RUNS


PAUSES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
"""Seconds before a replica is started again, by the number of times that it failed in a row."""

STEADY_SECONDS = 60.0
"""A replica that has served for so long has no failures any more."""

STARTS = 3
"""The failed starts of each replica after which a fleet without a serving replica ends."""


def pause(failures: int) -> float:
    """The seconds before a replica is started again, after so many failures in a row."""
    return PAUSES[min(max(failures, 1), len(PAUSES)) - 1]


def is_hopeless(replicas: Sequence[tuple[ReplicaState, int]]) -> bool:
    """Whether a fleet can serve no more. `replicas` has the state of each replica and how many of its starts failed in
    a row: none may still serve, and each was started STARTS times for nothing."""
    alive = (ReplicaState.SERVING, ReplicaState.DRAINING, ReplicaState.STALLED)
    return all(state not in alive and failed >= STARTS for state, failed in replicas)


def may_serve_soon(replicas: Sequence[tuple[ReplicaState, bool]]) -> bool:
    """Whether requests should wait for a replica: one serves, or has a place where it loads, is told the setup, or may
    wake. `replicas` has the state of each replica and whether its engine runs. A replica that starts and has no engine
    is still looked for a place for."""
    placed = (ReplicaState.STARTING, ReplicaState.RESTORING, ReplicaState.STALLED)
    return any(
        state is ReplicaState.SERVING or (state in placed and is_running)
        for state, is_running in replicas
    )


# ------------------------------------------------------------- edits

EDIT_SECONDS = 30.0
"""Seconds that every replica has for an edit after the first replica has carried it out."""


def edit_patience(first: float) -> float:
    """The seconds that the other replicas have for an edit which took the first one `first` seconds. An SAE is read
    from the disk of each node."""
    return max(EDIT_SECONDS, 3 * first)


class EditAnswer(StrEnum):
    """What a replica made of an edit."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    GONE = "gone"
    """It ended, is stalled, or did not answer in time."""


def is_accepted(answers: Sequence[EditAnswer]) -> bool:
    """Whether an edit holds: at least one living replica has carried it out. The replicas that refused it or are gone
    are then lost, and are started again with it. Where none has carried it out, nothing has changed anywhere."""
    return EditAnswer.ACCEPTED in answers


def to_take_away(replicas: Sequence[tuple[ReplicaState, int]], count: int) -> list[int]:
    """The places of the replicas that go when only `count` stay. `replicas` has state and rows of each wanted one.

    Those that do not serve go first, then those with the fewest rows; of equals, the last.
    """

    def worth(place: int) -> tuple[bool, int, int]:
        state, rows = replicas[place]
        return state is ReplicaState.SERVING, rows, -place

    order = sorted(range(len(replicas)), key=worth)
    return sorted(order[: max(0, len(replicas) - count)])


@dataclass(frozen=True, slots=True)
class ReplicaFigures:
    """How many replicas the resident model has: `wanted` by the operator, `serving` requests, and `least`, the number
    that a load needs. `strength` says what the serving replicas amount to."""

    wanted: int
    serving: int
    least: int
    strength: Strength


@dataclass(frozen=True, slots=True)
class ReplicaSet(ReplicaFigures):
    """The replicas of the resident model at one moment, in the order of their names."""

    model_id: int
    replicas: Sequence[ReplicaView]
