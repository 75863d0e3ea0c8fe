"""The list of observers of the attached SAEs, which are called at fixed points of a request and of a forward pass.

The batch knows this list and none of its members, so a new member changes nothing there.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import structlog

from steerserve.messages import Event, Outcome, Request
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.hooks.places import Catch
from steerserve.worker.rows.rows import BatchRow

log = structlog.get_logger(__name__)
Span = tuple[int, int]
"""The position of a row's first token in a pass, and how many of its tokens the pass reads."""


class Observer:
    """One observer. Each method is called at one such point; the default methods do nothing."""

    def begin(self, request: Request, rows: Sequence[BatchRow], saes: HookedSaes) -> None:
        """The rows of a request are about to join the batch.

        Raises:
            Refusal: the request is refused, and `forget` follows.
        """

    def expect(
        self, rows: Sequence[BatchRow], spans: Sequence[Span]
    ) -> Iterable[tuple[int, Catch]]:
        """The next pass reads these spans of these rows. Returns the numbers of the attached SAEs whose values are
        wanted in this pass, each with the function that takes the value."""
        return ()

    def settle(self) -> None:
        """The pass succeeded: the values that were copied in the pass may be used."""

    def discard(self) -> None:
        """The pass failed or was stopped: the values that were copied in the pass must be dropped. A pass that was
        stopped runs again."""

    def progress(self, row: BatchRow) -> Sequence[Outcome]:
        """A pass has written one more token of the row, and the row goes on. Returns the outcomes that are sent before
        the text of that token.

        Raises:
            Refusal: the row ends with this refusal.
        """
        return ()

    def end(self, row: BatchRow) -> Sequence[Outcome]:
        """The row is complete. Returns the outcomes that are sent before its end.

        Raises:
            Refusal: the row ends with this refusal instead.
        """
        return ()

    def forget(self, request: int) -> None:
        """The request was cancelled or refused: none of its rows is in the batch any more."""

    def detached(self, number: int) -> None:
        """The SAE with this number was taken away."""

    def mark(self, row: BatchRow) -> Hashable:
        """A value that stands for what this observer reads of the row. The row uses a kept prefix only where the row
        that computed it had an equal value."""
        return None

    def notes(self, row: BatchRow) -> object:
        """What this observer has read of a row that has ended, to be kept with its prefix."""
        return None

    def resume(self, row: BatchRow, length: int, notes: object) -> None:
        """The row begins after `length` tokens of a kept prefix. `notes` were kept with the prefix."""

    def events(self) -> Sequence[Event]:
        """Events about the rows that ended since the last call; they are sent before the ends of these rows."""
        return ()

    def work(self) -> None:
        """All events of the step are sent. The observer may now do work that no client waits for."""


class Observers:
    """The observers of one model, which are called in their order."""

    def __init__(self, members: Sequence[Observer] = ()) -> None:
        self._members = tuple(members)

    def begin(self, request: Request, rows: Sequence[BatchRow], saes: HookedSaes) -> None:
        """Raises:
        Refusal: the refusal of a member. By then, all members have forgotten the request.
        """
        try:
            for member in self._members:
                member.begin(request, rows, saes)
        except Exception:
            self.forget(request.id)
            raise

    def expect(self, rows: Sequence[BatchRow], spans: Sequence[Span]) -> dict[int, list[Catch]]:
        """Called before a pass over these rows. Returns, by the number of an attached SAE, the functions that take the
        value of its site."""
        catches: dict[int, list[Catch]] = {}
        for member in self._members:
            for number, catch in member.expect(rows, spans):
                catches.setdefault(number, []).append(catch)
        return catches

    def settle(self) -> None:
        for member in self._members:
            try:
                member.settle()
            except Exception:
                # the pass has its logits; only what this member saw in it is lost
                log.exception("observers_failed")
                member.discard()

    def discard(self) -> None:
        for member in self._members:
            member.discard()

    def progress(self, row: BatchRow) -> list[Outcome]:
        """Raises:
        Refusal: the row ends with this refusal.
        """
        return [outcome for member in self._members for outcome in member.progress(row)]

    def end(self, row: BatchRow) -> list[Outcome]:
        """Raises:
        Refusal: the row ends with this refusal instead.
        """
        return [outcome for member in self._members for outcome in member.end(row)]

    def forget(self, request: int) -> None:
        for member in self._members:
            member.forget(request)

    def detached(self, number: int) -> None:
        for member in self._members:
            member.detached(number)

    def mark(self, row: BatchRow) -> Hashable:
        return tuple(member.mark(row) for member in self._members)

    def notes(self, row: BatchRow) -> tuple[object, ...]:
        return tuple(member.notes(row) for member in self._members)

    def resume(self, row: BatchRow, length: int, notes: Sequence[object]) -> None:
        for member, note in zip(self._members, notes, strict=True):
            member.resume(row, length, note)

    def events(self) -> list[Event]:
        return [event for member in self._members for event in member.events()]

    def work(self) -> None:
        for member in self._members:
            member.work()
