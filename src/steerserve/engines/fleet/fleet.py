"""Replicas of one model as one engine. See the page of this room (`__init__.py`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from steerserve import messages as m
from steerserve.engines.checkpoint.prompts import PromptMaker
from steerserve.engines.fleet.editing import Edit, Editing, Facts
from steerserve.engines.fleet.lives import Effects, Launch, Lives
from steerserve.engines.fleet.reading import Readings
from steerserve.engines.fleet.replica import Replica
from steerserve.engines.fleet.requests import Requests
from steerserve.engines.fleet.roster import Roster
from steerserve.errors import Refusal
from steerserve.logs import background
from steerserve.messages import endings
from steerserve.messages.engine import Answer, Answers, Engine, Heartbeat, Passes, Report
from steerserve.messages.spelling import ReadBack, Spell
from steerserve.messages.tokenizing import Spelling
from steerserve.rules.residency import replicas as rules
from steerserve.rules.residency.heartbeat import Activity, Bounds, Sign


class Fleet(Engine):
    """N replicas. `ended` is done when no replica serves and none can be started, or after `stop`.

    Args:
        launch: starts an engine that gets its prompts as tokens (`checkpoint/prompts.TokensGiven`).
        prompts: makes the prompts of all replicas into tokens; is closed with the fleet.
        count: the number of replicas.
        least: the number of replicas without which a load fails.
        slots: the requests that are meant to run at once on each replica.
        bounds: the silence after which an engine is ended, and the time of a load.
        drain_seconds: the time that the requests of a replica have that is taken away.
        wait_seconds: how long requests and edits wait while no replica serves and none has a place.
        pause: the seconds before a replica is started again, by the number of failures in a row.
    """

    def __init__(
        self,
        launch: Launch,
        prompts: PromptMaker,
        *,
        count: int,
        least: int,
        slots: int,
        bounds: Bounds,
        drain_seconds: float,
        wait_seconds: float,
        pause: Callable[[int], float] = rules.pause,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(Heartbeat(self._sign, lambda _: self._roster.tell()))
        self.fleet = self
        self._prompts = prompts
        self._count = count
        self._least = least
        self._roster = Roster(
            lambda view: self.on_replicas(view), self.must_run, slots, wait_seconds
        )
        self._editing = Editing(self._roster, self._may_edit, clock)
        self._reading = Readings(self._roster, self._editing)
        self._requests = Requests(
            self._roster, prompts, lambda: self.state.steering, self._reading.note
        )
        effects = Effects(self._began, self._left, self._reading.keep, self._finish)
        self._lives = Lives(
            launch, self._roster, self._editing, effects, bounds, drain_seconds, pause, clock
        )
        self._signs, self._reason = 0, ""
        self._ending: asyncio.Task[None] | None = None

    @property
    def passes(self) -> Passes:
        """The passes of all replicas; steering is counted also where it was added by a replica that has ended."""
        replicas = [r for r in self._roster.replicas if r.engine and not r.is_counted]
        live = [r.running.passes.applied for r in replicas]
        return Passes(
            {
                key: self._counted(key) + sum(counts.get(key, 0) for counts in live)
                for key in self.state.keys
            },
            self._roster.threads(),
            self._roster.graphs(),
            self._roster.turns(),
        )

    # ------------------------------------------------------------- life

    async def load(self, report: Report, *_: object, **fields: Any) -> m.Loaded:
        """Load the model on all replicas. Those that fail are tried again later, while at least `least` have loaded.

        Raises:
            Refusal: too few replicas have loaded the model; the reason of the first that failed.
        """
        async with self._prompts.opening(fields["path"], fields["trust_remote_code"], report):
            facts = await self._lives.load_replicas(self._count, self._least, report, fields)
        self._prompts.serve(facts)
        return facts

    async def bring(self, path: str, report: Report = lambda _: None) -> None:
        self.must_run()
        await self._roster.bring(path, report)

    async def stop(self, parting: Refusal | None = None) -> None:
        self._parting = self._parting or parting
        self._finish("the engine processes ended")
        await asyncio.wait([self.ended])

    def lose(self, reason: str) -> None:
        for replica in self._roster.replicas:
            replica.lose(reason)
        self._finish(reason)

    def must_run(self) -> None:
        if self._ending is not None and not self.ended.done():
            raise self._parting or endings.engine_gone(self._reason)
        super().must_run()

    def _sign(self) -> Sign:
        """A new sign as long as a replica is alive, or is being started. Where all stand still, the last one."""
        has_engine = [r for r in self._roster.replicas if r.engine is not None]
        is_still = has_engine and all(r.running.heartbeat.stalled is not None for r in has_engine)
        if is_still:
            return replace(has_engine[0].running.heartbeat.sign(), count=self._signs)
        self._signs += 1
        return Sign(Activity.IDLE if self._roster.serving else Activity.LOAD, self._signs)

    def _finish(self, reason: str) -> None:
        """Begin to end all replicas, and then the fleet. Does not wait."""
        if self._ending is None and not self.ended.done():
            self._reason = reason
            self._ending = background.start(self._end(reason), name="fleet-end")
            self._roster.tell()

    async def _end(self, reason: str) -> None:
        try:
            await self._lives.end(self._parting)
            await self._editing.close()
            await self._prompts.close()
        finally:
            self.ended.set_result(reason)
            self._roster.tell()

    def _may_edit(self) -> None:
        """Raises:
        Refusal: the fleet has ended or is stalled.
        """
        self.must_run()
        self.heartbeat.check_not_stalled()

    # ------------------------------------------------------------- one replica

    def _began(self, replica: Replica) -> None:
        engine = replica.running
        engine.history = self.history
        engine.on_record = replica.heeded(lambda event: self.on_record(event))
        engine.on_spans = replica.heeded(lambda event: self.on_spans(event))
        engine.on_edges = replica.heeded(lambda event: self.on_edges(event))

    def _left(self, replica: Replica) -> None:
        """The engine of a replica has ended: keep what it has counted, and forget what it held."""
        if not replica.is_counted:
            replica.is_counted = True
            left = replica.running.passes.applied
            sums = {key: self._counted(key) + count for key, count in left.items()}
            self._set_applied({**self._passes.applied, **sums})
        self._reading.lose(replica.running)
        self._requests.affinity.forget(replica.number)

    # ------------------------------------------------------------- requests

    def run(self, request: m.Request) -> Answers:
        """Run the request on the replica with the least work, see `Requests.stream`."""
        return self._requests.stream(request)

    async def _spell(self, question: Spell | ReadBack) -> Spelling:
        try:
            return await self._prompts.spell(question)
        except Refusal:
            self.must_run()  # the processes that make tokens end with the fleet
            raise

    # ------------------------------------------------------------- SAEs and steering

    @property
    def state(self) -> m.State:
        return self._editing.told.state

    async def change(self, step: m.Step) -> Facts:
        """One step of the epoch; see `Editing.make`."""
        return await self._editing.make(Edit(step, on_made=self._count_attached))

    def _count_attached(self) -> None:
        """Count the steering of the SAEs that are attached now, and of no other."""
        self._set_applied({key: self._counted(key) for key in self.state.keys})

    async def ask(self, question: m.Question[Answer]) -> Answer:
        """The answer of the tokenizer, of one replica, or of all replicas as if they were one engine; see
        `Readings.ask`."""
        if isinstance(question, Spell | ReadBack):
            return cast("Answer", await self._spell(question))
        return await self._reading.ask(question)

    # ------------------------------------------------------------- replicas

    def replicas(self) -> tuple[rules.ReplicaView, ...]:
        return tuple(replica.view() for replica in self._roster.replicas)

    async def measure(self) -> Mapping[str, m.Measured]:
        return await self._reading.measure_replicas()

    async def resize(self, count: int) -> None:
        self.must_run()
        if count < 1:
            raise Refusal("INVALID_PARAMETER", "a model has at least one replica", param="count")
        wanted = self._roster.wanted
        self._count = count
        places = rules.to_take_away([(r.state, r.rows) for r in wanted], count)
        for place in places:
            self._lives.take_away(wanted[place])
        for _ in range(count - len(wanted)):
            self._lives.add()

    async def drain(self, name: str) -> None:
        replica = self._named(name)
        if not any(other is not replica for other in self._roster.serving):
            why = "no other replica serves; unload the model, or add a replica first"
            raise Refusal("REPLICAS_UNAVAILABLE", why)
        self._lives.take_away(replica)

    async def replace(self, name: str) -> None:
        self._lives.replace(self._named(name))

    def _named(self, name: str) -> Replica:
        self.must_run()
        replica = self._roster.named(name)
        if replica is None or replica.leaving.is_set():
            raise Refusal("REPLICA_NOT_FOUND", f"no replica is named {name!r}")
        return replica
