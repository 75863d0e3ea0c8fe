"""What reads the rows of all requests for longer than a request: monitoring and sensing.

Each gives the rows of a request parts of its own, which read as the parts do that a request asks for."""

from __future__ import annotations

from collections.abc import Sequence

from steerserve.messages import Event, Request
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.rows.rows import BatchRow


class LiveReader:
    """One such reader. The default methods do nothing."""

    def join(self, request: Request, rows: Sequence[BatchRow], saes: HookedSaes) -> None:
        """The rows of a request are about to join the batch: give them their parts."""

    def forget(self, request: int) -> None:
        """The request was cancelled or refused: none of its rows is in the batch any more."""

    def detached(self, number: int) -> None:
        """The SAE with this number was taken away."""

    def events(self) -> Sequence[Event]:
        """Events about the rows that ended since the last call; they are sent before the ends of these rows."""
        return ()

    def work(self) -> None:
        """All events of the step are sent. Do work that no client waits for."""


class LiveReaders:
    """The readers of one model, which are called in their order."""

    def __init__(self, members: Sequence[LiveReader] = ()) -> None:
        self._members = tuple(members)

    def join(self, request: Request, rows: Sequence[BatchRow], saes: HookedSaes) -> None:
        """Raises:
        Exception: the error of a member. By then, all members have forgotten the request.
        """
        try:
            for member in self._members:
                member.join(request, rows, saes)
        except Exception:
            self.forget(request.id)
            raise

    def forget(self, request: int) -> None:
        for member in self._members:
            member.forget(request)

    def detached(self, number: int) -> None:
        for member in self._members:
            member.detached(number)

    def events(self) -> list[Event]:
        return [event for member in self._members for event in member.events()]

    def work(self) -> None:
        for member in self._members:
            member.work()
