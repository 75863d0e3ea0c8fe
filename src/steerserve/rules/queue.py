"""The queue of inference requests: which waiting request gets the next slot, and which request a full queue refuses.

Clients take turns, so that a client with many requests, or with large ones, delays only itself. A request has as many
rows in the running batch as it has choices.

(1) The next slot goes to the client with the fewest running rows.
(2) Of several such clients it goes to the one that has waited longest for its turn: since its last request ended, or
    since its oldest waiting request came.
(3) The requests of one client are served in the order of their arrival.
(4) A full queue takes a request in place of another one where a client with a waiting request would still hold more
    places than the arriving client. The newest waiting request of the client that holds most places then goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """A request in the queue.

    Attributes:
        number: the moment of its arrival, in a count of arrivals and ended requests.
        rows: the rows that it has in the running batch once it runs.
    """

    client: str
    number: int
    rows: int = 1


def next_request(
    waiting: Iterable[Request], running: Iterable[Request], ended: Mapping[str, int]
) -> Request | None:
    """The request that gets the next free slot. None where no request waits. `ended` has the moments at which the
    last requests of clients gave their slots back."""
    rows: Counter[str] = Counter()
    for request in running:
        rows[request.client] += request.rows
    oldest: dict[str, Request] = {}
    for request in sorted(waiting, key=lambda request: request.number):
        oldest.setdefault(request.client, request)  # (3)
    return min(
        oldest.values(),
        key=lambda request: (
            rows[request.client],  # (1)
            max(request.number, ended.get(request.client, 0)),  # (2)
        ),
        default=None,
    )


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
