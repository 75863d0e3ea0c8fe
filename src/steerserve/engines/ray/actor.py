"""What Ray runs on a node: the actor of a replica, and the function that reads the facts of the node.

Workers of Ray import this module by its name, so a node needs the same packages as the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading

import msgspec
import ray
import ray.util

from steerserve.engines.ray.messages import REPLICA_PROCESS, NodeSeen, ReplicaStarted, StartReplica
from steerserve.engines.remote.checkpoints import on_this_node
from steerserve.engines.remote.facts import checkpoint_seen, read_facts
from steerserve.engines.remote.presence import hub_fault

START_SECONDS = 60.0
"""Seconds in which the actor must be asked to open its replica. After that its placer is gone."""

ENDING_SECONDS = 1.0
"""Seconds in which the actor still answers why its replica has ended."""


class ReplicaActor:
    """Holds the resources of one replica, and the replica process that runs its engine. The actor ends with the replica
    process.

    The replica process is a process of its own, so that no engine has Ray in it, and so that Ray's threads never hold
    up frames.
    """

    def __init__(self) -> None:
        self._timer = threading.Timer(START_SECONDS, self._give_up)
        self._timer.daemon = True
        self._timer.start()
        self._has_ended = threading.Event()
        # a process group of its own, which can be ended as a whole
        self._process = subprocess.Popen(  # noqa: S603 -- this program itself
            [sys.executable, "-m", REPLICA_PROCESS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=_environment(),
        )

    def open(
        self,
        certificate: str,
        log_level: str,
        log_format: str,
        ports: tuple[int, int] | None,
        files: dict[str, str | None],
        caches: dict[str, str],
    ) -> tuple[bytes, list[int], str]:
        """The answer of the replica process, the cards that Ray gave to this actor, by the driver's index, and Ray's id
        of the node."""
        self._timer.cancel()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        address = ray.util.get_node_ip_address()
        order = StartReplica(address, ports, certificate, log_level, log_format, files, caches)
        with contextlib.suppress(OSError):
            self._process.stdin.write(msgspec.json.encode(order) + b"\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        threading.Thread(target=self._follow, name="replica-process", daemon=True).start()
        if not answer.endswith(b"\n"):
            answer = msgspec.json.encode(ReplicaStarted(error="its process ended at the start"))
        cards = [int(card) for card in ray.get_gpu_ids() if str(card).isdecimal()]
        return answer, cards, ray.get_runtime_context().get_node_id()

    def ended(self) -> str:
        """Why the replica has ended. Waits for the end."""
        self._has_ended.wait()
        code = self._process.returncode
        return "its engine has ended" if code == 0 else f"its process ended with the code {code}"

    def _follow(self) -> None:
        # the group is killed before the end of its first process is taken note of, because its number stays taken until
        # then
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        self._kill()
        self._process.wait()
        self._has_ended.set()
        threading.Event().wait(ENDING_SECONDS)
        os._exit(0)

    def _kill(self) -> None:
        """Kill the replica process and all processes that it started."""
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _give_up(self) -> None:
        self._kill()
        os._exit(0)

    def end(self) -> None:
        self._kill()


def _environment() -> dict[str, str]:
    """The environment of a replica process. Variables of Ray stay behind: they may have the cluster's token, and the
    code of a model's repository may run in an engine. Ray sets the number of threads to 1, which would also bind the
    engine."""
    return {
        name: value
        for name, value in os.environ.items()
        if name != "OMP_NUM_THREADS" and not name.upper().startswith("RAY_")
    }


def node_facts(folders: list[str], caches: dict[str, str], hub: str | None) -> bytes:
    """The facts of the node that runs this function, and the digests of its folders, as a `NodeSeen` in JSON. `caches`
    are the cache folders of the service with the variables that name them. With the address of a hub, the facts say
    whether the node can reach the hub."""
    # Ray hides all cards from a process that has asked for none
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    address = ray.util.get_node_ip_address()
    facts = read_facts(address)
    seen = {folder: checkpoint_seen(on_this_node(folder, caches)) for folder in folders}
    home = ray.get_runtime_context().get_node_id()
    fault = None if hub is None else asyncio.run(hub_fault(hub))
    return msgspec.json.encode(
        NodeSeen(home, facts.name, address, {}, facts, seen, hub_fault=fault)
    )
