"""Bodies of requests that are in memory: which one is given up where all of them together need too much.

(1) All bodies together have a bound, and those of one client half of it.
(2) Where a client has more than its half, one of its own bodies is given up.
(3) Where all have too much, one of the client that has most is given up.
(4) Of a client's bodies the slowest is given up: that with the fewest bytes a second. A body that has arrived whole is
    never given up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Body:
    """A body with its bytes in memory, and the moment at which it began to arrive."""

    client: str
    since: float
    size: int = 0
    is_whole: bool = False


def displaced(bodies: Collection[Body], newest: Body, most: int, now: float) -> Body | None:
    """The body that is given up after bytes of `newest` came, which is among `bodies`. None where all have room."""
    held: Counter[str] = Counter()
    for body in bodies:
        held[body.client] += body.size
    arriving = [body for body in bodies if not body.is_whole or body is newest]
    if held[newest.client] > most // 2:  # (2)
        chosen = newest.client
    elif held.total() > most:  # (3)
        chosen = max((body.client for body in arriving), key=held.__getitem__)
    else:
        return None
    own = [body for body in arriving if body.client == chosen]
    return min(own, key=lambda body: body.size / max(now - body.since, 1e-3))  # (4)
