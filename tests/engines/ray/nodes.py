"""A Ray cluster of several nodes on this machine, and the processes that it runs."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

STORE_BYTES = 80 * 1024 * 1024
PATIENCE = 60.0
LOOK = 0.05
LOST = "RAY_gcs_rpc_server_reconnect_timeout_s"
REPLICA_PROCESS = "steerserve.engines.ray.replica_process"


@dataclass
class Nodes:
    """Owns a cluster of `cluster_utils`. Node 0 is the head, which has no room for replicas."""

    cluster: Any
    nodes: list[Any] = field(default_factory=list)

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self, **options: Any) -> Any:
        options = {"object_store_memory": STORE_BYTES, "dashboard_agent_listen_port": 0} | options
        node = self.cluster.add_node(**options)
        self.nodes.append(node)
        return node

    def raylet(self, number: int) -> psutil.Process:
        return psutil.Process(self.nodes[number].all_processes["raylet"][0].process.pid)

    def raylet_runs(self, number: int) -> bool:
        return self.nodes[number].all_processes["raylet"][0].process.poll() is None

    def reap(self) -> None:
        """Take note of the raylets that have ended, as the first process of a machine does. Ray takes a raylet of which
        nobody has taken note for one that runs."""
        for number in range(len(self.nodes)):
            self.raylet_runs(number)

    def head(self) -> psutil.Process:
        return psutil.Process(self.nodes[0].all_processes["gcs_server"][0].process.pid)

    def logs(self) -> Path:
        return Path(self.nodes[0].get_logs_dir_path())

    def replica_processes(self) -> list[psutil.Process]:
        """The processes of all replicas on all nodes, oldest first."""
        return [each for each in self._workers() if REPLICA_PROCESS in arguments_of(each)]

    def _workers(self) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        for node in self.nodes:
            for running in node.all_processes.get("raylet", []):
                with contextlib.suppress(psutil.Error):
                    found += psutil.Process(running.process.pid).children(recursive=True)
        return sorted(found, key=lambda each: each.create_time())


def arguments_of(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


@dataclass(frozen=True)
class ReplicaProcesses:
    """The processes of one replica: its actor, and the group of its replica process, in which its engine is too."""

    actor: psutil.Process
    process: psutil.Process

    def all(self) -> list[psutil.Process]:
        group = []
        for process in psutil.process_iter():
            # a process may end between two questions about it
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                is_of_replica = process == self.actor or os.getpgid(process.pid) == self.process.pid
                if is_of_replica and process.status() != psutil.STATUS_ZOMBIE:
                    group.append(process)
        return group

    async def gone(self) -> None:
        """Wait until nothing of the replica is left."""
        until = time.monotonic() + PATIENCE
        while left := self.all():
            assert time.monotonic() < until, f"still there: {left}"
            await asyncio.sleep(LOOK)


def replica_of(process: psutil.Process) -> ReplicaProcesses:
    actor = process.parent()
    assert actor is not None
    return ReplicaProcesses(actor, process)


def kill(process: psutil.Process) -> None:
    process.send_signal(signal.SIGKILL)


@contextlib.contextmanager
def started(*sizes: int, lost_seconds: int = 60, **options: Any) -> Iterator[Nodes]:
    """A cluster with a head without room, and a node with so many CPUs for each of the sizes. Nodes that have lost the
    head for `lost_seconds` end."""
    os.environ[LOST] = str(lost_seconds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        utils = importlib.import_module("ray.cluster_utils")
    nodes = Nodes(utils.Cluster())
    try:
        nodes.add(num_cpus=0, include_dashboard=False)
        for size in sizes:
            nodes.add(num_cpus=size, **options)
        yield nodes
    finally:
        nodes.cluster.shutdown()
        del os.environ[LOST]
