"""Which replica gets a request, what an end of a replica does, and when replicas count as ready."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from steerserve.rules import replicas
from steerserve.rules.replicas import ReplicaState, ReplicaView, Strength

S, D, L, R = (
    ReplicaState.SERVING,
    ReplicaState.DRAINING,
    ReplicaState.LOST,
    ReplicaState.RESTORING,
)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def view(state: ReplicaState) -> ReplicaView:
    return ReplicaView(
        name="r",
        node=None,
        address=None,
        pid=1,
        state=state,
        epoch=1,
        requests=0,
        slots=1,
        gpu_indices=(),
        devices=("cpu",),
        memory_mb=(1,),
        kind="k",
        restarts=0,
        reason=None,
        since=NOW,
    )


@pytest.mark.parametrize(
    ("states", "least", "strength"),
    [
        ([], 1, Strength.NONE),
        ([L], 1, Strength.NONE),
        ([D], 1, Strength.NONE),
        ([S], 1, Strength.WHOLE),
        ([S, S, S], 2, Strength.WHOLE),
        ([S, S, L], 2, Strength.DEGRADED),
        ([S, R, L], 2, Strength.WEAK),
        ([S, S, D], 3, Strength.WHOLE),
        ([S, S, D, R], 2, Strength.DEGRADED),
    ],
)
def test_replicas_that_are_taken_away_are_not_missed(
    states: list[ReplicaState], least: int, strength: Strength
) -> None:
    assert replicas.strength([view(state) for state in states], least) is strength


@pytest.mark.parametrize(
    ("states", "sentence"),
    [
        ([S, S], "2 of 2 replicas serve"),
        ([S, D], "1 of 1 replicas serve"),
        ([S, R], "1 of 2 replicas serve; r is restoring"),
        (
            [L] * 6,
            "0 of 6 replicas serve; r is lost; r is lost; r is lost; r is lost; 2 more do not serve",
        ),
    ],
)
def test_a_sentence_tells_who_serves_and_what_the_others_do(
    states: list[ReplicaState], sentence: str
) -> None:
    assert replicas.described([view(state) for state in states]) == sentence
