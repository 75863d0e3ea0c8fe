"""The state of an engine: changes from state to state, and what an engine does to get from one to another."""

from __future__ import annotations

import pytest

from steerserve import messages as m

A = m.PlacedSae("a@0", m.SaeSource("/saes/a", "a"), 0)
B = m.PlacedSae("b@1", m.SaeSource("/saes/b", "b"), 1)
OTHER_A = m.PlacedSae("a@0", m.SaeSource("/saes/other", "a"), 0)
OF_A = m.ArmedCircuit("c", "C", [m.CircuitFeature("a@0", 0, 3, 1.0)], [], 8, 20, 16)
OF_BOTH = m.ArmedCircuit(
    "d", "D", [*OF_A.features, m.CircuitFeature("b@1", 1, 5, 2.0)], [], 8, 2, 0
)
OF_B = m.ArmedCircuit("e", "E", [m.CircuitFeature("b@1", 1, 5, 2.0)], [], 8, 20, 16)
CLUSTER = m.ArmedCluster("k", "K", "a@0", [m.ClusterMember(1, float("inf"))], 1, 20, 16)
VALUES = {"a@0": {1: 5.0}, "b@1": {2: 3.0}}
FULL = m.State(
    (A, B), m.Steering(4, True, VALUES), m.Monitored("a@0", [3]), CLUSTER, (OF_A, OF_BOTH, OF_B)
)
BOTH = m.State((A, B))
NOTHING: dict[str, object] = {
    "gone": (),
    "coming": (),
    "is_steered": False,
    "is_monitored": False,
    "is_sensed": False,
}


def difference(**parts: object) -> m.Difference:
    return m.Difference(**{**NOTHING, **parts})


@pytest.mark.parametrize(
    ("keys", "left"),
    [
        ((), FULL),
        (("c@2",), FULL),
        (("a@0",), m.State((B,), m.Steering(4, True, {"b@1": {2: 3.0}}), circuits=(OF_B,))),
        (
            ("b@1",),
            m.State((A,), m.Steering(4, True, {"a@0": {1: 5.0}}), FULL.monitored, CLUSTER, (OF_A,)),
        ),
        (("a@0", "b@1"), m.State(steering=m.Steering(4, True))),
    ],
)
def test_a_detached_sae_takes_with_it_everything_that_reads_or_steers_it(
    keys: tuple[str, ...], left: m.State
) -> None:
    assert FULL.detached(*keys) == left


def test_saes_are_in_the_order_in_which_they_were_attached() -> None:
    assert m.State().attached(B).attached(A).keys == ["b@1", "a@0"]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (FULL, FULL, difference()),
        (m.State(), m.State((A, B)), difference(coming=(A, B))),
        (m.State((B,)), m.State((B, A)), difference(coming=(A,))),
        (BOTH, m.State((OTHER_A, B)), difference(gone=("a@0",), coming=(OTHER_A,))),
        # what goes together with an SAE is no difference beside the SAE
        (FULL, FULL.detached("a@0"), difference(gone=("a@0",))),
        (FULL, FULL.detached("a@0", "b@1"), difference(gone=("a@0", "b@1"))),
        (
            FULL,
            m.setting(steering=m.Steering(5, False))(FULL.detached("a@0")),
            difference(gone=("a@0",), is_steered=True),
        ),
        (BOTH, m.setting(steering=m.Steering(1))(BOTH), difference(is_steered=True)),
        (FULL, m.setting(monitored=None)(FULL), difference(is_monitored=True)),
        (FULL, m.setting(monitored=m.Monitored("a@0", [4]))(FULL), difference(is_monitored=True)),
        (FULL, m.setting(cluster=None)(FULL), difference(is_sensed=True)),
        (FULL, m.setting(circuits=(OF_B,))(FULL), difference(is_sensed=True)),
        (m.State(), FULL, m.Difference((), (A, B), True, True, True)),
    ],
)
def test_a_difference_names_what_an_engine_has_to_do(
    before: m.State, after: m.State, expected: m.Difference
) -> None:
    found = after.since(before)
    assert found == expected
    assert bool(found) is (found != difference())


def test_a_state_is_the_same_on_both_ends_of_the_wire() -> None:
    command = m.Apply(7, FULL)
    assert m.decode_command(m.frame(command)[m.LENGTH.size :]) == command
