"""Statistics and contexts of several engines, compared with one engine that had seen all of their tokens."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from steerserve import messages as m
from steerserve.engines.fleet import merging
from steerserve.errors import Refusal
from tests.engines.fleet.conftest import Made
from tests.engines.fleet.scripted import KEY, SOURCE, Scene, attached
from tests.scripted_engine import ScriptedEngine
from tests.waiting import soon

Values = NDArray[np.float64]
FEATURES = 16


def counted(values: Values, feature: int) -> m.FeatureCount:
    """The figures of one feature over tokens, by numpy."""
    one = values[:, feature]
    active = float((one != 0).mean())
    return m.FeatureCount(feature, len(one), one.mean(), one.std(), one.min(), one.max(), active)


def sparse(tokens: int, seed: int) -> Values:
    """Values [tokens, FEATURES] of which most are 0, some far from 0. The last feature is active in one token only."""
    source = np.random.default_rng(seed)
    values = source.normal(1e4 * seed, 3.0, (tokens, FEATURES))
    values *= source.random((tokens, FEATURES)) < 0.3
    values[:, -1] = 0.0
    values[0, -1] = 5.0 if seed == 1 else 0.0
    return values


class Counting:
    """Lets a scripted engine answer as an engine that has observed these values."""

    def __init__(self, engine: ScriptedEngine, values: Values) -> None:
        self.values = values
        self.asked: list[list[int] | None] = []
        engine.count = self.statistics

    def statistics(self, asked: m.ReadStatistics) -> m.Statistics:
        assert asked.metric is None
        features = asked.features
        self.asked.append(features)
        active = [i for i in range(FEATURES) if (self.values[:, i] != 0).any()]
        listed = active if features is None else sorted(set(features))
        made = [counted(self.values, i) for i in listed]
        return m.Statistics(1, made, len(self.values), int((self.values != 0).sum()))


def is_near(left: m.Statistics, values: Values) -> bool:
    """Whether statistics are those of all tokens."""
    expected = [counted(values, i) for i in range(FEATURES) if (values[:, i] != 0).any()]
    assert (left.tokens, left.activations) == (len(values), int((values != 0).sum()))
    assert [one.feature_idx for one in left.features] == [one.feature_idx for one in expected]
    for one, other in zip(left.features, expected, strict=True):
        assert one.count == other.count
        assert (one.min, one.max) == (other.min, other.max)
        for name in ("mean", "std", "active_ratio"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-12), name
    return True


async def observed(scene: Made, *values: Values) -> tuple[Scene, list[Counting]]:
    """A fleet that monitors an SAE, with an engine for each table of values."""
    one = await scene(len(values))
    await one.fleet.change(attached)
    await one.fleet.change(m.setting(monitored=m.Monitored(KEY)))
    return one, [Counting(one.engine(number), table) for number, table in enumerate(values)]


async def test_statistics_of_all_replicas_are_those_of_the_pooled_tokens(scene: Made) -> None:
    tables = sparse(50, 1), sparse(7, 2), sparse(1, 3)
    one, counting = await observed(scene, *tables)
    assert is_near(await soon(one.fleet.ask(m.ReadStatistics())), np.concatenate(tables))
    # a feature that was active on one engine counts with its zeros on the others
    assert FEATURES - 1 in (counting[1].asked[-1] or [])


async def test_the_largest_are_chosen_after_the_merge(scene: Made) -> None:
    tables = sparse(50, 1), sparse(60, 2)
    one, _ = await observed(scene, *tables)
    pooled = np.concatenate(tables)
    for metric, values in (
        ("mean", pooled.mean(0)),
        ("max", pooled.max(0)),
        ("count", (pooled != 0).sum(0)),
        ("active_ratio", (pooled != 0).mean(0)),
    ):
        best = np.argsort(-values, kind="stable")[:4].tolist()
        top = await soon(one.fleet.ask(m.ReadStatistics(metric=metric, k=4)))
        assert [count.feature_idx for count in top.features] == best, metric


async def test_named_features_are_merged_also_where_they_were_never_active(scene: Made) -> None:
    tables = sparse(50, 1), sparse(60, 2)
    one, _ = await observed(scene, *tables)
    made = await soon(one.fleet.ask(m.ReadStatistics(features=[FEATURES - 1, 2])))
    assert [count.feature_idx for count in made.features] == [2, FEATURES - 1]
    assert [count.count for count in made.features] == [110, 110]


async def test_what_a_replica_counted_is_kept_when_it_is_taken_away(scene: Made) -> None:
    tables = sparse(50, 1), sparse(60, 2)
    one, _ = await observed(scene, *tables)
    await one.fleet.drain("r1")
    await one.serving("r2")
    assert is_near(await soon(one.fleet.ask(m.ReadStatistics())), np.concatenate(tables))
    await one.fleet.ask(m.ResetStatistics())
    Counting(one.engine(1), tables[1])
    assert is_near(await soon(one.fleet.ask(m.ReadStatistics())), tables[1])


async def test_a_replica_that_ended_by_itself_takes_its_counts_with_it(scene: Made) -> None:
    tables = sparse(50, 1), sparse(60, 2)
    one, _ = await observed(scene, *tables)
    await one.kill(0)
    await one.serving("r1", "r2")
    assert is_near(await soon(one.fleet.ask(m.ReadStatistics())), tables[1])


async def test_a_refusal_of_every_engine_is_passed_on(scene: Made) -> None:
    one = await scene(2)
    for launcher in one.crew.launchers:
        launcher.fail("statistics", Refusal("INVALID_FEATURE_INDEX", "99"))
    with pytest.raises(Refusal, match="99"):
        await soon(one.fleet.ask(m.ReadStatistics(features=[99])))


async def test_one_replica_is_asked_what_all_answer_alike(scene: Made) -> None:
    one = await scene(2)
    assert (
        len((await soon(one.fleet.ask(m.Explore(key=KEY, features=[1], nearest=2)))).nearest) == 2
    )
    assert (await soon(one.fleet.ask(m.Inspect(source=SOURCE)))).claims.d_sae == FEATURES
    asked = [launcher.log for launcher in one.crew.launchers]
    assert sum(log.count("explore") + log.count("inspect") for log in asked) == 2


async def test_memory_of_cards_is_summed_and_reserves_are_the_largest(scene: Made) -> None:
    one = await scene(3)
    one.engine(0).figures = {"cuda:0": (10, 20)}
    one.engine(1).figures = {"cuda:0": (1, 2), "cuda:1": (3, 4)}
    one.engine(2).figures = {"cuda:0": (500, 600)}
    one.engine(2).node = "elsewhere"
    one.engine(1).reserves = (3, 1)
    made = await soon(one.fleet.ask(m.Measure()))
    assert made.devices == {"cuda:0": (11, 22), "cuda:1": (3, 4)}
    assert (made.kv_reserve >> 20, made.working >> 20) == (3, 1)


def test_contexts_are_merged_by_their_values() -> None:
    def context(label: str, value: float) -> m.FeatureContext:
        return m.FeatureContext(label, 0, 1, value, m.Window())

    answers = [
        m.Contexts(1, 5, [context("a", 9.0), context("b", 1.0)]),
        m.Contexts(1, 2, [context("c", -4.0), context("d", 2.0)]),
    ]
    made = merging.contexts(answers, 3)
    assert made.kept == 7
    assert [one.label for one in made.contexts] == ["a", "c", "d"]


async def test_requests_of_a_replica_that_ends_by_itself_are_told_as_lost(scene: Made) -> None:
    """Only completions that were monitored count, and none of a replica that was taken away."""
    one = await scene(2)
    await one.fleet.change(attached)

    async def lost() -> int:
        return (await soon(one.fleet.ask(m.ReadStatistics()))).lost_requests

    await one.served_by(0)
    await one.fleet.change(m.setting(monitored=m.Monitored(KEY)))
    Counting(one.engine(0), sparse(3, seed=1))
    Counting(one.engine(1), sparse(3, seed=2))
    await one.served_by(1)
    await one.served_by(0)
    assert await lost() == 0
    await one.kill(0)
    await one.serving("r1", "r2")
    Counting(one.engine(2), sparse(3, seed=2))
    assert await lost() == 1
    await one.fleet.drain("r2")
    await one.serving("r1")
    assert await lost() == 1
    await one.fleet.ask(m.ResetStatistics())
    assert await lost() == 0
