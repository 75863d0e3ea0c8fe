"""An engine that a test directs: it holds a step of the engine at a gate, waits until the engine reaches the gate, and
opens it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from steerserve import messages as m
from steerserve.control.residency.cluster import SeenNode
from steerserve.database.catalog import utc_now
from steerserve.errors import Refusal
from steerserve.messages.engine import Engine, Heartbeat, Report
from steerserve.parts.response_format.form import RESPONSE_FORMAT
from steerserve.rules.residency.heartbeat import Activity, Sign
from steerserve.rules.residency.replicas import ReplicaState, ReplicaView
from steerserve.rules.units import MIB
from tests import asking
from tests.scripted_answers import (
    CLAIMS,
    FACTS,
    HIDDEN,
    STEPS,
    attached_at,
    engine_gone,
    outcomes_of,
    promoted,
    spelling,
)
from tests.waiting import Answer, Gate, soon


class Stream:
    """One generating request as the engine gets it. `over` is set when the request has ended, for whatever reason."""

    def __init__(self, request: m.Request, goal: m.Generate) -> None:
        self.prompts = request.prompts
        self.sampling = goal.sampling
        self.plan = request.plan
        self.choices = len(request.prompts) * goal.n
        self.constraint = asking.form(request, RESPONSE_FORMAT)
        self.label = request.label
        self.client = request.client
        self.plans = list(request.plans)
        self.over = asyncio.Event()
        self.was_cancelled = False
        self.events: asyncio.Queue[m.Started | m.Piece | Refusal] = asyncio.Queue()

    def start(self) -> None:
        self.events.put_nowait(m.Started(1, [3] * len(self.prompts)))

    def say(self, text: str, choice: int = 0, finish: str | None = None) -> None:
        self.events.put_nowait(m.Piece(1, choice, text, 1, finish))

    def refuse(self, refusal: Refusal) -> None:
        self.events.put_nowait(refusal)

    def complete(self, text: str = "done") -> None:
        """Send that the request has started, and the whole text of every choice."""
        self.start()
        for choice in range(self.choices):
            self.say(text, choice, "stop")


class ScriptedEngine(Engine):
    """Has all methods of an engine, without a process."""

    def __init__(self, launcher: Launcher) -> None:
        super().__init__(Heartbeat(self._sign))
        self.fleet = self if launcher.replicas else None
        self._launcher = launcher
        self.asked_statistics: list[tuple[list[int] | None, str | None, int]] = []
        self.counted = m.Statistics(1, [], 0, 0)
        self.count: Callable[[m.ReadStatistics], m.Statistics] = lambda _: self.counted
        """Answers the questions for statistics."""
        self.figures: dict[str, tuple[int, int]] = {}
        self.reserves = (0, 0)
        self.parts: list[m.DeviceMemory] = []
        """The parts of the memory that are measured."""
        self.kept: dict[str, m.Measured] = {}
        """The memory of each replica by its name."""
        self.loaded: dict[str, Any] | None = None
        self._streams: list[Stream] = []
        self._signs = 0
        self.views: dict[str, ReplicaView] = {}
        """The replicas by their names; none for an engine that is one process."""
        for number in range(1, launcher.replicas + 1):
            self._add(f"replica-{number}")
        self.silent: Sign | None = None
        """The sign that does not change while the engine stands still; None while the engine is alive."""

    def tell(self, **changes: Any) -> None:
        """Tell something of the passes."""
        self._passes = replace(self._passes, **changes)

    def _sign(self) -> Sign:
        self._signs += 1
        return self.silent or Sign(Activity.IDLE, self._signs)

    def lose(self, reason: str) -> None:
        if not self.ended.done():
            self.die(reason)

    async def load(self, report: Report, *_: Any, **fields: Any) -> m.Loaded:
        report(m.Progress(1, "weights", 50.0))
        await self._step("load")
        self.loaded = fields
        for name in self.views:
            self.become(name, ReplicaState.SERVING)
        return self._launcher.facts

    def replicas(self) -> tuple[ReplicaView, ...]:
        return tuple(self.views[name] for name in sorted(self.views))

    def become(self, name: str, state: ReplicaState, **changes: Any) -> None:
        """A replica comes into this state."""
        view = replace(self.views[name], state=state, **changes)
        if state is ReplicaState.ENDED:
            del self.views[name]
        else:
            self.views[name] = view
        self.on_replicas(view)

    async def measure(self) -> dict[str, m.Measured]:
        return dict(self.kept)

    async def resize(self, count: int) -> None:
        await self._step("resize")
        names = [v.name for v in self.replicas() if v.state is not ReplicaState.DRAINING]
        for name in names[count:]:
            self.become(name, ReplicaState.DRAINING)
        for _ in range(count - len(names)):
            self.on_replicas(self._add(f"replica-{len(self.views) + 1}"))

    async def drain(self, name: str) -> None:
        await self._of_replica("drain", name)
        self.become(name, ReplicaState.DRAINING)

    async def replace(self, name: str) -> None:
        await self._of_replica("replace", name)
        self.become(name, ReplicaState.STARTING, restarts=self.views[name].restarts + 1)

    async def _of_replica(self, step: str, name: str) -> None:
        await self._step(step)
        if name not in self.views:
            raise Refusal("REPLICA_NOT_FOUND", f"no replica is called {name!r}", name=name)

    def _add(self, name: str) -> ReplicaView:
        self.views[name] = ReplicaView(
            name=name,
            node="node-1",
            address="10.0.0.1",
            pid=None,
            state=ReplicaState.STARTING,
            epoch=0,
            requests=0,
            slots=2,
            gpu_indices=(),
            devices=("cpu",),
            memory_mb=(7,),
            kind="a",
            restarts=0,
            reason=None,
            since=utc_now(),
            replaces=None,
        )
        return self.views[name]

    async def ask(self, question: m.Question[Answer]) -> Answer:
        return cast("Answer", spelling(question) or await self._answer(question))

    async def _answer(self, question: m.Question[Any]) -> object:
        await self._step(STEPS[type(question)])
        match question:
            case m.Inspect():
                return m.Inspected(1, CLAIMS)
            case m.ReadStatistics():
                self.asked_statistics.append((question.features, question.metric, question.k))
                return self.count(question)
            case m.ResetStatistics():
                self.counted = m.Statistics(1, [], 0, 0)
            case m.Explore():
                facts = [m.FeatureFacts(i, 1.0, 1.0, 0.0, None) for i in question.features]
                return m.Explored(1, facts, [(i, 0.5) for i in range(question.nearest)])
            case m.Promote():
                return promoted(question)
            case m.Fit():
                scores = [float(is_in) for is_in in question.is_positive]
                direction = struct.pack(f"<{HIDDEN}f", *[3.0] * HIDDEN)
                return m.Fitted(1, direction, 0.0, scores, [scores], [scores], None, 2.0)
            case m.Measure():
                kv_reserve, working = self.reserves
                return m.Measured(1, self.figures, kv_reserve * MIB, working * MIB, self.parts)
        return m.Done(1)

    @property
    def attached(self) -> dict[str, tuple[str, int]]:
        """Path and layer of each attached SAE, by its key."""
        return {sae.key: (sae.source.path, sae.layer) for sae in self.state.saes}

    async def _apply(self, state: m.State) -> dict[str, m.Attached]:
        difference = state.since(self.state)
        for _ in difference.coming:
            await self._step("attach")
        for _ in difference.gone:
            await self._step("detach")
        if difference.is_steered:
            await self._step("steer")
        if difference.is_monitored:
            await self._step("monitor")
            if state.monitored is not None and state.monitored.key not in state.keys:
                raise Refusal("SAE_NOT_ATTACHED", "the SAE was detached")
        if difference.is_sensed:
            await self._step("sense")
        if not difference:
            await self._step("change")
        return {sae.key: self._launcher.made or attached_at(sae.layer) for sae in state.saes}

    async def run(self, request: m.Request) -> AsyncGenerator[m.Started | m.Outcome, None]:
        goal = request.goal
        if (reading := outcomes_of(request, self._launcher.noise)) is not None:
            step, outcomes = reading
            if step is not None:
                await self._read(step)
            yield m.Started(1, [3] * len(request.prompts))
            for outcome in outcomes:
                yield outcome
            return
        if not isinstance(goal, m.Generate):
            raise Refusal("FIELD_NOT_HONOURED", "logprobs is not honoured", param="logprobs")
        stream = Stream(request, goal)
        unfinished = stream.choices
        self._streams.append(stream)
        try:
            if self._parting is not None:
                raise self._parting
            await self._step("generate")
            self._launcher.streams.put_nowait(stream)
            while unfinished:
                event = await stream.events.get()
                if isinstance(event, Refusal):
                    unfinished = 0
                    raise event
                if isinstance(event, m.Piece) and event.finish:
                    unfinished -= 1
                yield event
        finally:
            stream.was_cancelled = bool(unfinished) and not self.ended.done()
            self._streams.remove(stream)
            self._launcher.log.append("generated")
            stream.over.set()

    async def _read(self, step: str) -> None:
        """The step of a part of a job."""
        try:
            await self._step(step)
        except Refusal as gone:
            raise self._parting or gone from None

    async def stop(self, parting: Refusal | None = None) -> None:
        if self.ended.done():
            return
        self._launcher.log.append("stop")
        self._parting = parting
        self.die("the engine process ended", parting)

    def die(
        self, reason: str = "the engine process was ended by signal 9", parting: Any = None
    ) -> None:
        """End as in a crash. Requests in flight get `parting`, or ENGINE_UNAVAILABLE."""
        self.ended.set_result(reason)
        for stream in self._streams:
            stream.refuse(parting or engine_gone(reason))

    async def _step(self, name: str) -> None:
        is_command = name not in ("load", "generate")
        if is_command:
            self.heartbeat.check_not_stalled()
        stalling = asyncio.ensure_future(self.heartbeat.stalling.wait())
        try:
            await self._launcher.step(name, [self.ended, *([stalling] if is_command else [])])
        finally:
            stalling.cancel()
        if self.ended.done():
            raise engine_gone(self.ended.result())
        if is_command:
            self.heartbeat.check_not_stalled()


class Launcher:
    """Launches scripted engines. `log` has the steps of all engines in the order in which they began."""

    def __init__(self) -> None:
        self.engines: list[ScriptedEngine] = []
        self.log: list[str] = []
        self.streams: asyncio.Queue[Stream] = asyncio.Queue()
        self.reason: str | None = None
        self.replicas = 0
        """The replicas of the next engine; with 0, the engine is one process."""
        self.least = 1
        self.facts = FACTS
        """The facts of the models that engines load."""
        self.barred: Mapping[str, str] = {}
        self.has_nodes = False
        self.cluster_nodes: Callable[[Sequence[str]], Sequence[SeenNode]] = lambda _: ()
        """The nodes of the cluster, as they see these folders."""
        self.noise = 0.125
        """The metric of each patch of a text into itself."""
        self.made: m.Attached | None = None
        """The answer to the next attaches; None stands for a plain answer."""
        self._gates: dict[str, Gate] = {}
        self._failures: dict[str, Exception] = {}

    @property
    def engine(self) -> ScriptedEngine:
        """The engine that was launched last."""
        return self.engines[-1]

    @property
    def alive(self) -> list[ScriptedEngine]:
        return [engine for engine in self.engines if not engine.ended.done()]

    def failure(self) -> str | None:
        """Why no engine can be started."""
        return self.reason

    def hold(self, step: str) -> Gate:
        """Hold the next `step` of any engine."""
        return self._gates.setdefault(step, Gate())

    def fail(self, step: str, error: Exception) -> None:
        """Make the next `step` of any engine fail."""
        self._failures[step] = error

    async def launch(self, engine: str = "checkpoint") -> ScriptedEngine:
        await self.step("launch")
        self.engines.append(ScriptedEngine(self))
        return self.engines[-1]

    async def launch_resident(self, engine: str, _folder: str | None) -> ScriptedEngine:
        return await self.launch(engine)

    def is_fetched(self, _folder: str) -> bool:
        """The folders of the tests were no downloads."""
        return False

    async def nodes(self, *folders: str) -> Sequence[SeenNode]:
        return self.cluster_nodes(folders)

    async def close(self) -> None:
        """Nothing was opened."""

    async def stream(self) -> Stream:
        """The next request that reached an engine."""
        return await soon(self.streams.get())

    async def step(self, name: str, ends: Collection[asyncio.Future[Any]] = ()) -> None:
        """One step of an engine. A step that a gate holds goes on when one of `ends` is done."""
        self.log.append(name)
        gate, failure = self._gates.pop(name, None), self._failures.pop(name, None)
        if gate is not None:
            gate.reached.set()
            opened = asyncio.ensure_future(gate.open.wait())
            try:
                await asyncio.wait({opened, *ends}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                opened.cancel()
        if failure is not None:
            raise failure
