"""Which replica gets a request, what an end of a replica does, and when replicas count as ready."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from steerserve.rules.residency import replicas
from steerserve.rules.residency.replicas import (
    BUSIER_ROWS,
    Candidate,
    EditAnswer,
    ReplicaState,
    ReplicaView,
    Strength,
)

S, D, L, R = (
    ReplicaState.SERVING,
    ReplicaState.DRAINING,
    ReplicaState.LOST,
    ReplicaState.RESTORING,
)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def view(state: ReplicaState, replaces: str | None = None) -> ReplicaView:
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
        replaces=replaces,
    )


@pytest.mark.parametrize(
    ("views", "wanted", "to_place"),
    [
        ([view(S), view(S)], 2, 0),
        ([view(S), view(L)], 2, 1),
        ([view(S), view(D)], 1, 0),
        ([view(S), view(S), view(ReplicaState.STARTING, "r")], 2, 1),
        ([view(S), view(S), view(R, "r")], 2, 0),
        ([view(S), view(D), view(S)], 2, 0),
        ([view(L), view(ReplicaState.STARTING, "r")], 1, 2),
    ],
)
def test_a_replica_in_the_place_of_another_one_is_not_wanted_yet_and_needs_room(
    views: list[ReplicaView], wanted: int, to_place: int
) -> None:
    assert replicas.wanted(views) == wanted
    assert replicas.to_place(views, wanted) == to_place


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


# ------------------------------------------------------------- which replica gets a request


def one(
    rows: int = 0,
    *,
    state: ReplicaState = S,
    epoch: int = 7,
    kind: str | None = "a",
    tokens: int = 0,
    held: int = 0,
    turn: int = 0,
) -> Candidate:
    return Candidate(state, epoch, kind, rows, tokens, held, turn)


@pytest.mark.parametrize(
    ("candidates", "kind", "place"),
    [
        ([], None, None),
        ([one()], None, 0),
        # only a replica that serves and has acknowledged the epoch
        ([one(state=L), one(state=D), one(state=R)], None, None),
        ([one(epoch=6)], None, None),
        ([one(epoch=6), one(1)], None, 1),
        # the first to acknowledge does not get all requests
        ([one(2, epoch=6), one(5)], None, 1),
        ([one(2, epoch=6), one(6)], None, None),
        ([one(2, epoch=6, kind="b"), one(6)], "a", 1),
        ([one(2, epoch=6, state=L), one(6)], None, 1),
        ([one(2, epoch=6), one(6), one(4)], None, 2),
        # only the kind that is needed
        ([one(kind="b"), one(9)], "a", 1),
        ([one(kind="b")], "a", None),
        ([one(kind=None)], "a", None),
        # the fewest rows, then the fewest tokens, then the longest ago
        ([one(2), one(1), one(3)], None, 1),
        ([one(1, tokens=9), one(1, tokens=5)], None, 1),
        ([one(1, turn=4), one(1, turn=3)], None, 1),
        # a replica that holds the beginning, as long as it is not much busier
        ([one(), one(1, held=1)], None, 1),
        ([one(), one(2, held=1)], None, 0),
        ([one(), one(BUSIER_ROWS, held=99)], None, 1),
        ([one(), one(BUSIER_ROWS + 1, held=99)], None, 0),
        ([one(10), one(14, held=50)], None, 1),
        # the most of the beginning, then the fewest rows
        ([one(1, held=3), one(2, held=8), one(0)], None, 1),
        ([one(2, held=8), one(1, held=8), one(0)], None, 1),
        # a holder that may not begin the request does not count
        ([one(held=9, epoch=6), one(3)], None, 1),
    ],
)
def test_a_request_goes_to_the_replica_with_the_least_work_that_may_begin_it(
    candidates: list[Candidate], kind: str | None, place: int | None
) -> None:
    assert replicas.choose(candidates, 7, kind, slots=4) == place


@pytest.mark.parametrize(
    ("before", "kinds", "kind"),
    [
        (None, [None, None], None),
        (None, [None, "b", "a"], "b"),
        ("a", ["b", "a"], "a"),
        ("a", ["b", "b"], "b"),
        ("a", [None], "a"),
        ("a", [], "a"),
    ],
)
def test_seeded_requests_stay_with_one_kind(
    before: str | None, kinds: list[str | None], kind: str | None
) -> None:
    assert replicas.seeded_kind(before, kinds) == kind


# ------------------------------------------------------------- ends, edits, sizes


@pytest.mark.parametrize(
    ("runs", "has_outcome", "again"),
    [(1, False, True), (2, False, True), (3, False, False), (1, True, False)],
)
def test_a_request_runs_again_only_without_a_token_and_not_for_ever(
    runs: int, has_outcome: bool, again: bool
) -> None:
    assert replicas.may_run_again(runs, has_outcome=has_outcome) is again


def test_pauses_grow_to_a_bound() -> None:
    pauses = [replicas.pause(failures) for failures in range(1, 30)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.0, 60.0)


@pytest.mark.parametrize(
    ("fleet", "hopeless"),
    [
        ([(L, 3)], True),
        ([(L, 2)], False),
        ([(L, 9), (S, 0)], False),
        ([(L, 9), (D, 0)], False),
        ([(L, 9), (ReplicaState.STALLED, 0)], False),
        ([(L, 9), (R, 2)], False),
        ([(L, 9), (R, 3)], True),
    ],
)
def test_a_fleet_ends_only_when_nothing_serves_and_nothing_starts(
    fleet: list[tuple[ReplicaState, int]], hopeless: bool
) -> None:
    assert replicas.is_hopeless(fleet) is hopeless


@pytest.mark.parametrize(
    ("answers", "accepted"),
    [
        ([EditAnswer.ACCEPTED, EditAnswer.REFUSED], True),
        ([EditAnswer.GONE, EditAnswer.ACCEPTED], True),
        ([EditAnswer.REFUSED, EditAnswer.REFUSED], False),
        ([EditAnswer.REFUSED, EditAnswer.GONE], False),
        ([EditAnswer.GONE], False),
    ],
)
def test_an_edit_holds_where_a_living_replica_has_made_it(
    answers: list[EditAnswer], accepted: bool
) -> None:
    assert replicas.is_accepted(answers) is accepted


def test_the_others_have_longer_for_an_edit_that_took_the_first_one_long() -> None:
    assert replicas.edit_patience(0.1) == replicas.EDIT_SECONDS
    assert replicas.edit_patience(60.0) == 180.0


@pytest.mark.parametrize(
    ("fleet", "count", "places"),
    [
        ([(S, 0), (S, 0)], 2, []),
        ([(S, 0), (S, 0)], 5, []),
        ([(S, 0), (S, 0), (S, 0)], 1, [1, 2]),
        ([(S, 3), (S, 1), (S, 2)], 2, [1]),
        ([(S, 0), (L, 0), (S, 0)], 2, [1]),
        ([(L, 0), (S, 5), (R, 0)], 1, [0, 2]),
    ],
)
def test_replicas_that_do_not_serve_go_first_and_then_the_least_busy(
    fleet: list[tuple[ReplicaState, int]], count: int, places: list[int]
) -> None:
    assert replicas.to_take_away(fleet, count) == places


@pytest.mark.parametrize(
    ("states", "waits"),
    [
        ([(ReplicaState.SERVING, True), (ReplicaState.LOST, False)], True),
        ([(ReplicaState.STARTING, True)], True),
        ([(ReplicaState.RESTORING, True)], True),
        ([(ReplicaState.STALLED, True)], True),
        ([(ReplicaState.STARTING, False), (ReplicaState.LOST, False)], False),
        ([(ReplicaState.STALLED, False)], False),
        ([(ReplicaState.DRAINING, True)], False),
        ([], False),
    ],
)
def test_work_waits_for_replicas_that_serve_or_have_a_place(
    states: list[tuple[ReplicaState, bool]], waits: bool
) -> None:
    assert replicas.may_serve_soon(states) is waits
