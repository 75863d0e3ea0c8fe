"""Turns at the processes: who is next, who may run long, who is refused when too many wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from steerserve.rules.bounds import ACCOUNTS_KEPT
from steerserve.rules.inference import fairness
from steerserve.rules.inference.fairness import Account, Turn

PROCESSES = 4


def turns(text: str) -> list[Turn]:
    """Questions in the order of their arrival: a letter is a client, in upper case where the question is long."""
    return [Turn(one.lower(), i, is_long=one.isupper()) for i, one in enumerate(text)]


NEXT: list[tuple[str, str, dict[str, float], int | None]] = [
    # waiting, running, seconds used lately, the place of the next question among the waiting
    ("", "", {}, None),
    ("aab", "", {}, 0),
    ("aab", "", {"a": 1.0}, 2),
    ("aab", "", {"a": 1.0, "b": 2.0}, 0),
    ("abc", "", {"a": 3.0, "b": 2.0, "c": 2.0}, 1),
    # (1) long questions of all clients leave one process free
    ("D", "ABC", {}, None),
    ("Da", "ABC", {}, 1),
    ("D", "ABc", {}, 0),
    # (2) one client leaves one process free
    ("a", "aaa", {}, None),
    ("ab", "aaa", {}, 1),
    ("ab", "aAa", {"b": 9.0}, 1),
    # (3) the long questions of one client leave a process to its own quick ones
    ("Aa", "AA", {}, 1),
    ("Aa", "AAa", {}, None),
    ("AB", "AA", {}, 1),
]


@pytest.mark.parametrize(("waiting", "running", "used", "place"), NEXT)
def test_the_next_question_is_of_the_client_that_used_least(
    waiting: str, running: str, used: dict[str, float], place: int | None
) -> None:
    asked = turns(waiting)
    held = [replace(turn, number=100 + turn.number) for turn in turns(running)]
    chosen = fairness.next_turn(asked, held, PROCESSES, used)
    assert chosen == (None if place is None else asked[place])


def test_a_client_gets_its_short_questions_answered_first() -> None:
    long, short, same = Turn("a", 0, size=9), Turn("a", 1, size=2), Turn("a", 2, size=2)
    assert fairness.next_turn([long, same, short], [], PROCESSES, {}) == short
    other = Turn("b", 3, size=50)
    assert fairness.next_turn([long, short, other], [], PROCESSES, {"a": 0.1}) == other


def test_a_long_question_is_next_after_enough_later_ones() -> None:
    long = Turn("a", 0, size=10**6)
    for newest, is_next in ((fairness.OLD - 1, False), (fairness.OLD, True)):
        short = Turn("a", newest, size=1)
        assert (fairness.next_turn([long, short], [], 1, {}) == long) == is_next
    other = Turn("b", fairness.OLD, size=1)
    assert fairness.next_turn([long, other], [], 1, {"a": 0.1}) == other


def test_a_single_lane_serves_questions_of_every_kind() -> None:
    for kind in "aA":
        (turn,) = turns(kind)
        assert fairness.may_run(turn, [], 1)
        assert not fairness.may_run(turn, [Turn("a", 9, is_long=True)], 1)


OVERFLOW: list[tuple[str, int, int | None]] = [
    # waiting questions that may be refused, how many may wait, the place of the refused one
    ("aaa", 3, None),
    ("aaaa", 3, 3),
    ("aaab", 3, 2),
    ("aabb", 3, 3),
    ("baaa", 3, 3),
    ("abcd", 3, 3),
]


@pytest.mark.parametrize(("waiting", "maximum", "place"), OVERFLOW)
def test_the_client_that_has_most_questions_gives_its_newest_place(
    waiting: str, maximum: int, place: int | None
) -> None:
    asked = [Turn(one, i, may_drop=True) for i, one in enumerate(waiting)]
    dropped = fairness.overflow(asked, maximum)
    assert dropped == (None if place is None else asked[place])


def test_a_question_that_may_not_be_refused_takes_no_place() -> None:
    certain = [Turn("a", i) for i in range(9)]
    assert fairness.overflow([*certain, Turn("b", 9, may_drop=True)], 1) is None


def test_used_time_is_forgotten_by_halves() -> None:
    account = Account().charged(4.0, now=10.0)
    assert account.lately(10.0) == 4.0
    assert account.lately(10.0 + fairness.HALF_LIFE) == pytest.approx(2.0)
    again = account.charged(1.0, now=10.0 + 2 * fairness.HALF_LIFE)
    assert again.lately(10.0 + 2 * fairness.HALF_LIFE) == pytest.approx(2.0)


def test_the_clients_that_used_most_are_remembered() -> None:
    count = ACCOUNTS_KEPT + 5
    accounts = {str(i): Account(float(i), 0.0) for i in range(count)}
    kept = fairness.kept(accounts, now=1.0)
    assert set(kept) == {str(i) for i in range(5, count)}
