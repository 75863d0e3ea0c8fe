"""Whose turn it is at the slots and at the batch, and who is refused by a full queue."""

from __future__ import annotations

from collections import Counter

import pytest

from steerserve.rules.inference.queue import Request, displaced, next_request, rows_limit


def requests(text: str) -> list[Request]:
    """`a1 b2x16` are request 1 of client a and request 2 of client b, which has 16 rows."""
    made = []
    for word in text.split():
        number, _, rows = word[1:].partition("x")
        made.append(Request(word[0], int(number), int(rows or 1)))
    return made


def rows(running: str) -> Counter[str]:
    """The number of rows of each client."""
    counted: Counter[str] = Counter()
    for request in requests(running):
        counted[request.client] += request.rows
    return counted


@pytest.mark.parametrize(
    ("waiting", "running", "ended", "turn"),
    [
        pytest.param("", "", {}, None, id="nobody-waits"),
        pytest.param("a3 a2 a4", "", {}, 2, id="one-client-in-the-order-of-arrival"),
        pytest.param("a1 a2 b9", "a0", {}, 9, id="a-client-without-a-running-row-is-first"),
        pytest.param("a1 b2", "a0 b0x16", {}, 1, id="sides-of-a-compare-count-as-rows"),
        pytest.param("a1 b2", "a0x3 b0 b0", {}, 2, id="rows-count-and-not-requests"),
        pytest.param("a1 a2 b3 c4", "a0 b0 c0", {"a": 8, "b": 7, "c": 6}, 4, id="turns-go-round"),
        pytest.param("a1 b9", "", {"a": 8}, 1, id="a-newcomer-waits-for-those-whose-turn-is-due"),
        pytest.param("a1 b7", "", {"a": 8}, 7, id="whose-request-ended-since-goes-behind"),
    ],
)
def test_the_next_slot_goes_round_among_clients_by_running_rows(
    waiting: str, running: str, ended: dict[str, int], turn: int | None
) -> None:
    request = next_request(requests(waiting), rows(running), ended)
    assert (request and request.number) == turn


@pytest.mark.parametrize(
    ("waiting", "running", "turn"),
    [
        pytest.param("a1", "a0x9", None, id="not-a-client-above-the-limit"),
        pytest.param(
            "a1 b2", "a0x16 b0x9", None, id="not-the-one-with-fewest-rows-above-the-limit"
        ),
        pytest.param("a1 b2", "a0x9 b0x8", 2, id="a-client-at-the-limit"),
        pytest.param("a1 b2 c3", "a0x9 b0", 3, id="a-client-without-running-rows-first"),
    ],
)
def test_clients_above_the_limit_of_rows_get_no_slot(
    waiting: str, running: str, turn: int | None
) -> None:
    request = next_request(requests(waiting), rows(running), {}, rows_limit=8)
    assert (request and request.number) == turn


@pytest.mark.parametrize(
    ("free", "slots", "running", "recent", "limit"),
    [
        pytest.param(1, 8, "a0x112", "b", 8, id="the-last-slot-beside-a-recent-client"),
        pytest.param(2, 8, "a0x96", "b", None, id="not-the-last-but-one"),
        pytest.param(1, 8, "a0x112", "a", None, id="a-client-that-is-alone-gets-all-slots"),
        pytest.param(1, 8, "a0x112", "", None, id="no-client-was-here-lately"),
        pytest.param(1, 8, "a0x112 b0", "b", None, id="the-recent-client-has-a-slot"),
        pytest.param(1, 8, "a0x112 b0", "b c", 8, id="the-second-recent-client-has-none"),
        pytest.param(1, 1, "", "b", 1, id="the-only-slot-goes-to-any-client-without-rows"),
    ],
)
def test_the_last_slot_is_kept_from_clients_with_many_rows_beside_a_recent_client(
    free: int, slots: int, running: str, recent: str, limit: int | None
) -> None:
    assert rows_limit(free, slots, rows(running), recent.split()) == limit


@pytest.mark.parametrize(
    ("client", "waiting", "running", "refused"),
    [
        pytest.param("a", "a2 a3", "a1", None, id="alone-the-arriving-one"),
        pytest.param("b", "a2 a3", "a1", 3, id="the-newest-of-the-greedy-client"),
        pytest.param("b", "a2", "a1", 2, id="running-requests-count-as-places"),
        pytest.param("b", "", "a1 a2 a3", None, id="running-requests-stay"),
        pytest.param("b", "a2", "c1", None, id="nobody-holds-more-than-the-newcomer-would"),
        pytest.param("b", "a2 b3", "a1", None, id="equal-after-the-arrival"),
        pytest.param("b", "a2 a4 b3", "a1 c0", 4, id="more-than-it-holds-itself"),
        pytest.param("c", "a2 a3 b4 b5 b6", "a1 a0", 3, id="the-greediest-of-two"),
        pytest.param("c", "a2 a3 b4 b5", "", 5, id="the-newest-of-two-equally-greedy-ones"),
    ],
)
def test_a_full_queue_refuses_the_newest_request_of_the_client_with_most_places(
    client: str, waiting: str, running: str, refused: int | None
) -> None:
    request = displaced(client, requests(waiting), requests(running))
    assert (request and request.number) == refused
