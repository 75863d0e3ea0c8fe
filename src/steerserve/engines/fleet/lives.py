"""The lives of replicas: starts, heartbeats, ends, starts after an end, and the way out of the fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import structlog

from steerserve import messages as m
from steerserve.engines.fleet.editing import Editing
from steerserve.engines.fleet.progress import LoadsProgress, extend
from steerserve.engines.fleet.replica import Replica
from steerserve.engines.fleet.roster import Roster
from steerserve.errors import Refusal
from steerserve.logs import background
from steerserve.messages import endings
from steerserve.messages.engine import Engine, Report
from steerserve.rules.residency import heartbeat
from steerserve.rules.residency import replicas as rules
from steerserve.rules.residency.heartbeat import Bounds, Condition
from steerserve.rules.residency.replicas import ReplicaState

log = structlog.get_logger(__name__)

Launch = Callable[[Report], Awaitable[Engine]]


@dataclass(frozen=True, slots=True)
class Effects:
    """What a fleet does when something happens to a replica.

    Attributes:
        began: a new engine fills the place of a replica.
        ended: the engine of a replica has ended.
        leaves: a replica without requests is about to be taken away.
        hopeless: no replica serves, and none can be started.
    """

    began: Callable[[Replica], None]
    ended: Callable[[Replica], None]
    leaves: Callable[[Replica], Awaitable[None]]
    hopeless: Callable[[str], None]


class Lives:
    """Owner of the tasks in which replicas live: one for each replica, and one that looks at all of them.

    Args:
        launch: starts an engine, whose prompts come as tokens.
        bounds: the silence of an engine, and the time of a load.
        drain_seconds: the time that the requests of a replica have that is taken away.
        pause: the seconds before a start, by the number of failures in a row.
    """

    def __init__(
        self,
        launch: Launch,
        roster: Roster,
        editing: Editing,
        effects: Effects,
        bounds: Bounds,
        drain_seconds: float,
        pause: Callable[[int], float],
        clock: Callable[[], float],
    ) -> None:
        self._launch = launch
        self._roster = roster
        self._editing = editing
        self._effects = effects
        self._bounds = bounds
        self._drain_seconds = drain_seconds
        self._pause = pause
        self._clock = clock
        self._fields: Mapping[str, object] = {}
        self._facts: m.Loaded | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._by_replica: dict[Replica, asyncio.Task[None]] = {}

    # ------------------------------------------------------------- the first load

    async def load_replicas(
        self, count: int, least: int, report: Report, fields: Mapping[str, object]
    ) -> m.Loaded:
        """Load the model on `count` replicas. Returns once each of them serves or has failed, with the facts that hold
        for all.

        Raises:
            Refusal: fewer than `least` replicas have loaded the model; the first reason.
        """
        self._fields = fields
        progress = LoadsProgress(report, count)
        coming = [self._roster.add() for _ in range(count)]
        self._spawn(self._watch(), "fleet-watch")
        results = await asyncio.gather(
            *(self._load(replica, progress.report_for(replica.name)) for replica in coming),
            return_exceptions=True,
        )
        errors = [e for e in results if isinstance(e, BaseException)]
        loaded = [
            r for r, e in zip(coming, results, strict=True) if not isinstance(e, BaseException)
        ]
        if len(loaded) < least:
            raise errors[0]
        self._facts = _common([r.facts for r in loaded if r.facts is not None])
        for replica, error in zip(coming, results, strict=True):
            if isinstance(error, BaseException):
                await self._fail(replica, error)
            else:
                await self._begin_to_serve(replica)
            self._live(replica, is_up=replica in loaded)
        return self._facts

    async def end(self, parting: Refusal | None) -> None:
        """End every task and every engine."""
        for task in [*self._tasks]:
            task.cancel()
        if self._tasks:
            await asyncio.wait([*self._tasks])
        engines = [r.engine for r in self._roster.replicas if r.engine is not None]
        await asyncio.gather(*(engine.stop(parting) for engine in engines))

    # ------------------------------------------------------------- changes of an operator

    def add(self, replaces: str | None = None) -> Replica:
        """Start one more replica in the background, in the place of the replica with the name `replaces`."""
        replica = self._roster.add(replaces)
        self._live(replica, is_up=False)
        return replica

    def take_away(self, replica: Replica) -> None:
        """Let a replica end after its requests. It gets no new ones from now on."""
        if replica.leaving.is_set():
            return
        replica.leaving.set()
        if replica.has_state:
            replica.move(ReplicaState.DRAINING)
        self._spawn(self._take_away(replica))

    def replace(self, replica: Replica) -> None:
        """Start another replica, and take this one away once the other serves. An operator may take this one away
        before that: then the other one is taken away too."""
        self._spawn(self._replace(replica, self.add(replica.name)))

    async def _replace(self, replica: Replica, successor: Replica) -> None:
        while successor.state is not ReplicaState.SERVING:
            if successor.failed_starts >= rules.STARTS:
                log.warning("replica_not_replaced", replica=replica.name, reason=successor.reason)
                self.take_away(successor)
            elif replica.leaving.is_set():
                self.take_away(successor)
            if successor.leaving.is_set():
                return
            with suppress(Refusal):
                await self._roster.change()
        successor.replaces = None
        self.take_away(replica)

    async def _take_away(self, replica: Replica) -> None:
        if replica.state is ReplicaState.DRAINING:
            ends: set[asyncio.Future[object]] = {
                asyncio.ensure_future(replica.idle.wait()),
                asyncio.ensure_future(asyncio.wait([replica.running.ended])),
            }
            await asyncio.wait(
                ends, timeout=self._drain_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            for end in ends:
                end.cancel()
            await self._effects.leaves(replica)
        life = self._by_replica.pop(replica, None)
        if life is not None:
            life.cancel()
            await asyncio.wait([life])
        if replica.engine is not None:
            await replica.engine.stop(Refusal("ENGINE_UNAVAILABLE", "the replica was taken away"))
            self._effects.ended(replica)
        self._roster.remove(replica)
        log.info("replica_taken_away", replica=replica.name)

    # ------------------------------------------------------------- one life

    def _live(self, replica: Replica, *, is_up: bool) -> None:
        task = self._spawn(self._life(replica, is_up=is_up), f"fleet-{replica.name}")
        self._by_replica[replica] = task

    async def _life(self, replica: Replica, *, is_up: bool) -> None:
        """Serve, end, and start again until the replica is taken away."""
        while True:
            if is_up:
                await asyncio.wait([replica.running.ended])
                self._note_end(replica)
            if replica.leaving.is_set():
                return
            if rules.is_hopeless([(r.state, r.failed_starts) for r in self._roster.wanted]):
                why = f"no replica serves, and none can be started ({replica.reason})"
                self._effects.hopeless(why)
                return
            if replica.failures:
                await asyncio.sleep(self._pause(replica.failures))
                replica.restarts += 1
            is_up = await self._come_up(replica)

    async def _come_up(self, replica: Replica) -> bool:
        """Start the engine, load the model, tell the state, and serve. Returns whether the replica serves."""
        try:
            async with asyncio.timeout(self._bounds.load) as limit:
                replica.move(ReplicaState.STARTING)
                await self._load(replica, lambda p: extend(limit, p, self._bounds.load))
                assert self._facts is not None
                assert replica.facts is not None
                differs = difference(self._facts, replica.facts)
                if differs is not None:
                    raise Refusal("MODEL_LOAD_FAILED", f"its model is another one there: {differs}")
                await self._begin_to_serve(replica)
        except Exception as error:
            # nobody waits for this task: every error is a failed start, and is logged
            await self._fail(replica, error)
            return False
        return True

    async def _load(self, replica: Replica, report: Report) -> None:
        engine = await self._started(report)
        replica.fill(engine, self._roster.number())
        self._effects.began(replica)
        self._roster.tell()
        replica.load(await engine.load(report, **self._fields))

    async def _started(self, report: Report) -> Engine:
        """Raises:
        Refusal: NotStarted, or another reason of the launch.
        """
        try:
            return await self._launch(report)
        except Refusal as error:
            if error.code != "ENGINE_UNAVAILABLE":
                raise
            raise endings.NotStarted(error.message) from error

    async def _begin_to_serve(self, replica: Replica) -> None:
        replica.move(ReplicaState.RESTORING)
        await self._editing.join(replica)
        replica.failed_starts = 0
        log.info("replica_serves", replica=replica.name, epoch=replica.epoch)

    def _note_end(self, replica: Replica) -> None:
        """The engine of a replica that has served is gone."""
        reason = replica.running.ended.result()
        served = self._clock() - (replica.served_at or 0.0)
        replica.failures = 1 if served >= rules.STEADY_SECONDS else replica.failures + 1
        log.error("replica_ended", replica=replica.name, reason=reason)
        self._effects.ended(replica)
        if not replica.leaving.is_set():
            replica.move(ReplicaState.LOST, reason)

    async def _fail(self, replica: Replica, error: BaseException) -> None:
        """A start has failed."""
        if isinstance(error, Refusal):
            reason = error.message
        elif isinstance(error, TimeoutError):
            reason = "its start took longer than LOAD_TIMEOUT"
        else:
            log.error("replica_failed", replica=replica.name, exc_info=error)
            reason = f"its start failed ({type(error).__name__})"
        log.warning("replica_not_started", replica=replica.name, reason=reason)
        replica.failures += 1
        replica.failed_starts += 1
        if replica.engine is not None:
            await replica.engine.stop()
        replica.move(ReplicaState.LOST, reason)

    # ------------------------------------------------------------- heartbeats

    async def _watch(self) -> None:
        while True:
            for replica in self._roster.replicas:
                if replica.engine is not None and not replica.engine.ended.done():
                    self._look(replica, replica.engine)
            await asyncio.sleep(heartbeat.LOOK_SECONDS)

    def _look(self, replica: Replica, engine: Engine) -> None:
        """(1) A stalled replica gets no requests, and is left out of edits. (2) With its next sign it serves again. (3)
        One that is silent for too long is ended, and started again."""
        silence = replica.silence = heartbeat.silence(
            replica.silence, engine.heartbeat.sign(), self._clock()
        )
        why = heartbeat.described(silence)
        match heartbeat.condition(silence, self._bounds):
            case Condition.STALLED if engine.heartbeat.stalled is None:
                log.warning("replica_stalled", replica=replica.name, reason=why)
                engine.heartbeat.stall(Refusal("ENGINE_UNAVAILABLE", why))
                if replica.state is ReplicaState.SERVING:
                    replica.move(ReplicaState.STALLED, why)  # (1)
            case Condition.ALIVE if engine.heartbeat.stalled is not None:
                engine.heartbeat.wake()
                if replica.state is ReplicaState.STALLED:
                    replica.move(ReplicaState.SERVING)  # (2)
            case Condition.LOST:
                engine.lose(f"{why}, and was ended")  # (3)

    def _spawn(
        self, work: Coroutine[object, object, None], name: str | None = None
    ) -> asyncio.Task[None]:
        task = background.start(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _common(facts: list[m.Loaded]) -> m.Loaded:
    """The facts that hold for all replicas: those of the first one, with the least context and KV cache of any.

    Raises:
        Refusal: MODEL_LOAD_FAILED where the replicas have loaded different models.
    """
    context = min(one.context_length for one in facts)
    common = msgspec.structs.replace(
        facts[0], context_length=context, kv_tokens=min(one.kv_tokens for one in facts)
    )
    for one in facts:
        differs = difference(common, one)
        if differs is not None:
            raise Refusal("MODEL_LOAD_FAILED", f"the replicas hold different models: {differs}")
    return common


def difference(common: m.Loaded, facts: m.Loaded) -> str | None:
    """Why a model cannot serve beside the others; None where it can. It may have room for more."""
    for name in (
        "architecture",
        "parameters",
        "layers",
        "hidden_size",
        "vocabulary",
        "chat_template",
    ):
        if getattr(common, name) != getattr(facts, name):
            return f"another {name.replace('_', ' ')}"
    if facts.context_length < common.context_length:
        return f"its context has {facts.context_length} tokens, and not {common.context_length}"
    return None
