"""The whole service on a Ray cluster, through HTTP, while one replica or its network is broken. Requests are always in
flight, streamed and not. Afterwards all replicas serve again, and nothing of the broken one is left."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from tests.engines.ray.conftest import settings
from tests.engines.ray.crowd import PATIENCE, Crowd, Known, attach, crowding, learned, steer
from tests.engines.ray.nodes import Nodes, ReplicaProcesses, replica_of
from tests.engines.ray.relayed import RelayedCluster
from tests.nouns.replicas.test_replicated_model import Replicated, by_name
from tests.service import Running, load_demo, running

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
COUNT = 2
STALL_SECONDS = 4.0
"""ENGINE_STALL_TIMEOUT of the service."""
DELAY_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Victim:
    """A replica with requests in flight, and its processes."""

    name: str
    engine: int
    processes: ReplicaProcesses


@dataclass(frozen=True, slots=True)
class Broken:
    """A service with replicas on a cluster, whose parts a test breaks."""

    live: Running
    replicated: Replicated
    cluster: RelayedCluster
    nodes: Nodes
    known: Known

    def victim(self) -> Victim:
        """The replica that was started again the fewest times, once requests run on it. Its next start need not wait
        as long as that of one which has just failed."""
        rows = self.replicated.whole(COUNT)["replicas"]
        name = min(rows, key=lambda row: row["restarts"])["name"]
        while (row := by_name(self.replicated.now())[name])["requests"] < 2:
            pass
        pid = row["pid"]
        (process,) = [
            process for process in self.nodes.replica_processes() if os.getpgid(pid) == process.pid
        ]
        return Victim(name, pid, replica_of(process))

    def until_away(self, victim: Victim) -> None:
        """Wait until no more requests go to the victim."""
        self.replicated.until(lambda now: by_name(now)[victim.name]["state"] != "serving")

    def until_back(self, victim: Victim) -> None:
        """Wait until all replicas serve, with another engine in the place of the victim's."""
        row = by_name(self.replicated.whole(COUNT))[victim.name]
        assert row["pid"] not in (None, victim.engine)
        assert len({row["epoch"] for row in self.replicated.now()["replicas"]}) == 1


@pytest.fixture(scope="module")
def broken(nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broken]:
    cluster = RelayedCluster(settings(nodes.address))
    fields: dict[str, Any] = {
        "engine_backend": "ray",
        "ray_address": nodes.address,
        "engine_replicas": COUNT,
        "engine_cards": 0,
        "engine_stall_timeout": STALL_SECONDS,
    }
    with running(tmp_path_factory.mktemp("broken"), cluster, **fields) as live:
        load_demo(live)
        attach(live.http)
        yield Broken(live, Replicated(live, PATIENCE), cluster, nodes, learned(live.http))
    assert not nodes.replica_processes()


def crowd_of(broken: Broken, state: str = "first") -> Any:
    steer(broken.live.http, state)
    return crowding(broken.live.url, broken.known, state)


def change_while_away(broken: Broken, crowd: Crowd) -> None:
    """Change the steering while the victim is away; requests go on under the new state."""
    crowd.steer(broken.live.http, "second")
    crowd.flow()


# ---------------------------------------------------------------- ends and standstills

Break = Callable[[Victim], None]


def sent_to(process: Callable[[Victim], int], number: signal.Signals) -> Break:
    return lambda victim: os.kill(process(victim), number)


def engine(victim: Victim) -> int:
    return victim.engine


def process(victim: Victim) -> int:
    return int(victim.processes.process.pid)


def actor(victim: Victim) -> int:
    return int(victim.processes.actor.pid)


BREAKS = {
    "engine killed": sent_to(engine, signal.SIGKILL),
    "host killed": sent_to(process, signal.SIGKILL),
    "actor killed": sent_to(actor, signal.SIGKILL),
    "engine stopped": sent_to(engine, signal.SIGSTOP),
    "host stopped": sent_to(process, signal.SIGSTOP),
}
SHORT = "engine killed"
"""The fault of the short form."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == SHORT else [pytest.mark.slow]) for n in BREAKS]
)
def test_a_replica_that_dies_or_stands_still_takes_no_answer_without_an_error(
    broken: Broken, name: str
) -> None:
    with crowd_of(broken) as crowd:
        crowd.flow()
        victim = broken.victim()
        BREAKS[name](victim)
        broken.until_away(victim)
        change_while_away(broken, crowd)
        broken.until_back(victim)
        crowd.flow(2)
    print(name, dict(crowd.outcomes()))
    asyncio.run(victim.processes.gone())


# ---------------------------------------------------------------- the network


def test_a_slow_link_delays_answers_and_changes_nothing_else(broken: Broken) -> None:
    with crowd_of(broken) as crowd:
        crowd.flow()
        victim = broken.victim()
        proxy = broken.cluster.proxy(victim.engine)
        proxy.delay = DELAY_SECONDS
        for state in ("second", "third", "first"):
            crowd.steer(broken.live.http, state)
            crowd.flow()
        proxy.delay = 0.0
    assert set(crowd.outcomes()) == {"stream: answered", "whole: answered"}
    assert by_name(broken.replicated.whole(COUNT))[victim.name]["pid"] == victim.engine


@pytest.mark.slow
def test_a_split_network_ends_the_replica_on_both_sides(broken: Broken) -> None:
    """The control plane takes the replica for lost and starts another. Nobody tells the node, whose host ends by
    itself."""
    with crowd_of(broken) as crowd:
        crowd.flow()
        victim = broken.victim()
        proxy = broken.cluster.proxy(victim.engine)
        proxy.is_split = True
        broken.until_away(victim)
        assert psutil.pid_exists(victim.engine)
        change_while_away(broken, crowd)
        broken.until_back(victim)
        crowd.flow(2)
    print(dict(crowd.outcomes()))
    asyncio.run(victim.processes.gone())
    proxy.is_split = False
