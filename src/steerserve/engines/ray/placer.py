"""The placer, `python -m steerserve.engines.ray.placer`: the driver of Ray, as a child process of the service.

Questions and answers are frames on a socket, which is the standard input. The process ends when the socket closes, or
when Ray ends it because the cluster cannot be reached any more. Replicas are detached actors, so they do not depend
on this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, NotRequired, TypedDict, TypeVar

import msgspec
import ray
import ray.actor
import ray.exceptions
from ray.actor import ActorHandle
from ray.job_config import JobConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import steerserve
from steerserve.engines.ray import messages as m
from steerserve.engines.ray.actor import ReplicaActor, node_facts
from steerserve.messages import LENGTH

T = TypeVar("T")

SURVEY_SECONDS = 30.0
"""Seconds in which a node must have told its facts."""

IMPOSSIBLE_SECONDS = 30.0
"""Seconds after which a replica is refused for which no node is large enough. Until then an autoscaler may add one."""

NODE_ID = "ray.io/node-id"
"""The label of a node that has its id."""

END_SECONDS = 5.0
"""Seconds in which an actor must have ended by itself; after that Ray ends the actor."""


class Placer:
    """Answers questions, each in a task of its own."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._namespace = ""
        self._following: dict[str, asyncio.Task[None]] = {}
        self._homes: dict[str, str] = {}

    async def answer(self, question: m.Question) -> None:
        try:
            match question:
                case m.Join():
                    answer: m.PlacerAnswer = await self._join(question)
                case m.PlaceReplica():
                    answer = await self._place(question)
                case m.Remove():
                    answer = await self._remove(question)
                case m.Survey():
                    answer = await self._survey(question)
        except Exception as error:
            answer = m.Unplaced(question.id, reason(error))
        self._say(answer)

    async def _join(self, question: m.Join) -> m.Joined:
        # in this thread, because Ray sets the handlers of signals
        ray.init(
            address=question.address,
            namespace=question.namespace,
            log_to_driver=False,
            configure_logging=False,
            # workers import our modules by name, and no code is sent to them
            job_config=JobConfig(code_search_path=[str(Path(steerserve.__file__).parent.parent)]),
        )
        self._namespace = question.namespace
        return m.Joined(question.id)

    # ------------------------------------------------------------- replicas

    async def _place(self, question: m.PlaceReplica) -> m.Placed | m.Displaced:
        wanted = await asyncio.to_thread(actor_options, question)
        kind: Any = ray.remote(ReplicaActor)
        actor = await asyncio.to_thread(
            kind.options(
                name=question.name,
                namespace=self._namespace,
                lifetime="detached",
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=4,
                scheduling_strategy=self._strategy(question),
                label_selector=_without(question.barred),
                **wanted,
            ).remote
        )
        opening = actor.open.remote(
            question.certificate,
            question.log_level,
            question.log_format,
            question.ports,
            question.files,
            question.caches,
        )
        try:
            answer, cards, home = await self._opened(question, opening, wanted)
            started = msgspec.json.decode(answer, type=m.ReplicaStarted)
            if started.barred is not None:
                await asyncio.to_thread(ray.kill, actor)
                return m.Displaced(question.id, home, started.name, started.barred)
            if started.contact is None:
                raise NotPlaced(str(started.error))
        except BaseException:
            await asyncio.to_thread(ray.kill, actor)
            raise
        following = asyncio.create_task(self._follow(question.name, actor))
        self._following[question.name] = following
        self._homes[question.name] = home
        return m.Placed(question.id, home, started.contact, cards)

    def _strategy(self, question: m.PlaceReplica) -> object:
        """Spread over the nodes; or on the node that has the newest replica, and elsewhere where that node is full."""
        if question.placement == "spread":
            return "SPREAD"
        homes = [home for home in self._homes.values() if home not in question.barred]
        if not homes:
            return "DEFAULT"
        newest = homes[-1]
        return NodeAffinitySchedulingStrategy(newest, soft=True, _spill_on_unavailable=True)

    async def _opened(
        self, question: m.PlaceReplica, opening: Awaitable[T], wanted: ActorOptions
    ) -> T:
        """What the actor answers, once the cluster has room for the actor.

        Raises:
            NotPlaced: the cluster has no room for the actor.
        """
        answer = asyncio.ensure_future(as_task(opening))
        first = min(IMPOSSIBLE_SECONDS, question.seconds)
        await asyncio.wait([answer], timeout=first)
        if not answer.done() and await asyncio.to_thread(is_possible, wanted, question.barred):
            await asyncio.wait([answer], timeout=question.seconds - first)
        if not answer.done():
            answer.cancel()
            held = described(wanted)
            if await asyncio.to_thread(is_possible, wanted, question.barred):
                raise NotPlaced(f"no node of the cluster has room for a replica with {held}")
            raise NotPlaced(f"no node of the cluster is large enough for a replica with {held}")
        return answer.result()

    async def _follow(self, name: str, actor: ActorHandle[ReplicaActor]) -> None:
        """Tell the service when Ray says that a replica has ended, unless the service has asked for the end."""
        try:
            why = str(await as_task(actor.ended.remote()))
        except ray.exceptions.RayError as error:
            why = reason(error)
        self._homes.pop(name, None)
        self._say(m.Gone(name, why))

    async def _remove(self, question: m.Remove) -> m.Removed:
        if (following := self._following.pop(question.name, None)) is not None:
            following.cancel()
        self._homes.pop(question.name, None)
        try:
            actor = await asyncio.to_thread(ray.get_actor, question.name, self._namespace)
        except ValueError:  # Ray knows no such actor
            return m.Removed(question.id)
        with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
            # killed by the actor, the replica process also ends while it stands still
            async with asyncio.timeout(END_SECONDS):
                await as_task(actor.end.remote())
        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            await asyncio.to_thread(ray.kill, actor)
        return m.Removed(question.id)

    # ------------------------------------------------------------- nodes

    async def _survey(self, question: m.Survey) -> m.Surveyed:
        nodes = [node for node in await asyncio.to_thread(ray.nodes) if node["Alive"]]
        return m.Surveyed(
            question.id, list(await asyncio.gather(*(_seen(node, question) for node in nodes)))
        )

    def _say(self, message: m.Told) -> None:
        self._writer.write(m.placer_frame(message))


class NotPlaced(Exception):
    """A replica is not placed. The message is a clause that says why."""


async def _seen(node: dict[str, Any], question: m.Survey) -> m.NodeSeen:
    """What a node says about itself."""
    amounts = {name: float(amount) for name, amount in node["Resources"].items()}
    home, name, address = node["NodeID"], node["NodeManagerHostname"], node["NodeManagerAddress"]
    where = NodeAffinitySchedulingStrategy(home, soft=False)
    read = ray.remote(node_facts)
    try:
        async with asyncio.timeout(SURVEY_SECONDS):
            asked = read.options(num_cpus=0, max_retries=0, scheduling_strategy=where)
            answer = await as_task(asked.remote(question.folders, question.caches, question.hub))
    except TimeoutError:
        why = f"the node has not answered within {SURVEY_SECONDS:g} s"
        return m.NodeSeen(home, name, address, amounts, error=why)
    except Exception as error:
        return m.NodeSeen(home, name, address, amounts, error=reason(error))
    seen = msgspec.json.decode(answer, type=m.NodeSeen)
    seen.resources = amounts
    return seen


class ActorOptions(TypedDict):
    """The resources of an actor, as Ray takes them."""

    num_cpus: float
    num_gpus: float
    memory: NotRequired[int]
    resources: NotRequired[dict[str, float]]


def actor_options(question: m.PlaceReplica) -> ActorOptions:
    """The resources of a replica as options of an actor."""
    named = dict(question.resources)
    cards = question.cards
    if cards is None:
        cards = 1 if ray.cluster_resources().get("GPU", 0) >= 1 else 0
    wanted = ActorOptions(num_cpus=named.pop("CPU", 1), num_gpus=cards)
    if "memory" in named:
        wanted["memory"] = int(named.pop("memory"))
    if named:
        wanted["resources"] = named
    return wanted


def amounts_of(wanted: ActorOptions) -> dict[str, float]:
    """The options of an actor as resources by their names."""
    amounts = {"CPU": wanted["num_cpus"], "GPU": wanted["num_gpus"]}
    if "memory" in wanted:
        amounts["memory"] = wanted["memory"]
    return {name: x for name, x in (amounts | wanted.get("resources", {})).items() if x}


def described(wanted: ActorOptions) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in amounts_of(wanted).items())


def _without(barred: list[str]) -> dict[str, str]:
    """The labels that a node must have so that it is none of the barred ones."""
    return {NODE_ID: f"!in({','.join(barred)})"} if barred else {}


def is_possible(wanted: ActorOptions, barred: list[str]) -> bool:
    """Whether some node that is not barred has as much of everything, in use or not."""
    amounts = amounts_of(wanted)
    return any(
        all(node["Resources"].get(name, 0) >= amount for name, amount in amounts.items())
        for node in ray.nodes()
        if node["Alive"] and node["NodeID"] not in barred
    )


async def as_task(reference: Awaitable[T]) -> T:
    return await reference


def reason(error: BaseException) -> str:
    """The reason of a failure as one line. Exceptions of Ray have tracebacks and advice in their texts."""
    if isinstance(error, ray.exceptions.RayTaskError):
        return f"{type(error.cause).__name__} on the node"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


async def main() -> None:
    link = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    reader, writer = await asyncio.open_connection(sock=link, limit=1 << 24)
    placer = Placer(writer)
    tasks: set[asyncio.Task[None]] = set()
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            header = await reader.readexactly(LENGTH.size)
            body = await reader.readexactly(LENGTH.unpack(header)[0])
            task = asyncio.create_task(placer.answer(m.decode_question(body)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    # Ray's own end takes seconds, and detached actors do not need it
    os._exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(main())
