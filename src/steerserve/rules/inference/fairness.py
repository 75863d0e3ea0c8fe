"""Turns at a few helper processes: which waiting question is next, which may run long, which is refused.

A process answers one question at a time, and nobody knows beforehand how long an answer takes. Clients take turns by
the time that each has used lately: the client that used least is next (fair queueing by cost, as in Goyal, Vin and
Cheng 1996, "Start-time Fair Queueing", with a decaying account in place of virtual time). A question that has run for
longer than QUICK_SECONDS is long.

(1) Long questions of all clients together leave one process free.
(2) The questions of one client leave one process free.
(3) The long questions of one client leave two processes free, so that its own quick questions have a process too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from steerserve.rules.bounds import ACCOUNTS_KEPT

QUICK_SECONDS = 0.25
"""Seconds that a question may run before it is long."""

HALF_LIFE = 30.0
"""Seconds after which half of the time that a client used is forgotten."""

OLD = 64
"""The number of later questions after which a question is the next of its client, however long it is."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A question that waits for a process or holds one.

    Attributes:
        number: the place of the question in the order of arrival.
        size: the length of the question in bytes.
        is_long: whether the question has run for longer than QUICK_SECONDS.
        may_drop: whether the question may be refused while it waits.
    """

    client: str
    number: int
    size: int = 0
    is_long: bool = False
    may_drop: bool = False


@dataclass(frozen=True, slots=True)
class Account:
    """The seconds of processes that a client had used at the moment `at`."""

    seconds: float = 0.0
    at: float = 0.0

    def lately(self, now: float) -> float:
        """The used seconds that are not forgotten yet."""
        return float(self.seconds * 0.5 ** ((now - self.at) / HALF_LIFE))

    def charged(self, seconds: float, now: float) -> Account:
        return Account(self.lately(now) + seconds, now)


def next_turn(
    waiting: Collection[Turn], running: Collection[Turn], processes: int, used: Mapping[str, float]
) -> Turn | None:
    """The waiting question that gets the next free process: of the client that used least, its shortest, and of
    equally short ones the first; an old one goes before the shorter ones. None where no question may start. `used` has
    the seconds that clients used lately."""
    newest = max((turn.number for turn in waiting), default=0)

    def rank(turn: Turn) -> tuple[float, int, int]:
        is_old = newest - turn.number >= OLD
        return used.get(turn.client, 0.0), 0 if is_old else 1 + turn.size, turn.number

    startable = [turn for turn in waiting if may_run(turn, running, processes)]
    return min(startable, key=rank, default=None)


def may_run(turn: Turn, running: Collection[Turn], processes: int) -> bool:
    """Whether a question may have a process beside the questions `running`, which do not include it."""
    own = [other for other in running if other.client == turn.client]
    if len(own) >= max(1, processes - 1):  # (2)
        return False
    if not turn.is_long:
        return True
    long = sum(other.is_long for other in running)
    long_own = sum(other.is_long for other in own)
    return long < max(1, processes - 1) and long_own < max(1, processes - 2)  # (1) and (3)


def overflow(waiting: Collection[Turn], maximum: int) -> Turn | None:
    """The question to refuse when more than `maximum` wait that may be refused: the newest of the client that has most
    of them. None while there is room."""
    refusable = [turn for turn in waiting if turn.may_drop]
    if len(refusable) <= maximum:
        return None
    counts = Counter(turn.client for turn in refusable)
    return max(refusable, key=lambda turn: (counts[turn.client], turn.number))


def kept(accounts: Mapping[str, Account], now: float) -> dict[str, Account]:
    """The accounts that are remembered: those of the clients that used most lately."""
    most = sorted(accounts, key=lambda client: accounts[client].lately(now), reverse=True)
    return {client: accounts[client] for client in most[:ACCOUNTS_KEPT]}
