"""The rows that wait to join the batch. Clients take turns by the rule of the slots (`rules/inference/queue.py`)."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from steerserve.rules import clients
from steerserve.rules.inference import queue
from steerserve.rules.inference.queue import Request
from steerserve.worker.rows.rows import BatchRow


@dataclass(frozen=True, slots=True, eq=False)
class Joining:
    """Rows that join the batch at once. With `is_seeded` they are a group of their own."""

    request: Request
    rows: list[BatchRow]
    is_seeded: bool


class WaitingRows:
    """The rows that wait, for each client in the order of their arrival."""

    def __init__(self) -> None:
        self._of: dict[str, deque[Joining]] = {}
        # when a waiting client's rows last joined, in the count of arrivals and joins
        self._joined: dict[str, int] = {}
        self._count = itertools.count(1)

    def __bool__(self) -> bool:
        return bool(self._of)

    @property
    def has_live(self) -> bool:
        """Whether a row waits that does not yield."""
        return not all(map(clients.is_in_background, self._of))

    @property
    def rows(self) -> list[BatchRow]:
        return [row for line in self._of.values() for joining in line for row in joining.rows]

    def add(self, rows: list[BatchRow], client: str, *, is_seeded: bool = False) -> None:
        """Add rows that join at once."""
        yields = clients.is_in_background(client)
        for row in rows:
            row.client, row.yields = client, yields
        request = Request(client, next(self._count), len(rows))
        self._of.setdefault(client, deque()).append(Joining(request, rows, is_seeded))

    def next(self, running: Mapping[str, int]) -> Joining | None:
        """The rows that join next, where `running` has the number of running rows of each client. None where no rows
        wait."""
        # the rule asks for each client's oldest request only, and thousands may wait
        first = {line[0].request: line[0] for line in self._of.values()}
        request = queue.next_request(first, running, self._joined)
        return None if request is None else first[request]

    def remove_rows(self, joining: Joining) -> None:
        """Take the first rows of a client out, because they join."""
        client = joining.request.client
        self._of[client].popleft()
        self._joined[client] = next(self._count)
        self._forget_idle()

    def cancel(self, request: int) -> None:
        """Forget the rows of a request."""
        for client, line in self._of.items():
            self._of[client] = deque(one for one in line if one.rows[0].request != request)
        self._forget_idle()

    def _forget_idle(self) -> None:
        """Forget the clients without waiting rows."""
        for client in [client for client, line in self._of.items() if not line]:
            del self._of[client]
            self._joined.pop(client, None)
