"""The replicas of a fleet and its epoch, and the way to wait until either changes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from steerserve.engine.fleet.replica import Replica
from steerserve.engine.wire import messages as m
from steerserve.engine.wire.engine import Engine, Report
from steerserve.rules import replicas as rules
from steerserve.rules.replicas import ReplicaState, ReplicaView


class Roster:
    """Owner of the list of replicas and of the epoch.

    Args:
        announce: gets each replica that came into another state.
        check: raises the refusal of everything, once the fleet can do nothing any more.
        slots: the requests that are meant to run at once on each replica.
    """

    def __init__(
        self, announce: Callable[[ReplicaView], None], check: Callable[[], None], slots: int
    ) -> None:
        self.replicas: list[Replica] = []
        self.epoch = 0
        self.check = check
        self._announce = announce
        self.slots = slots
        self._numbers = itertools.count(1)
        self._turns = itertools.count(1)
        self._seeded: str | None = None
        self._change = asyncio.Event()

    # ------------------------------------------------------------- replicas

    def add(self, replaces: str | None = None) -> Replica:
        """A new replica, with the smallest number in its name that no replica has, in the place of the replica with the
        name `replaces`."""
        names = {replica.name for replica in self.replicas}
        name = next(n for i in itertools.count(1) if (n := f"r{i}") not in names)
        replica = Replica(name, self._moved, self.slots)
        replica.replaces = replaces
        self.replicas.append(replica)
        return replica

    def remove(self, replica: Replica) -> None:
        """The replica has ended for good."""
        self.replicas.remove(replica)
        replica.move(ReplicaState.ENDED)

    def named(self, name: str) -> Replica | None:
        return next((replica for replica in self.replicas if replica.name == name), None)

    @property
    def wanted(self) -> list[Replica]:
        """The replicas that are not being taken away, without those that are started in the place of another one."""
        return [r for r in self.replicas if not r.leaving.is_set() and r.replaces is None]

    @property
    def serving(self) -> list[Replica]:
        """The replicas that can answer now."""
        return [r for r in self.replicas if r.state is ReplicaState.SERVING and r.is_alive]

    def seeded_kind(self) -> str | None:
        """The kind that serves requests with a seed."""
        kinds = [None if r.failed_starts >= rules.STARTS else r.kind for r in self.wanted]
        self._seeded = rules.seeded_kind(self._seeded, kinds)
        return self._seeded

    def threads(self) -> m.ThreadsChanged | None:
        """The threads of the replica that computes with the smallest share of its threads."""
        told = [one.threads for one in self._engines() if one.threads is not None]
        return min(told, key=lambda one: (one.threads / one.most, one.most), default=None)

    def graphs(self) -> m.GraphsChanged | None:
        """The way in which a replica runs decode passes that has left the way of the load."""
        return next((one.graphs for one in self._engines() if one.graphs is not None), None)

    def _engines(self) -> list[Engine]:
        """The engines that run."""
        engines = [replica.engine for replica in self.replicas]
        return [one for one in engines if one is not None and not one.ended.done()]

    async def bring(self, path: str, report: Report) -> None:
        """Have the nodes of all replicas bring files. A replica that ends meanwhile does not count.

        Raises:
            Refusal: why a node cannot have the files.
        """
        engines = [r.running for r in self.replicas if r.is_restored and r.is_alive]
        bringing = (engine.bring(path, report) for engine in engines)
        results = await asyncio.gather(*bringing, return_exceptions=True)
        for engine, error in zip(engines, results, strict=True):
            if isinstance(error, BaseException) and not engine.ended.done():
                raise error

    # ------------------------------------------------------------- numbers

    def number(self) -> int:
        """The number of a new engine."""
        return next(self._numbers)

    def turn(self) -> int:
        """The number of a request that begins."""
        return next(self._turns)

    # ------------------------------------------------------------- changes

    def tell(self) -> None:
        """Something has changed: let everybody look who waits."""
        change, self._change = self._change, asyncio.Event()
        change.set()

    async def change(self) -> None:
        """Wait for the next change.

        Raises:
            Refusal: the fleet can do nothing any more.
        """
        await self._change.wait()
        self.check()

    def _moved(self, replica: Replica) -> None:
        self.tell()
        self._announce(replica.view())
