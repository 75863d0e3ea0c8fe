"""A fleet of scripted engines. Each engine has gates of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from steerserve import messages as m
from steerserve.engines.fleet.fleet import Fleet
from steerserve.engines.fleet.replica import Replica
from steerserve.errors import Refusal
from steerserve.messages.engine import Report
from steerserve.messages.spelling import ReadBack, Spell
from steerserve.messages.tokenizing import Spelling
from steerserve.rules.residency.heartbeat import Bounds
from steerserve.rules.residency.replicas import ReplicaState, ReplicaView
from tests import asking
from tests.scripted_engine import Launcher, ScriptedEngine, Stream
from tests.waiting import Gate, soon, until

FIELDS: dict[str, Any] = {"path": "/models/tiny", "trust_remote_code": False}
SOURCE = m.SaeSource("/saes/one", "one")
KEY = "one@1"
NO_ROOM = Refusal("ENGINE_UNAVAILABLE", "no room")
Events = AsyncGenerator[m.Started | m.Outcome, None]


def attached(state: m.State) -> m.State:
    return state.attached(m.PlacedSae(KEY, SOURCE, 1))


def detached(state: m.State) -> m.State:
    return state.detached(KEY)


class Letters:
    """Makes a token of each letter."""

    def __init__(self) -> None:
        self.is_closed = False

    @asynccontextmanager
    async def opening(
        self, path: str, trust_remote_code: bool, report: Report
    ) -> AsyncIterator[None]:
        yield

    def serve(self, facts: m.Loaded) -> None:
        self.facts = facts

    async def tokens(
        self, prompts: Sequence[Any], max_tokens: int | None, field: str, client: str
    ) -> list[m.Tokens]:
        return [m.Tokens([ord(letter) for letter in prompt.text]) for prompt in prompts]

    async def spell(self, question: Spell | ReadBack) -> Spelling:
        raise AssertionError("no test asks for it")

    async def close(self) -> None:
        self.is_closed = True


class OtherModel(ScriptedEngine):
    """Loads a model with another vocabulary."""

    async def load(self, report: Report, *args: Any, **fields: Any) -> m.Loaded:
        facts = await super().load(report, *args, **fields)
        return msgspec.structs.replace(facts, vocabulary=facts.vocabulary + 1)


class Crew:
    """Launches scripted engines; `prepare` is called with the launcher of each new engine, before it is launched.
    `holds_another` says that new engines find another model under the same path."""

    def __init__(self) -> None:
        self.launchers: list[Launcher] = []
        self.holds_another = False
        self.prepare: Callable[[Launcher], None] = lambda _: None
        self.placing: Callable[[], Awaitable[object]] | None = None
        """What new engines wait for before they have a place."""

    async def launch(self, _report: Report = lambda _: None) -> ScriptedEngine:
        if self.placing is not None:
            await self.placing()
        launcher = Launcher()
        self.launchers.append(launcher)
        self.prepare(launcher)
        engine = await launcher.launch()
        if self.holds_another:
            launcher.engines[-1] = engine = OtherModel(launcher)
        return engine

    def engine(self, number: int) -> ScriptedEngine:
        return self.launchers[number].engine


class Scene:
    """A fleet, its engines, and what it announced."""

    def __init__(self, count: int, least: int = 1, **more: Any) -> None:
        self.crew = Crew()
        self.prompts = Letters()
        self.changes: list[ReplicaView] = []
        self.gates: list[Gate] = []
        more = {"drain_seconds": 5.0, "wait_seconds": 60.0, "pause": lambda _: 0.0, **more}
        self.fleet = Fleet(
            self.crew.launch,
            self.prompts,
            count=count,
            least=least,
            slots=4,
            bounds=Bounds(60.0, 60.0),
            **more,
        )
        self.fleet.on_replicas = self.changes.append

    async def load(self) -> m.Loaded:
        return await soon(self.fleet.load(lambda _: None, **FIELDS))

    def engine(self, number: int) -> ScriptedEngine:
        """The engine that was launched as the `number`-th, from 0."""
        return self.crew.engine(number)

    def replica(self, name: str) -> Replica:
        replica = self.fleet._roster.named(name)
        assert replica is not None
        return replica

    def states(self) -> dict[str, ReplicaState]:
        return {view.name: view.state for view in self.fleet.replicas()}

    async def kill(self, number: int) -> None:
        """Let an engine end as in a crash, and wait until the fleet knows it."""
        before = len(self.changes)
        self.engine(number).die()
        await until(lambda: len(self.changes) > before)

    async def serving(self, *names: str) -> None:
        """Wait until exactly these replicas serve, and there are no others."""
        await until(lambda: self.states() == dict.fromkeys(names, ReplicaState.SERVING))

    def ask(self, text: str = "hello", **more: Any) -> Request:
        return Request(self.fleet, text, **more)

    async def served_by(self, *numbers: int, text: str = "hello", **more: Any) -> None:
        """Send a request for each of these engines, which answer at once."""
        requests = [self.ask(text, **more) for _ in numbers]
        for number in numbers:
            (await self.stream(number)).complete()
        for request in requests:
            await request.text()

    def hold(self, step: str) -> None:
        """Hold this step of the engines that are launched from now on."""
        self.gates.clear()
        self.crew.prepare = lambda launcher: self.gates.append(launcher.hold(step))

    async def held(self) -> Gate:
        """The gate of the first engine that is held, once it has come to the step."""
        await until(lambda: self.gates)
        await soon(self.gates[0].reached.wait())
        return self.gates[0]

    async def stream(self, number: int) -> Stream:
        """The next request that reached this engine."""
        return await self.crew.launchers[number].stream()


class Request:
    """A request of a client, which reads all events in a task."""

    def __init__(
        self,
        fleet: Fleet,
        text: str,
        *,
        n: int = 1,
        seed: int | None = None,
        label: str | None = None,
    ) -> None:
        self.events: list[m.Started | m.Outcome] = []
        sampling = m.Sampling(max_tokens=8, seed=seed)
        self._stream = fleet.run(
            asking.generate(0, [m.Text(text)], sampling, m.Follow(), n=n, label=label)
        )
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> str:
        async for event in self._stream:
            self.events.append(event)
        return "".join(event.text for event in self.events if isinstance(event, m.Piece))

    async def text(self) -> str:
        return await soon(self.task)
