"""Circuit sensing: which edges can be observed, and when an edge fires, as tables of cases."""

from __future__ import annotations

import pytest

from steerserve.nouns.circuit_sensing import rules
from steerserve.nouns.circuit_sensing.rules import AttachedLayer, EdgeTracker, Observation
from steerserve.nouns.circuits.rules.document import AuthoredEdge, CircuitEdgeEnd
from steerserve.nouns.cluster_sensing.rules import Thresholds

THRESHOLDS = Thresholds(0.1, 0.0)
ATTACHED = {6: AttachedLayer("a@6", 100), 9: AttachedLayer("b@9", 100)}
MAXIMA = [(6, 70, 5.0), (9, 31, 4.0), (9, 32, None)]


def edge(up: tuple[int, int | None], down: tuple[int, int | None]) -> AuthoredEdge:
    return AuthoredEdge(CircuitEdgeEnd(*up), CircuitEdgeEnd(*down))


@pytest.mark.parametrize(
    ("up", "down", "reason"),
    [
        ((6, 70), (9, 31), None),
        ((6, None), (9, 31), rules.NOT_A_FEATURE),
        ((5, 1), (9, None), rules.NOT_A_FEATURE),
        ((5, 1), (9, 32), rules.NOT_ATTACHED),
        ((6, 70), (12, 3), rules.NOT_ATTACHED),
        ((6, 100), (9, 31), rules.NOT_ATTACHED),
        ((6, 70), (9, 32), rules.NO_THRESHOLD),
        ((6, 71), (9, 31), rules.NO_THRESHOLD),
    ],
)
def test_the_first_reason_that_fits_is_reported(
    up: tuple[int, int | None], down: tuple[int, int | None], reason: str | None
) -> None:
    plan = rules.plan([edge(up, down)], ATTACHED, MAXIMA, THRESHOLDS)
    assert [one.reason for one in plan.unsensable] == ([] if reason is None else [reason])
    assert len(plan.edges) == (1 if reason is None else 0)


def test_only_features_of_sensable_edges_have_thresholds() -> None:
    plan = rules.plan(
        [edge((6, 70), (9, 31)), edge((6, 70), (9, 32))], ATTACHED, MAXIMA, THRESHOLDS
    )
    assert plan.thetas == {(6, 70): pytest.approx(0.5), (9, 31): pytest.approx(0.4)}
    assert plan.layers == [6, 9]


def test_the_largest_maximum_of_a_feature_counts_and_an_edge_counts_once() -> None:
    maxima = [*MAXIMA, (6, 70, 8.0), (6, 70, None), (9, 32, 0.0)]
    plan = rules.plan([edge((6, 70), (9, 31))] * 2, ATTACHED, maxima, THRESHOLDS)
    assert [one.key for one in plan.edges] == ["70@6->31@9"]
    assert plan.thetas[6, 70] == pytest.approx(0.8)


def test_a_floor_makes_features_without_maxima_sensable() -> None:
    plan = rules.plan([edge((6, 70), (9, 32))], ATTACHED, [], Thresholds(0.1, 0.7))
    assert plan.thetas == {(6, 70): 0.7, (9, 32): 0.7}


# ------------------------------------------------------------- firing

UP, DOWN = 0, 1


def tracker(lag: int = 8, most: int = 20, prompt: int = 10) -> EdgeTracker:
    return EdgeTracker([(UP, DOWN)], [6, 9], lag, most, prompt)


def lags(made: EdgeTracker) -> list[tuple[int, int]]:
    return [(one.up[0], one.down[0]) for one in made.observed]


@pytest.mark.parametrize(
    ("fires", "lag", "observed"),
    [
        ([(3, UP)], 8, []),
        ([(3, DOWN)], 8, []),
        ([(3, DOWN), (4, UP)], 8, []),
        ([(3, UP), (3, DOWN)], 8, []),
        ([(3, DOWN), (3, UP)], 8, []),
        ([(3, UP), (4, DOWN)], 8, [(3, 4)]),
        ([(3, UP), (11, DOWN)], 8, [(3, 11)]),
        ([(3, UP), (12, DOWN)], 8, []),
        ([(3, UP), (4, DOWN)], 1, [(3, 4)]),
        ([(3, UP), (5, DOWN)], 1, []),
        ([(3, UP), (5, UP), (6, DOWN)], 8, [(5, 6)]),
        ([(3, UP), (6, UP), (6, DOWN)], 8, [(3, 6)]),
        ([(3, UP), (6, DOWN), (6, UP)], 8, [(3, 6)]),
        ([(3, UP), (4, DOWN), (6, DOWN)], 8, [(3, 4), (3, 6)]),
    ],
)
def test_an_edge_fires_when_its_downstream_feature_follows_within_the_lag(
    fires: list[tuple[int, int]], lag: int, observed: list[tuple[int, int]]
) -> None:
    made = tracker(lag)
    for position, place in fires:
        made.feed(position, place, 1.0)
    assert lags(made) == observed


def test_an_observation_has_the_activations_and_the_phase_of_its_end() -> None:
    made = tracker()
    made.feed(9, UP, 2.5)
    made.feed(10, DOWN, 3.5)
    assert made.observed == [Observation(0, (9, 2.5), (10, 3.5), "decode")]
    line = rules.summary("rain", "70@6->31@9", made.observed[0], "associated")
    assert (
        line == "rain: 70@6->31@9 fired, 1 token apart, during decode @ 9-10 (evidence: associated)"
    )


def test_only_the_last_row_says_that_the_budget_was_spent() -> None:
    made = tracker(most=2)
    for position in (1, 3, 5, 7):
        made.feed(position, UP, 1.0)
        made.feed(position + 1, DOWN, 1.0)
    assert lags(made) == [(1, 2), (3, 4)]
    assert [one.is_truncated for one in made.observed] == [False, True]
    assert made.truncated_layers == {9}


def test_the_two_ends_may_be_at_one_layer() -> None:
    made = EdgeTracker([(0, 0)], [6], 8, 20, 10)
    for position in (1, 3):
        made.feed(position, 0, 1.0)
    assert lags(made) == [(1, 3)]


def flood(made: EdgeTracker, positions: range) -> None:
    for position in positions:
        for place in range(3):
            made.feed(position, place, 1.0)


def three(prompt: int) -> EdgeTracker:
    return EdgeTracker([(0, 3)], [6, 6, 6, 9], 8, 20, prompt)


def test_a_layer_that_fires_too_often_in_a_block_of_the_prompt_is_shed() -> None:
    made = three(prompt=2000)
    flood(made, range(1024))
    made.feed(1023, 3, 1.0)
    assert made.truncated_layers == {6}
    assert made.observed == []  # the newest firing that was used is too old
    flood(made, range(1024, 1026))
    made.feed(1026, 3, 1.0)
    assert lags(made) == [(1025, 1026)]


def test_decoded_positions_are_never_shed() -> None:
    made = three(prompt=1)
    flood(made, range(1, 1024))
    made.feed(1024, 3, 1.0)
    assert made.truncated_layers == set()
    assert lags(made) == [(1023, 1024)]
