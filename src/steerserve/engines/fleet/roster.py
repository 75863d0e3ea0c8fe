"""The replicas of a fleet and its epoch, and the way to wait until either changes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from steerserve import messages as m
from steerserve.engines.fleet.replica import Replica
from steerserve.errors import Refusal
from steerserve.messages.engine import Engine, Report
from steerserve.rules.residency import replicas as rules
from steerserve.rules.residency.replicas import ReplicaState, ReplicaView


class Roster:
    """Owner of the list of replicas and of the epoch.

    Args:
        announce: gets each replica that came into another state.
        check: raises the refusal of everything, once the fleet can do nothing any more.
        slots: the requests that are meant to run at once on each replica.
        wait_seconds: how long work waits while no replica serves and none has a place.
    """

    def __init__(
        self,
        announce: Callable[[ReplicaView], None],
        check: Callable[[], None],
        slots: int,
        wait_seconds: float,
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
        self._wait_seconds = wait_seconds
        # set while no replica serves and none has a place; after wait_seconds of that, `_is_given_up`
        self._giving_up: asyncio.TimerHandle | None = None
        self._is_given_up = False

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
        told = [t for one in self._engines() if (t := one.passes.threads) is not None]
        return min(told, key=lambda one: (one.threads / one.most, one.most), default=None)

    def graphs(self) -> m.GraphsChanged | None:
        """The way in which a replica runs decode passes that has left the way of the load."""
        return next((g for one in self._engines() if (g := one.passes.graphs) is not None), None)

    def turns(self) -> dict[str, tuple[float, float]] | None:
        """The longest turns of all replicas."""
        told = [turns for one in self._engines() if (turns := one.passes.turns) is not None]
        longest: dict[str, tuple[float, float]] = {}
        for name, took in (turn for turns in told for turn in turns.items()):
            longest[name] = max(took, longest.get(name, took))
        return longest if told else None

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
        """Something has changed: wake all that wait."""
        self._look_for_places()
        change, self._change = self._change, asyncio.Event()
        change.set()

    async def change(self) -> None:
        """Wait for the next change.

        Raises:
            Refusal: the fleet can do nothing any more.
        """
        await self._change.wait()
        self.check()

    async def change_for_work(self) -> None:
        """Wait for the next change, on behalf of work that needs a replica.

        Raises:
            Refusal: the fleet can do nothing any more; ENGINE_UNAVAILABLE while no replica has had a place for
                `wait_seconds`.
        """
        if self._is_given_up:
            reason = next((r.reason for r in self.replicas if r.reason), "no reason is known")
            raise Refusal(
                "ENGINE_UNAVAILABLE",
                f"no replica serves, and none has found a place for {self._wait_seconds:g} s ({reason}); "
                "the same request may be sent again later",
            )
        await self.change()

    def _look_for_places(self) -> None:
        states = [
            (r.state, r.engine is not None and not r.engine.ended.done()) for r in self.replicas
        ]
        if rules.may_serve_soon(states):
            if self._giving_up is not None:
                self._giving_up.cancel()
            self._giving_up, self._is_given_up = None, False
        elif self._giving_up is None:
            loop = asyncio.get_running_loop()
            self._giving_up = loop.call_later(self._wait_seconds, self._give_up)

    def _give_up(self) -> None:
        self._is_given_up = True
        self.tell()

    def _moved(self, replica: Replica) -> None:
        self.tell()
        self._announce(replica.view())
