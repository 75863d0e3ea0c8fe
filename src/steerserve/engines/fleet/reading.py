"""Reads what the engines of a fleet counted and kept, as if one engine had counted and kept it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from steerserve import messages as m
from steerserve.engines.fleet import merging
from steerserve.engines.fleet.editing import Edit, Editing, Facts
from steerserve.engines.fleet.replica import Replica
from steerserve.engines.fleet.roster import Roster
from steerserve.errors import Refusal
from steerserve.messages.engine import Answer, Engine


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """What one engine counted: its features, the tokens observed, the active features summed over these tokens."""

    features: Mapping[int, m.FeatureCount]
    tokens: int
    activations: int


class Readings:
    """Owner of the statistics of replicas that were taken away. What a replica counted that ended by itself is lost."""

    def __init__(self, roster: Roster, editing: Editing) -> None:
        self._roster = roster
        self._editing = editing
        self._left: list[EngineCounts] = []
        self._left_of: str | None = None
        self._kept: set[int] = set()
        self._monitored: dict[Engine, int] = {}
        self._lost = 0

    async def ask(self, question: m.Question[Answer]) -> Answer:
        """What was counted and measured is asked of all replicas; every other question of one replica.

        Raises:
            Refusal: the refusal of the engines.
        """
        answer: object
        match question:
            case m.ReadStatistics():
                answer = await self._statistics(question)
            case m.ReadContexts():
                asked = await self._each(lambda engine: engine.ask(question))
                answer = merging.contexts(list(asked.values()), question.k)
            case m.Measure():
                answer = await self._measure()
            case m.ResetStatistics():
                await self._editing.make(Edit(lambda state: state, _reset))
                self._drop()
                answer = m.Done(0)
            case _:
                answer = await self._one(lambda engine: engine.ask(question))
        return cast("Answer", answer)

    async def _one(self, ask: Callable[[Engine], Awaitable[Answer]]) -> Answer:
        """The answer of one replica; of another one when that replica ends meanwhile.

        Raises:
            Refusal: the refusal of the engine.
        """
        while True:
            self._roster.check()
            for replica in self._roster.serving:
                try:
                    return await ask(replica.running)
                except Refusal:
                    if replica.is_alive:
                        raise
            await self._roster.change_for_work()

    async def _statistics(self, asked: m.ReadStatistics) -> m.Statistics:
        """The statistics of all replicas, merged."""
        counted = await self._counted(asked.features)
        if self._left_of == self._editing.told.counted:
            counted += self._left
        tables = [one.features for one in counted]
        wanted = None if asked.features is None else set(asked.features)
        made = await asyncio.to_thread(_ranked, tables, wanted, asked.metric, asked.k)
        tokens = sum(one.tokens for one in counted)
        activations = sum(one.activations for one in counted)
        return m.Statistics(0, made, tokens, activations, self._lost)

    async def _measure(self) -> m.Measured:
        """The memory of the engines. Cards are counted where they are cards of this host."""
        answers = await self._each(lambda engine: engine.ask(m.Measure()))
        local = [answer for r, answer in answers.items() if r.running.node is None]
        return merging.measured(list(answers.values()), local)

    async def measure_replicas(self) -> dict[str, m.Measured]:
        """The memory of each engine, by the name of its replica."""
        answers = await self._each(lambda engine: engine.ask(m.Measure()))
        return {replica.name: answer for replica, answer in answers.items()}

    # ------------------------------------------------------------- replicas that are taken away

    async def keep(self, replica: Replica) -> None:
        """Keep what a replica has counted, before its engine ends."""
        told = self._editing.told
        if told.counted is None or not replica.is_alive:
            return
        number, every = replica.number, list(range(told.facts[told.counted].d_sae))
        try:
            answer = await replica.running.ask(m.ReadStatistics(features=every))
        except Refusal:
            return
        if self._editing.told.counted == told.counted:
            self._kept.add(number)
            self._monitored.pop(replica.running, None)
            if self._left_of != told.counted:
                self._left, self._left_of = [], told.counted
            table = merging.by_feature(answer.features)
            self._left.append(EngineCounts(table, answer.tokens, answer.activations))

    def _drop(self) -> None:
        """Forget what replicas counted that were taken away, and what was lost."""
        self._left, self._left_of = [], None
        self._monitored.clear()
        self._lost = 0

    # ------------------------------------------------------------- replicas that end by themselves

    def note(self, engine: Engine) -> None:
        """A completion begins on an engine, which counts its tokens while monitoring is on."""
        if self._editing.told.state.monitored is not None:
            self._monitored[engine] = self._monitored.get(engine, 0) + 1

    def lose(self, engine: Engine) -> None:
        """The engine has ended. What it had counted is lost, unless that was kept before."""
        self._lost += self._monitored.pop(engine, 0)

    # ------------------------------------------------------------- inside

    async def _counted(self, features: list[int] | None) -> list[EngineCounts]:
        """The features of each replica. An engine lists the features that were active on it; where all features are
        asked for, it is asked again for those that were active on another one only."""
        answers = await self._each(lambda engine: engine.ask(m.ReadStatistics(features=features)))
        tables = {r: merging.by_feature(answer.features) for r, answer in answers.items()}
        if features is None and len(tables) + len(self._left) > 1:
            left = self._left if self._left_of == self._editing.told.counted else []
            active = {i for one in left for i, c in one.features.items() if c.active_ratio}
            active = active.union(*tables.values())
            missing = {r: sorted(active - table.keys()) for r, table in tables.items()}
            by_engine = {r.running: indices for r, indices in missing.items()}
            more = await self._each(
                lambda engine: engine.ask(m.ReadStatistics(features=by_engine[engine])),
                [replica for replica, indices in missing.items() if indices],
            )
            for replica, answer in more.items():
                tables[replica].update(merging.by_feature(answer.features))
        return [
            EngineCounts(tables[replica], answer.tokens, answer.activations)
            for replica, answer in answers.items()
        ]

    async def _each(
        self,
        ask: Callable[[Engine], Awaitable[Answer]],
        replicas: Sequence[Replica] | None = None,
    ) -> dict[Replica, Answer]:
        """The answers of all replicas that hold the state of the fleet. A replica that ends meanwhile answers nothing.

        Raises:
            Refusal: the refusal of an engine that lives; ENGINE_UNAVAILABLE where no engine answers.
        """
        if replicas is None:
            every = [r for r in self._roster.replicas if r.has_state and r.is_alive]
            replicas = [r for r in every if r.number not in self._kept]
            if not replicas:
                self._roster.check()
                raise Refusal("ENGINE_UNAVAILABLE", "no replica serves at this moment")
        results = await asyncio.gather(
            *(ask(replica.running) for replica in replicas), return_exceptions=True
        )
        answers: dict[Replica, Answer] = {}
        for replica, result in zip(replicas, results, strict=True):
            if not isinstance(result, BaseException):
                answers[replica] = result
            elif not isinstance(result, Refusal) or replica.is_alive:
                raise result
        return answers


async def _reset(engine: Engine, _: m.State) -> Facts:
    await engine.ask(m.ResetStatistics())
    return {}


def _ranked(
    tables: Sequence[Mapping[int, m.FeatureCount]],
    wanted: set[int] | None,
    metric: str | None,
    k: int,
) -> list[m.FeatureCount]:
    """The merged features that were active, or those that are wanted."""
    made = merging.joined(tables)
    if wanted is None:
        made = [one for one in made if one.active_ratio]
    else:
        made = [one for one in made if one.feature_idx in wanted]
    return merging.ranked(made, metric, k)
