"""Which body of a request is given up where all need too much memory."""

from __future__ import annotations

import pytest

from steerserve.rules.bodies import Body, displaced

NOW = 100.0


@pytest.mark.parametrize(
    ("bodies", "given_up"),
    [
        # (client, seconds since it began, size, whether it is whole); the last one grew
        ([("a", 9, 40, False)], None),
        ([("a", 9, 51, False)], 0),
        ([("a", 9, 50, False), ("b", 9, 50, False)], None),
        # the slowest one of a client with more than its half
        ([("a", 90, 30, False), ("a", 1, 21, False)], 0),
        ([("a", 90, 30, True), ("a", 1, 21, False)], 1),
        ([("b", 90, 30, False), ("a", 9, 30, False), ("a", 1, 21, False)], 1),
        # one of the client that has most, where all have too much
        ([("a", 9, 45, False), ("b", 9, 35, False), ("c", 99, 21, False)], 0),
        ([("a", 9, 45, True), ("b", 9, 35, False), ("c", 99, 21, False)], 1),
        # a body that has just become whole has no room among other whole ones
        ([("a", 9, 50, True), ("b", 9, 50, True), ("c", 9, 1, True)], 2),
    ],
)
def test_the_slowest_body_of_the_client_with_most_is_given_up(
    bodies: list[tuple[str, float, int, bool]], given_up: int | None
) -> None:
    made = [Body(client, NOW - age, size, whole) for client, age, size, whole in bodies]
    found = displaced(made, made[-1], 100, NOW)
    assert (None if found is None else made.index(found)) == given_up
