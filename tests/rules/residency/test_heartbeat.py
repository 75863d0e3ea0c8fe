"""Signs of life of an engine: what the number says, how long a silence is, and what it means."""

from __future__ import annotations

import pytest

from steerserve.rules.residency import heartbeat
from steerserve.rules.residency.heartbeat import (
    LOOK_SECONDS,
    Activity,
    Bounds,
    Condition,
    Pace,
    Sign,
    Silence,
)

BOUNDS = Bounds(stall=300.0, load=1800.0)


def watched(*seen: Sign, every: float = LOOK_SECONDS) -> Silence:
    """The silence after looks at these signs, `every` seconds apart."""
    silence = None
    for number, sign in enumerate(seen):
        silence = heartbeat.silence(silence, sign, number * every)
    assert silence is not None
    return silence


def silent(activity: Activity, seconds: float, *, is_stopped: bool = False) -> Silence:
    return watched(*[Sign(activity, 7, is_stopped)] * (int(seconds / LOOK_SECONDS) + 1))


@pytest.mark.parametrize("activity", Activity)
@pytest.mark.parametrize("count", [0, 1, (1 << 56) - 1, 1 << 56, (1 << 56) + 5])
def test_a_number_says_the_activity_and_the_count(activity: Activity, count: int) -> None:
    number = heartbeat.word(activity, count)
    assert 0 <= number < 1 << 64
    assert heartbeat.sign(number) == Sign(activity, count % (1 << 56))


@pytest.mark.parametrize("code", [7, 100, 255])
def test_a_number_that_no_engine_writes_is_read_all_the_same(code: int) -> None:
    assert heartbeat.sign((code << 56) + 3) == Sign(Activity.COMMAND, 3)


def test_every_new_sign_ends_a_silence() -> None:
    assert silent(Activity.DECODE, 5).seconds == 5
    same = [Sign(Activity.DECODE, 7)] * 5
    assert watched(*same, Sign(Activity.DECODE, 8)).seconds == 0
    assert watched(*same, Sign(Activity.IDLE, 7)).seconds == 0


def test_time_in_which_nobody_looked_does_not_count_against_the_engine() -> None:
    asleep = watched(*[Sign(Activity.IDLE, 7)] * 2, every=3600.0)
    assert asleep.seconds == 2 * LOOK_SECONDS
    assert heartbeat.condition(asleep, BOUNDS) is Condition.ALIVE
    assert heartbeat.silence(asleep, asleep.sign, asleep.at - 50).seconds == asleep.seconds


@pytest.mark.parametrize(
    ("activity", "seconds", "expected"),
    [
        (Activity.IDLE, 9, "alive"),
        (Activity.IDLE, 10, "stalled"),
        (Activity.COMMAND, 20, "stalled"),
        (Activity.PREFILL, 19, "alive"),
        (Activity.PREFILL, 20, "stalled"),
        (Activity.DECODE, 299, "stalled"),
        (Activity.DECODE, 300, "lost"),
        (Activity.SAE, 1799, "alive"),
        (Activity.SAE, 1800, "lost"),
        (Activity.LOAD, 1799, "alive"),
        (Activity.LOAD, 1800, "lost"),
    ],
)
def test_a_silence_means_what_the_activity_allows(
    activity: Activity, seconds: float, expected: str
) -> None:
    assert heartbeat.condition(silent(activity, seconds), BOUNDS) == expected


def test_work_without_a_sign_before_its_end_has_more_time() -> None:
    def at(seconds: float) -> Condition:
        looks = [Sign(Activity.PREFILL, 7, extra=100.0)] * (int(seconds / LOOK_SECONDS) + 1)
        return heartbeat.condition(watched(*looks), BOUNDS)

    assert [at(seconds) for seconds in (119, 120, 399, 400)] == [
        "alive",
        "stalled",
        "stalled",
        "lost",
    ]


@pytest.mark.parametrize(
    ("measures", "expected"),
    [
        ([], 50.0),  # nothing is measured: the slowest pace
        ([(31, 100.0)], 50.0),  # too few tokens
        ([(100, 0.0)], 50.0),
        ([(100, 1.0)], 10.0),
        ([(100, 1.0), (100, 2.0), (100, 0.5)], 20.0),  # the slowest measure
        ([(100, 500.0)], 50.0),  # a measure beyond the slowest pace, as of a suspended machine
    ],
)
def test_a_pass_may_take_a_multiple_of_the_slowest_measure(
    measures: list[tuple[int, float]], expected: float
) -> None:
    pace = Pace()
    for tokens, seconds in measures:
        pace = pace.measured(tokens, seconds)
    assert pace.seconds(100) == pytest.approx(expected)


@pytest.mark.parametrize("activity", Activity)
def test_a_process_on_a_node_that_is_cut_off_is_stalled_whatever_it_was_doing(
    activity: Activity,
) -> None:
    cut = watched(*[Sign(activity, 7, is_cut=True)] * 3)
    assert heartbeat.condition(cut, BOUNDS) is Condition.STALLED
    assert "nothing comes from its node" in heartbeat.described(cut)
    back = heartbeat.silence(cut, Sign(activity, 7), cut.at + 0.5)
    assert back.stopped_seconds == 0


@pytest.mark.parametrize("activity", Activity)
def test_a_stopped_process_is_stalled_whatever_it_was_doing(activity: Activity) -> None:
    assert heartbeat.condition(silent(activity, 0.5, is_stopped=True), BOUNDS) is Condition.ALIVE
    stopped = silent(activity, 1, is_stopped=True)
    assert heartbeat.condition(stopped, BOUNDS) is Condition.STALLED
    assert "its process is stopped" in heartbeat.described(stopped)
    assert heartbeat.condition(silent(activity, 300, is_stopped=True), BOUNDS) is Condition.LOST
    goes_on = heartbeat.silence(stopped, Sign(activity, 8), stopped.at + 0.5)
    assert (heartbeat.condition(goes_on, BOUNDS), heartbeat.length(goes_on)) == (Condition.ALIVE, 0)


def test_a_short_bound_comes_before_every_patience() -> None:
    assert heartbeat.condition(silent(Activity.IDLE, 2), Bounds(2, 1800)) is Condition.LOST
    stopped = silent(Activity.LOAD, 0.5, is_stopped=True)
    assert heartbeat.condition(stopped, Bounds(0.5, 1800)) is Condition.LOST


@pytest.mark.parametrize("activity", Activity)
def test_a_silence_is_told_with_its_age_and_the_activity(activity: Activity) -> None:
    told = heartbeat.described(silent(activity, 12))
    assert told.startswith("the engine has sent no heartbeat for 12 s (it ")
