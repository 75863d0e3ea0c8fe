"""The methods that the control plane calls on an engine of either kind.

Each engine holds at most one model. The default methods are for an engine whose model has no layers to hook: what needs
an SAE is refused.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import psutil

from steerserve import messages as m
from steerserve.errors import Refusal
from steerserve.messages import endings
from steerserve.messages.tokenizing import Spelling
from steerserve.rules.residency.heartbeat import Sign
from steerserve.rules.residency.replicas import ReplicaView
from steerserve.rules.sensing.cluster_sensing import History

Answer = TypeVar("Answer")
Report = Callable[[m.Progress], None]
Answers = AsyncGenerator[m.Started | m.Outcome, None]


def no_layers() -> Refusal:
    """The refusal of everything that needs an SAE."""
    return Refusal("SAE_INCOMPATIBLE", "a GGUF model has no layers to hook")


def one_process() -> Refusal:
    """The refusal of a change of the replicas, by an engine that is one process."""
    return Refusal("REPLICAS_UNAVAILABLE", "the resident model is served by one engine process")


class Engine(ABC):
    """One engine. `ended` is done when its process is gone, with the reason as a clause. `on_record` is called with
    each record of monitoring, `on_spans` and `on_edges` with what was sensed in a choice. `stalled` is the refusal of
    commands while the engine sends no heartbeat, and `stalling` is set meanwhile. `history` has the tokens that
    sensing has reported; the replicas of a fleet share one. `node` and `address` name the node where its process runs;
    None stands for this host. `on_replicas` is called with each replica that came into another state."""

    def __init__(self) -> None:
        self._state = m.State()
        self._changing = asyncio.Lock()
        self._applied: dict[str, int] = {}
        self.on_record: Callable[[m.Recorded], None] = lambda _: None
        self.on_spans: Callable[[m.SensedSpans], None] = lambda _: None
        self.on_edges: Callable[[m.SensedEdges], None] = lambda _: None
        self.on_replicas: Callable[[ReplicaView], None] = lambda _: None
        self.history = History()
        self.node: str | None = None
        self.address: str | None = None
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.stalled: Refusal | None = None
        self.stalling = asyncio.Event()
        self._threads: m.ThreadsChanged | None = None
        self._graphs: m.GraphsChanged | None = None
        self._parting: Refusal | None = None

    def note(self, change: m.ThreadsChanged | m.GraphsChanged) -> None:
        """Keep the last change of its kind."""
        if isinstance(change, m.ThreadsChanged):
            self._threads = change
        else:
            self._graphs = change

    @property
    def applied(self) -> dict[str, int]:
        """For each attached SAE, the forward passes in which its steering was added."""
        return self._applied

    @property
    def threads(self) -> m.ThreadsChanged | None:
        """The last change of the number of threads; None where the engine tells none."""
        return self._threads

    @property
    def graphs(self) -> m.GraphsChanged | None:
        """The last change of the way in which decode passes are run; None where the engine tells none."""
        return self._graphs

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """The id of the process on its node; None where no process runs."""

    @property
    def local_pid(self) -> int | None:
        """The id of the process on this host; None for a process of another node, whose id means another process
        here."""
        return self.pid if self.node is None else None

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

    # ------------------------------------------------------------- heartbeats

    @abstractmethod
    def sign(self) -> Sign:
        """The last heartbeat. It can be read while the engine stands still."""

    def stall(self, why: Refusal) -> None:
        """The engine sends no heartbeat: commands are refused with `why` from now on. Requests wait on."""
        self.stalled = why
        self.stalling.set()

    def wake(self) -> None:
        """The engine sends heartbeats again."""
        self.stalled = None
        self.stalling.clear()

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

    @abstractmethod
    async def spell(self, prompt: m.Text | m.Chat, longest: int) -> Spelling:
        """The text of a prompt, of at most `longest` characters, with its tokens.

        Raises:
            Refusal: NO_CHAT_TEMPLATE, PAYLOAD_TOO_LARGE; INVALID_PARAMETER when the template or the tokenizer refuses
                the prompt; what refuses commands once the engine has ended.
        """

    @abstractmethod
    async def read_back(self, ids: list[int]) -> Spelling:
        """The text that these tokens stand for.

        Raises:
            Refusal: INVALID_PARAMETER naming the place of an id that is not in the vocabulary; what refuses commands
                once the engine has ended.
        """

    # ------------------------------------------------------------- the state

    @property
    def state(self) -> m.State:
        """The state that the engine was told last, and has not refused."""
        return self._state

    async def change(self, step: m.Step) -> Mapping[str, m.Attached]:
        """Bring the engine from its state to the state that `step` makes of it. Returns once the next forward pass runs
        in the new state, with the facts of all attached SAEs by their keys. Changes are made one after the other. A
        caller that gives up has changed nothing.

        Raises:
            Refusal: the refusal of the engine, which keeps the state that it had.
        """
        async with self._changing:
            after = step(self._state)
            facts = await self._apply(after)
            for sae in after.since(self._state).coming:
                self._applied.pop(sae.key, None)
            self._applied = {key: self._applied.get(key, 0) for key in after.keys}
            self._state = after
            return facts

    async def _apply(self, state: m.State) -> Mapping[str, m.Attached]:
        """Tell the engine its whole state, and return the facts of its SAEs. By default there are no layers, so nothing
        can be attached.

        Raises:
            Refusal: the refusal of the engine.
        """
        if state.saes or any(state.steering.values.values()):
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

    async def measure_replicas(self) -> Mapping[str, m.Measured]:
        """The memory of each replica by its name; none for an engine that is one process."""
        return {}

    # ------------------------------------------------------------- replicas

    def replicas(self) -> tuple[ReplicaView, ...]:
        """The replicas that serve the model, in the order of their names. An engine that is one process has none."""
        return ()

    async def resize(self, count: int) -> None:
        """Serve with so many replicas from now on. Returns once the change has begun: `on_replicas` tells how it goes
        on. New replicas are started and restored in the background; replicas that are taken away end after their
        requests.

        Raises:
            Refusal: REPLICAS_UNAVAILABLE from an engine that is one process; INVALID_PARAMETER for a count below 1.
        """
        raise one_process()

    async def drain(self, name: str) -> None:
        """Take a replica away after its requests. Returns once it gets no new requests.

        Raises:
            Refusal: REPLICA_NOT_FOUND; REPLICAS_UNAVAILABLE where no other replica serves, and from an engine that is
                one process.
        """
        raise one_process()

    async def replace(self, name: str) -> None:
        """Start another replica in the place of this one, which is taken away once the other serves. Returns once the
        change has begun.

        Raises:
            Refusal: REPLICA_NOT_FOUND; REPLICAS_UNAVAILABLE from an engine that is one process.
        """
        raise one_process()


def is_stopped(pid: int | None) -> bool:
    """Whether the system has stopped the process (SIGSTOP). A process that is gone is not stopped."""
    with suppress(psutil.Error):
        return pid is not None and psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return False
