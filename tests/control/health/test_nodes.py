"""The survey of the nodes: one at a time, not too often, and never in the way of the other parts of an answer."""

from __future__ import annotations

import asyncio

import pytest

from steerserve.control.health import nodes as readings
from steerserve.control.health.nodes import NodeReadings
from steerserve.errors import Refusal
from tests.control.residency.test_fitting_nodes import facts, node
from tests.nodes import NodeSeen
from tests.waiting import plain, soon, until


class Survey:
    """A cluster whose answer waits while `open` is not set."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.asked = 0
        self.error: Exception | None = None
        self.now = 0.0

    async def __call__(self) -> list[NodeSeen]:
        self.asked += 1
        await self.open.wait()
        if self.error is not None:
            raise self.error
        silent = NodeSeen("b", "10.0.0.2", {}, error="no answer within 20 s")
        return [node(facts("a", 3000)), silent]


async def test_every_node_is_shown_with_its_cards_its_memory_and_its_versions() -> None:
    seen, reason = await NodeReadings(Survey()).reading()
    first, second = plain(seen)
    assert reason is None
    assert (first["node"], first["address"], first["python"]) == ("a", "10.0.0.1", "3.11.9")
    assert first["host"] == {"total_mb": 20_000, "available_mb": 10_000}
    assert [(card["name"], card["free_mb"]) for card in first["cards"]] == [("card 0", 3000)]
    assert (second["node"], second["reason"]) == ("b", "no answer within 20 s")
    assert second["host"] is None
    assert not second["cards"]


async def test_those_who_ask_at_once_share_a_survey_that_is_good_for_a_while() -> None:
    survey = Survey()
    nodes = NodeReadings(survey, lambda: survey.now)
    await soon(asyncio.gather(*(nodes.reading() for _ in range(5))))
    survey.now = readings.AGE
    await nodes.reading()
    assert survey.asked == 1
    survey.now += 1.0
    await nodes.reading()
    assert survey.asked == 2


async def test_nodes_that_do_not_answer_in_time_are_missing_and_the_survey_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(readings, "PATIENCE", 0.01)
    survey = Survey()
    survey.open.clear()
    nodes = NodeReadings(survey)
    assert await nodes.reading() == ([], "the nodes have not answered for 0.01 s")
    survey.open.set()
    await until(lambda: nodes._under_way is None)
    seen, reason = await nodes.reading()
    assert ([each.node for each in seen], reason, survey.asked) == (["a", "b"], None, 1)


async def test_a_cluster_that_cannot_be_reached_is_told_and_asked_again() -> None:
    survey = Survey()
    nodes = NodeReadings(survey)
    survey.error = Refusal("ENGINE_UNAVAILABLE", "the cluster cannot be reached")
    assert await nodes.reading() == ([], "the cluster cannot be reached")
    survey.error = OSError("secret")
    assert await nodes.reading() == ([], "the nodes cannot be read: OSError")
    survey.error = None
    seen, reason = await nodes.reading()
    assert (len(seen), reason) == (2, None)


async def test_a_survey_ends_with_the_service() -> None:
    survey = Survey()
    survey.open.clear()
    nodes = NodeReadings(survey)
    asked = asyncio.ensure_future(nodes.reading())
    await until(lambda: survey.asked)
    await soon(nodes.close())
    await soon(asked)
