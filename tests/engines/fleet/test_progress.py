"""How far the loads of replicas are, and the files that their nodes bring."""

from __future__ import annotations

import asyncio
from typing import Any

from steerserve import messages as m
from steerserve.engines.fleet.progress import LoadsProgress, extend
from steerserve.errors import Refusal
from steerserve.messages.engine import Engine
from tests.engines.fleet.scripted import Scene, soon
from tests.refusals import refused

LACKS = Refusal("INVALID_LOCAL_PATH", "node b does not have the files", node="b")


def loading(percent: float) -> m.Progress:
    return m.Progress(1, m.LOADING_WEIGHTS, percent)


def fetching(percent: float) -> m.Progress:
    return m.Progress(1, m.FETCHING_FILES, percent)


async def test_only_the_time_of_a_fetch_is_given_back_to_a_load() -> None:
    async with asyncio.timeout(5.0) as limit:
        before = limit.when() or 0.0
        extend(limit, loading(10.0), 60.0)
        assert limit.when() == before
        extend(limit, fetching(10.0), 60.0)
        assert (limit.when() or 0.0) > before + 30.0
        await asyncio.sleep(0)


def test_a_fetch_is_told_at_once_and_a_load_once_all_have_begun() -> None:
    told: list[m.Progress] = []
    progress = LoadsProgress(told.append, 2)
    one, other = progress.report_for("r1"), progress.report_for("r2")
    one(loading(50.0))
    other(fetching(20.0))
    other(fetching(30.0))
    one(loading(90.0))
    other(loading(10.0))
    assert told == [fetching(20.0), fetching(30.0), loading(90.0), loading(10.0)]


def test_the_fetch_that_is_least_far_is_told() -> None:
    told: list[m.Progress] = []
    progress = LoadsProgress(told.append, 2)
    progress.report_for("r1")(fetching(60.0))
    progress.report_for("r2")(fetching(20.0))
    assert told == [fetching(60.0), fetching(20.0)]


def _bringing(engine: Engine, brought: list[str], refusal: Refusal | None) -> None:
    async def bring(path: str, *_: Any) -> None:
        if refusal is not None:
            raise refusal
        brought.append(path)

    engine.bring = bring  # type: ignore[method-assign]


async def test_files_that_one_node_cannot_have_are_refused_and_all_replicas_serve_on() -> None:
    one = Scene(2)
    await one.load()
    brought: list[str] = []
    _bringing(one.engine(0), brought, None)
    _bringing(one.engine(1), brought, LACKS)
    refusal = await refused(soon(one.fleet.bring("/models/sae")))
    assert refusal is LACKS
    assert brought == ["/models/sae"]
    assert set(one.states().values()) == {"serving"}
    await one.fleet.stop()
