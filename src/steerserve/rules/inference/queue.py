"""Turns of clients: which waiting request gets the next slot, which waiting rows join the batch next, and which
request a full queue refuses.

Clients take turns, so that a client with many requests, or with large ones, delays only itself. A request has as many
rows in the running batch as it has choices.

(1) The next slot goes to the client with the fewest running rows.
(2) Of several such clients it goes to the one that has waited longest for its turn: since its last turn, or since its
    oldest waiting request came. A turn at the slots is when a request of the client gives its slot back.
(3) The requests of one client are served in the order of their arrival.
(4) A full queue takes a request in place of another one where a client with a waiting request would still hold more
    places than the arriving client. The newest waiting request of the client that holds most places then goes.
(5) The last free slot is kept while a client that runs nothing now had a request in the last RECENT_SECONDS: a client
    with more running rows than there are slots does not get it. A client that is alone gets every slot.

The rows that have a slot and wait for room in the batch follow (1) to (3) too. A turn is then when rows of the client
join the batch. (6) Rows of requests that yield, which are clients of their own, come after all others there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from steerserve.rules.clients import is_in_background

RECENT_SECONDS = 300.0
"""How long the last free slot is kept for a client after its last request."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request in the queue.

    Attributes:
        number: the moment of its arrival, in a count of arrivals and turns.
        rows: the rows that it has in the running batch once it runs.
    """

    client: str
    number: int
    rows: int = 1


def next_request(
    waiting: Iterable[Request],
    running: Mapping[str, int],
    turns: Mapping[str, int],
    *,
    rows_limit: int | None = None,
) -> Request | None:
    """The request that is next. None where no request waits. `running` has the number of running rows of each client
    that has any, and `turns` the moments of the last turns of clients. Clients with more than `rows_limit` running rows
    get no turn."""
    oldest: dict[str, Request] = {}
    for request in sorted(waiting, key=lambda request: request.number):
        oldest.setdefault(request.client, request)  # (3)
    return min(
        (
            request
            for request in oldest.values()
            if rows_limit is None or running.get(request.client, 0) <= rows_limit
        ),
        key=lambda request: (
            is_in_background(request.client),  # (6)
            running.get(request.client, 0),  # (1)
            max(request.number, turns.get(request.client, 0)),  # (2)
        ),
        default=None,
    )


def rows_limit(
    free: int, slots: int, running: Mapping[str, int], recent: Iterable[str]
) -> int | None:
    """The most running rows of a client that may get the next slot, where `free` of the slots are free. None where any
    client may get it. `recent` has the clients whose requests ended in the last RECENT_SECONDS."""
    is_kept = free == 1 and any(client not in running for client in recent)
    return slots if is_kept else None  # (5)


def displaced(
    client: str, waiting: Iterable[Request], running: Iterable[Request]
) -> Request | None:
    """The request that a full queue refuses in place of a request of `client` that arrives. None where it refuses the
    arriving one. `waiting` has all requests without a slot, also those that wait for their model."""
    waiting = list(waiting)
    places = Counter(request.client for request in (*waiting, *running))
    newest = max(
        waiting, key=lambda request: (places[request.client], request.number), default=None
    )
    if newest is None or places[newest.client] <= places[client] + 1:  # (4)
        return None
    return newest
