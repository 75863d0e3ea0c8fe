"""The methods that the control plane calls on an engine of either kind.

Each engine holds at most one model. The default methods are for an engine whose model has no layers to hook: what needs
an SAE is refused.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import psutil

from steerserve import messages as m
from steerserve.errors import Refusal
from steerserve.messages import endings
from steerserve.messages.carried import carry_edit
from steerserve.nouns.cluster_sensing.rules import History
from steerserve.rules.residency.heartbeat import Sign
from steerserve.rules.residency.replicas import ReplicaView

Answer = TypeVar("Answer")
Report = Callable[[m.Progress], None]
Answers = AsyncGenerator[m.Started | m.Outcome, None]


def no_layers(code: str = "SAE_INCOMPATIBLE") -> Refusal:
    """The refusal of everything that reads or changes layers."""
    return Refusal(code, "a GGUF model has no layers that can be read or changed")


class Heartbeat:
    """The heartbeats of one engine. `sign` answers the last one, also while the engine stands still. `stalled`
    is the refusal of commands while the engine sends none, and `stalling` is set meanwhile. Requests wait on.

    Args:
        on_stall: is called with the refusal when the engine stalls.
    """

    def __init__(
        self, sign: Callable[[], Sign], on_stall: Callable[[Refusal], None] = lambda _: None
    ) -> None:
        self.sign = sign
        self.stalled: Refusal | None = None
        self.stalling = asyncio.Event()
        self._on_stall = on_stall

    def stall(self, why: Refusal) -> None:
        """The engine sends no heartbeat: commands are refused with `why` from now on."""
        self.stalled = why
        self.stalling.set()
        self._on_stall(why)

    def wake(self) -> None:
        """The engine sends heartbeats again."""
        self.stalled = None
        self.stalling.clear()

    def check_not_stalled(self) -> None:
        """Raises:
        Refusal: the engine is stalled.
        """
        if self.stalled is not None:
            raise self.stalled


@dataclass(frozen=True, slots=True)
class Passes:
    """What an engine has told of its forward passes.

    Attributes:
        applied: for each attached SAE, the passes in which its steering was added.
        threads: the last change of the number of threads; None where the engine tells none.
        graphs: the last change of the way in which decode passes are run; None where the engine tells none.
        turns: the longest turns of the main thread, by name, as `TurnsChanged` has them; None where the engine tells
            none.
    """

    applied: Mapping[str, int] = field(default_factory=dict)
    threads: m.ThreadsChanged | None = None
    graphs: m.GraphsChanged | None = None
    turns: Mapping[str, tuple[float, float]] | None = None


class Replicated(Protocol):
    """The replicas of an engine that is a fleet, and their changes."""

    def replicas(self) -> tuple[ReplicaView, ...]:
        """The replicas that serve the model, in the order of their names."""

    async def measure(self) -> Mapping[str, m.Measured]:
        """The memory of each replica by its name."""

    async def resize(self, count: int) -> None:
        """Serve with so many replicas from now on. Returns once the change has begun: `on_replicas` tells how it goes
        on. New replicas are started and restored in the background; replicas that are taken away end after their
        requests.

        Raises:
            Refusal: INVALID_PARAMETER for a count below 1.
        """

    async def drain(self, name: str) -> None:
        """Take a replica away after its requests. Returns once it gets no new requests.

        Raises:
            Refusal: REPLICA_NOT_FOUND; REPLICAS_UNAVAILABLE where no other replica serves.
        """

    async def replace(self, name: str) -> None:
        """Start another replica in the place of this one, which is taken away once the other serves. Returns once the
        change has begun.

        Raises:
            Refusal: REPLICA_NOT_FOUND.
        """


class Engine(ABC):
    """One engine. `ended` is done when its process is gone, with the reason as a clause. `on_record` is called with
    each record of monitoring, `on_spans` and `on_edges` with what was sensed in a choice. `history` has the tokens that
    sensing has reported; the replicas of a fleet share one. `pid` is the id of its process; None where no process
    runs. `node` and `address` name the node of that process; None stands for this host. `fleet` is None for an engine
    that is one process. `on_replicas` is called with each replica that came into another state."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        self.heartbeat = heartbeat
        self._state = m.State()
        self._changing = asyncio.Lock()
        self._passes = Passes()
        self.on_record: Callable[[m.Recorded], None] = lambda _: None
        self.on_spans: Callable[[m.SensedSpans], None] = lambda _: None
        self.on_edges: Callable[[m.SensedEdges], None] = lambda _: None
        self.on_replicas: Callable[[ReplicaView], None] = lambda _: None
        self.history = History()
        self.pid: int | None = None
        self.node: str | None = None
        self.address: str | None = None
        self.fleet: Replicated | None = None
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._parting: Refusal | None = None

    @abstractmethod
    async def load(self, report: Report, *args: Any, **fields: Any) -> m.Loaded:
        """Load a model; each kind of engine names its own fields.

        Raises:
            Refusal: the refusal of the engine; ENGINE_UNAVAILABLE when the engine ended.
        """

    async def bring(self, path: str, report: Report = lambda _: None) -> None:  # noqa: B027 -- a default
        """Make the files of a model or an SAE present where the engine reads them. By default they are, because the
        engine runs on this machine.

        Raises:
            Refusal: INVALID_LOCAL_PATH where the node of the engine lacks files that are no download of the hub; why
                it cannot fetch those of a download; what refuses commands once the engine has ended.
        """

    @abstractmethod
    async def stop(self, parting: Refusal | None = None) -> None:
        """End the process: politely, then by force. A process that has ended already is left alone.

        Requests that are still in flight are refused with `parting`.
        """

    def must_run(self) -> None:
        """Raises:
        Refusal: the engine has ended: the `parting` of the stop, else MODEL_NOT_LOADED.
        """
        if self.ended.done():
            raise self._parting or endings.gone_before(self.ended.result())

    @abstractmethod
    def lose(self, reason: str) -> None:
        """End the process by force, as if it had ended by itself for this reason. Does not wait."""

    # ------------------------------------------------------------- requests

    @abstractmethod
    def run(self, request: m.Request) -> Answers:
        """Yield Started, then the outcomes of the request, each choice until its last. Closing the iterator early
        cancels the request.

        Raises:
            Refusal: the refusal of the prompts or of the engine, before Started; MODEL_NOT_LOADED when the engine had
                ended before the request, ENGINE_UNAVAILABLE when it ended during the request.
        """

    # ------------------------------------------------------------- the state

    @property
    def state(self) -> m.State:
        """The state that the engine was told last, and has not refused."""
        return self._state

    async def change(self, step: m.Step) -> Mapping[str, m.Attached]:
        """Bring the engine from its state to the state that `step` makes of it. Returns once the next forward pass runs
        in the new state, with the facts of all attached SAEs by their keys. Changes are made one after the other. A
        change that has begun is carried to its end, also when its caller is cancelled.

        Raises:
            Refusal: the refusal of the engine, which keeps the state that it had.
        """

        async def edit() -> Mapping[str, m.Attached]:
            after = step(self._state)
            facts = await self._apply(after)
            coming = {sae.key for sae in after.since(self._state).coming}
            self._set_applied(
                {key: 0 if key in coming else self._counted(key) for key in after.keys}
            )
            self._state = after
            return facts

        return await carry_edit(self._changing, edit)

    @property
    def passes(self) -> Passes:
        """What the engine has told of its forward passes."""
        return self._passes

    def _counted(self, key: str) -> int:
        return self._passes.applied.get(key, 0)

    def _set_applied(self, applied: Mapping[str, int]) -> None:
        if applied != self._passes.applied:
            self._passes = replace(self._passes, applied=applied)

    async def _apply(self, state: m.State) -> Mapping[str, m.Attached]:
        """Tell the engine its whole state, and return the facts of its SAEs. By default there are no layers, so nothing
        can be attached.

        Raises:
            Refusal: the refusal of the engine.
        """
        if state.saes or any(state.steering.values.values()) or state.steering.edits:
            raise no_layers()
        if state.monitored is not None or state.cluster is not None or state.circuits:
            raise no_layers()
        return {}

    # ------------------------------------------------------------- questions

    async def ask(self, question: m.Question[Answer]) -> Answer:
        """Ask the engine what it holds, has counted or can read: one of the `Question`s of `messages/commands.py`. By
        default there are no layers, so there is nothing to ask.

        Raises:
            Refusal: the refusal of the engine; what refuses commands while it is stalled, or once it has ended.
        """
        raise no_layers()


def local_pid(engine: Engine) -> int | None:
    """The id of the engine's process on this host; None for a process of another node, whose id means another process
    here."""
    return engine.pid if engine.node is None else None


def is_stopped(pid: int | None) -> bool:
    """Whether the system has stopped the process (SIGSTOP). A process that is gone is not stopped."""
    with suppress(psutil.Error):
        return pid is not None and psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return False
