"""Commands that wait for an engine: answered, refused by a stall, taken back."""

from __future__ import annotations

import asyncio

import pytest

from steerserve import messages as m
from steerserve.engines.checkpoint.asks import Asks
from steerserve.errors import Refusal
from tests.waiting import until

STALLED = Refusal("ENGINE_UNAVAILABLE", "it stands still")
STEER = m.Apply(1, m.State(steering=m.Steering(1, True, {})))


class Sent(Asks):
    """Keeps the commands that were sent."""

    def __init__(self) -> None:
        self.sent: list[m.Command] = []
        super().__init__(self.sent.append)

    async def begun(self, command: m.Command) -> asyncio.Task[m.Event]:
        before = len(self.sent)
        task = asyncio.create_task(self.ask(command))
        await until(lambda: len(self.sent) > before or task.done())
        return task


async def refused(task: asyncio.Task[m.Event]) -> str:
    with pytest.raises(Refusal) as error:
        await task
    return error.value.message


async def test_a_command_gets_its_answer_or_its_refusal() -> None:
    asks = Sent()
    first, second = await asks.begun(STEER), await asks.begun(m.Measure(2))
    assert asks.deliver_event(m.Refused(2, "INTERNAL_ERROR", "no"))
    assert asks.deliver_event(m.Applied(1, {}))
    assert await first == m.Applied(1, {})
    assert await refused(second) == "no"
    assert asks.sent == [STEER, m.Measure(2)]


async def test_a_stall_refuses_and_takes_back_every_command_but_the_load() -> None:
    asks = Sent()
    steering = await asks.begun(STEER)
    loading = await asks.begun(
        m.Load(
            id=2,
            path="",
            quantization="FP16",
            trust_remote_code=False,
            threads=1,
            kv_cache_mb=0,
            min_context=1,
        )
    )
    asks.stall(STALLED)
    assert await refused(steering) == "it stands still"
    assert asks.sent[-1] == m.Cancel(1)
    assert not loading.done()
    asks.end(Refusal("ENGINE_UNAVAILABLE", "gone"))
    assert await refused(loading) == "gone"


async def test_an_edit_that_was_carried_out_after_it_was_taken_back_is_told() -> None:
    asks = Sent()
    for answer, is_known in (
        (m.Refused(1, "ENGINE_UNAVAILABLE", "dropped"), True),
        (m.Applied(1, {}), False),
    ):
        steering = await asks.begun(STEER)
        steering.cancel()
        await asyncio.wait([steering])
        assert asks.sent[-1] == m.Cancel(1)
        assert asks.deliver_event(answer) is is_known
        assert asks.deliver_event(answer)  # it is told once


async def test_a_question_that_is_answered_after_it_was_taken_back_changes_nothing() -> None:
    asks = Sent()
    measuring = await asks.begun(m.Measure(1))
    measuring.cancel()
    await asyncio.wait([measuring])
    assert asks.deliver_event(m.Measured(1))
