"""The number of threads: at the load, and beside other processes."""

from __future__ import annotations

import pytest

from steerserve.rules.inference.threads import (
    Stretch,
    Threads,
    adjusted,
    choices,
    environment,
    usable,
)


@pytest.mark.parametrize(
    ("physical", "allowed", "quota", "threads"),
    [
        (8, 16, None, 8),
        (8, 4, None, 4),
        (None, 4, None, 4),
        (8, 8, 2.0, 2),
        (8, 8, 2.9, 2),
        (8, 8, 0.5, 1),
        (8, 2, 6.0, 2),
        (0, 2, None, 2),
    ],
)
def test_the_engine_starts_with_the_processors_that_it_may_use(
    physical: int | None, allowed: int, quota: float | None, threads: int
) -> None:
    assert usable(physical, allowed, quota) == threads


@pytest.mark.parametrize(
    ("now", "most", "seconds", "waited", "idle", "then"),
    [
        pytest.param(2, 2, 1.0, 0.4, 0.0, 2, id="a-short-wait-changes-nothing"),
        pytest.param(2, 2, 1.0, 0.5, 0.0, 1, id="a-neighbour-takes-a-processor"),
        pytest.param(2, 2, 0.2, 0.2, 0.0, 2, id="a-short-window-says-nothing"),
        pytest.param(2, 2, 4.0, 1.9, 0.0, 2, id="waits-count-per-second"),
        pytest.param(1, 1, 1.0, 0.9, 0.0, 1, id="one-thread-is-the-least"),
        pytest.param(16, 16, 1.0, 0.5, 0.0, 15, id="one-neighbour-takes-one-thread"),
        pytest.param(16, 16, 2.0, 8.0, 0.0, 12, id="four-neighbours-take-four"),
        pytest.param(2, 16, 1.0, 9.0, 0.0, 1, id="never-below-one"),
        pytest.param(1, 2, 1.0, 0.0, 0.9, 2, id="the-neighbour-has-gone"),
        pytest.param(1, 2, 1.0, 0.0, 0.4, 1, id="the-neighbour-pauses"),
        pytest.param(12, 16, 1.0, 0.0, 3.3, 15, id="three-of-four-neighbours-have-gone"),
        pytest.param(15, 16, 1.0, 0.0, 5.0, 16, id="never-above-the-most"),
        pytest.param(2, 2, 1.0, 0.0, 0.9, 2, id="idle-processors-of-a-full-engine"),
    ],
)
def test_threads_follow_the_processors_that_others_take(
    now: int, most: int, seconds: float, waited: float, idle: float, then: int
) -> None:
    assert adjusted(Threads(now, choices(most)), Stretch(seconds, waited, idle)).now == then


def test_threads_that_were_raised_are_lowered_again_only_beside_a_busy_process() -> None:
    free, service, busy = (
        Stretch(0.3, waited, idle) for waited, idle in ((0, 0.3), (0.1, 0), (0.2, 0))
    )
    raised = adjusted(Threads(1, choices(2)), free)
    assert [adjusted(raised, window).now for window in (free, service, busy)] == [2, 2, 1]


def test_one_thread_stays_one_where_the_bits_differ() -> None:
    assert adjusted(Threads(2, (2,)), Stretch(1.0, 1.0, 0.0)) == Threads(2, (2,))


@pytest.mark.parametrize(
    ("most", "numbers"), [(1, (1,)), (2, (1, 2)), (4, (1, 2, 3, 4)), (16, (1, 8, 12, 15, 16))]
)
def test_an_engine_has_few_numbers_of_threads_to_choose_from(
    most: int, numbers: tuple[int, ...]
) -> None:
    assert choices(most) == numbers


@pytest.mark.parametrize(
    ("named", "chosen"),
    [
        ({}, {"MKL_CBWR": "AUTO", "GOMP_SPINCOUNT": "4000"}),
        ({"MKL_CBWR": "AVX2"}, {"GOMP_SPINCOUNT": "4000"}),
        ({"GOMP_SPINCOUNT": "7"}, {"MKL_CBWR": "AUTO"}),
        ({"OMP_WAIT_POLICY": "passive"}, {"MKL_CBWR": "AUTO"}),
    ],
)
def test_variables_that_the_operator_has_set_stay(
    named: dict[str, str], chosen: dict[str, str]
) -> None:
    assert environment(named) == chosen
