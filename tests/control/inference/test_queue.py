"""Slots, the waiting room, and the estimate of the wait."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from steerserve.control.inference.queue import Queue
from steerserve.errors import Refusal
from steerserve.rules.inference.queue import RECENT_SECONDS
from tests.refusals import refused
from tests.waiting import Clock, soon, until


class Held:
    """A request that holds its slot until `leave`."""

    def __init__(self, queue: Queue, client: str = "", rows: int = 1) -> None:
        self.has_slot = False
        self._leave = asyncio.Event()
        self.task = asyncio.create_task(self._run(queue, client, rows))

    async def _run(self, queue: Queue, client: str, rows: int) -> None:
        async with queue.room(client, rows) as place, queue.slot(place):
            self.has_slot = True
            await self._leave.wait()

    async def leave(self) -> None:
        self._leave.set()
        await soon(self.task)

    async def cancel(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def measured(queue: Queue, clock: Clock, durations: list[float]) -> None:
    """Let requests hold a slot for these durations."""
    for duration in durations:
        async with queue.room() as place, queue.slot(place):
            clock.now += duration


@pytest.mark.shows("queue-block.8", "queue-block.9")
async def test_no_more_requests_hold_a_slot_than_there_are_slots() -> None:
    queue = Queue(2, 5, 50)
    requests = [Held(queue) for _ in range(4)]
    await until(lambda: queue.counts().pending == 4)
    counts = queue.counts()
    assert (counts.holding, counts.waiting) == (2, 2)
    assert [request.has_slot for request in requests] == [True, True, False, False]
    for request in requests:
        await request.leave()
    assert (queue.counts().pending, queue.counts().holding) == (0, 0)


@pytest.mark.shows("overview.12")
async def test_first_come_first_served() -> None:
    queue = Queue(1, 5, 50)
    requests = [Held(queue) for _ in range(4)]
    await until(lambda: queue.counts().pending == 4)
    for index, request in enumerate(requests):
        await until(lambda request=request: request.has_slot)
        assert [r.has_slot for r in requests].count(True) == index + 1
        await request.leave()


async def test_the_room_is_bounded_and_full_is_refused() -> None:
    queue = Queue(1, 2, 50)
    requests = [Held(queue) for _ in range(3)]
    await until(lambda: queue.counts().pending == 3)
    with pytest.raises(Refusal) as refused:
        async with queue.room():
            raise AssertionError("there is no place")
    assert refused.value.code == "QUEUE_FULL"
    assert refused.value.details == {"queue_pending": 3, "estimated_wait_seconds": None}
    assert queue.counts().pending == 3
    await requests[0].leave()
    async with queue.room():
        assert queue.counts().pending == 3
    for request in requests[1:]:
        await request.leave()


async def test_without_a_waiting_room_only_the_slots_admit() -> None:
    queue = Queue(1, 0, 50)
    async with queue.room() as place, queue.slot(place):
        with pytest.raises(Refusal):
            await queue.room().__aenter__()
    async with queue.room():
        assert queue.counts().pending == 1


@pytest.mark.shows("retry-after.2")
async def test_a_full_queue_tells_the_estimate_in_whole_seconds_rounded_up() -> None:
    clock = Clock()
    queue = Queue(1, 0, 50, clock)
    await measured(queue, clock, [2.1, 2.1, 2.1])
    async with queue.room():
        refusal = await refused(queue.room().__aenter__())
    assert refusal.details["estimated_wait_seconds"] == 3


@pytest.mark.shows("limits.23 queue-block.11 queue-block.13 queue-block.14 queue-block.15")
@pytest.mark.parametrize(
    ("durations", "pending", "slots", "estimate"),
    [
        ([], 1, 1, None),
        ([5.0, 5.0], 1, 1, None),
        ([5.0, 5.0, 5.0], 0, 1, 0.0),
        ([1.0, 2.0, 30.0], 1, 1, 2.0),
        ([1.0, 2.0, 30.0], 3, 1, 6.0),
        ([1.0, 2.0, 30.0], 3, 2, 3.0),
        ([1.0, 3.0, 5.0, 30.0], 2, 4, 2.0),
        ([100.0, 100.0, 100.0, 1.0, 1.0, 1.0, 1.0, 1.0], 2, 1, 2.0),
    ],
)
async def test_the_estimate_is_the_median_of_the_last_durations_times_those_before_over_the_slots(
    durations: list[float], pending: int, slots: int, estimate: float | None
) -> None:
    clock = Clock()
    queue = Queue(slots, 10, 5, clock)
    await measured(queue, clock, durations)
    async with AsyncExitStack() as stack:
        for _ in range(pending):
            await stack.enter_async_context(queue.room())
        assert queue.counts().estimated_wait_seconds == estimate


@pytest.mark.shows("queue-block.11", "queue-block.13")
async def test_those_who_hold_a_slot_count_for_the_estimate_as_those_who_wait() -> None:
    clock = Clock()
    queue = Queue(2, 10, 50, clock)
    await measured(queue, clock, [4.0, 4.0, 4.0])
    requests = [Held(queue) for _ in range(3)]
    await until(lambda: queue.counts().pending == 3)
    assert (queue.counts().holding, queue.counts().waiting) == (2, 1)
    assert queue.counts().estimated_wait_seconds == 6.0
    for request in requests:
        await request.leave()


async def test_a_cancelled_waiter_frees_its_place() -> None:
    queue = Queue(1, 1, 50)
    first, waiter = Held(queue), Held(queue)
    await until(lambda: queue.counts().pending == 2)
    await waiter.cancel()
    assert queue.counts().pending == 1
    follower = Held(queue)
    await until(lambda: queue.counts().pending == 2)
    await first.leave()
    await until(lambda: follower.has_slot)
    await follower.leave()


async def test_a_waiter_cancelled_as_its_slot_comes_free_hands_the_slot_on() -> None:
    queue = Queue(1, 5, 50)
    first, cancelled, follower = Held(queue), Held(queue), Held(queue)
    await until(lambda: queue.counts().pending == 3)
    first._leave.set()
    await first.task
    await cancelled.cancel()
    await until(lambda: follower.has_slot)
    await follower.leave()
    assert queue.counts().holding == 0


async def test_a_request_that_fails_gives_its_slot_back() -> None:
    queue = Queue(1, 0, 50)
    with pytest.raises(ZeroDivisionError):
        async with queue.room() as place, queue.slot(place):
            raise ZeroDivisionError
    assert (queue.counts().pending, queue.counts().holding) == (0, 0)
    async with queue.room() as place, queue.slot(place):
        assert queue.counts().holding == 1


# ---------------------------------------------------------------------- slots over several replicas


def holders(requests: list[Held]) -> list[bool]:
    return [request.has_slot for request in requests]


async def test_the_slots_are_those_of_all_replicas_that_serve() -> None:
    queue = Queue(2, 9, 50)
    queue.scale(3)
    requests = [Held(queue) for _ in range(8)]
    await until(lambda: queue.counts().pending == 8)
    assert (queue.counts().holding, queue.counts().max_concurrent) == (6, 6)
    for request in requests:
        await request.leave()


async def test_requests_that_wait_get_the_slots_of_a_new_replica_in_the_order_of_their_arrival() -> (
    None
):
    queue = Queue(1, 9, 50)
    requests = [Held(queue) for _ in range(4)]
    await until(lambda: queue.counts().pending == 4)
    queue.scale(3)
    await until(lambda: sum(holders(requests)) == 3)
    assert holders(requests) == [True, True, True, False]
    for request in requests:
        await request.leave()


async def test_requests_keep_their_slots_when_a_replica_goes_and_nobody_takes_more() -> None:
    queue = Queue(1, 9, 50)
    queue.scale(3)
    requests = [Held(queue) for _ in range(5)]
    await until(lambda: sum(holders(requests)) == 3)
    queue.scale(1)
    assert (queue.counts().holding, queue.counts().max_concurrent) == (3, 1)
    await requests[0].leave()
    await requests[1].leave()
    assert (queue.counts().holding, holders(requests)[3:]) == (1, [False, False])
    await requests[2].leave()
    await until(lambda: requests[3].has_slot)
    await requests[3].leave()
    await requests[4].leave()


async def test_without_a_replica_that_serves_the_slots_of_one_remain() -> None:
    queue = Queue(2, 9, 50)
    queue.scale(4)
    queue.scale(0)
    assert queue.counts().max_concurrent == 2


async def test_room_and_estimate_count_over_all_replicas() -> None:
    clock = Clock()
    queue = Queue(1, 1, 50, clock)
    await measured(queue, clock, [6.0, 6.0, 6.0])
    queue.scale(3)
    async with AsyncExitStack() as stack:
        for _ in range(4):
            await stack.enter_async_context(queue.room())
        assert queue.counts().estimated_wait_seconds == 8.0
        refusal = await refused(queue.room().__aenter__())
    assert refusal.details == {"queue_pending": 4, "estimated_wait_seconds": 8}


async def test_a_waiter_that_is_cancelled_takes_no_slot_of_a_new_replica() -> None:
    queue = Queue(1, 9, 50)
    first, cancelled, follower = Held(queue), Held(queue), Held(queue)
    await until(lambda: queue.counts().pending == 3)
    cancelled.task.cancel()
    queue.scale(2)
    await until(lambda: follower.has_slot)
    await asyncio.gather(cancelled.task, return_exceptions=True)
    await first.leave()
    await follower.leave()
    assert (queue.counts().pending, queue.counts().holding) == (0, 0)


# ---------------------------------------------------------------------- clients beside each other


async def test_the_next_slot_is_that_of_the_client_with_fewer_running_rows() -> None:
    queue = Queue(2, 9, 50)
    greedy = [Held(queue, "greedy", rows=16) for _ in range(4)]
    await until(lambda: queue.counts().pending == 4)
    polite = [Held(queue, "polite") for _ in range(2)]
    await until(lambda: queue.counts().pending == 6)
    await greedy[0].leave()
    for request in polite:
        await until(lambda request=request: request.has_slot)
        assert holders(greedy[2:]) == [False, False]
        await request.leave()
    for request in greedy[1:]:
        await request.leave()
    assert (queue.counts().pending, queue.counts().holding) == (0, 0)


async def test_the_last_slot_waits_for_a_client_that_was_here_lately() -> None:
    clock = Clock()
    queue = Queue(2, 9, 50, clock)
    first = Held(queue, "polite")
    await until(lambda: first.has_slot)
    await first.leave()
    greedy = [Held(queue, "greedy", rows=16) for _ in range(4)]
    await until(lambda: queue.counts().pending == 4)
    assert holders(greedy) == [True, False, False, False]
    again = Held(queue, "polite")
    await until(lambda: again.has_slot)
    await again.leave()
    assert holders(greedy) == [True, False, False, False]
    clock.now = RECENT_SECONDS
    await greedy[0].leave()
    await until(lambda: holders(greedy) == [True, True, True, False])
    for request in greedy[1:]:
        await request.leave()


async def test_a_full_queue_takes_a_polite_client_in_place_of_the_newest_greedy_request() -> None:
    clock = Clock()
    queue = Queue(1, 2, 50, clock)
    await measured(queue, clock, [2.1, 2.1, 2.1])
    greedy = [Held(queue, "greedy") for _ in range(3)]
    await until(lambda: queue.counts().pending == 3)
    polite = Held(queue, "polite")
    refusal = await refused(soon(greedy[2].task))
    assert refusal.code == "QUEUE_FULL"
    assert refusal.details == {"queue_pending": 3, "estimated_wait_seconds": 7}
    assert queue.counts().pending == 3
    with pytest.raises(Refusal):
        await soon(Held(queue, "greedy").task)
    await greedy[0].leave()
    await until(lambda: polite.has_slot)
    await polite.leave()
    await until(lambda: greedy[1].has_slot)
    await greedy[1].leave()
    assert (queue.counts().pending, queue.counts().holding) == (0, 0)


async def test_a_request_that_waits_for_its_model_gives_up_its_place_at_once() -> None:
    queue = Queue(1, 1, 50)
    loading = asyncio.Event()
    left = []

    async def wait_for_the_model() -> None:
        async with queue.room("greedy"):
            try:
                await loading.wait()
            finally:
                left.append(queue.counts().pending)

    waiting = [asyncio.create_task(wait_for_the_model()) for _ in range(2)]
    await until(lambda: queue.counts().pending == 2)
    async with queue.room("polite"):
        assert queue.counts().pending == 2
        with pytest.raises(Refusal):
            await soon(waiting[1])
        assert left == [2]
        loading.set()
        await soon(waiting[0])
    assert queue.counts().pending == 0


async def test_a_client_that_leaves_as_its_place_is_given_away_is_no_refusal() -> None:
    queue = Queue(1, 1, 50)
    greedy = [Held(queue, "greedy") for _ in range(2)]
    await until(lambda: queue.counts().pending == 2)
    async with queue.room("polite"):
        greedy[1].task.cancel()
        (gone,) = await asyncio.gather(greedy[1].task, return_exceptions=True)
        assert isinstance(gone, asyncio.CancelledError)
        await greedy[0].leave()
    assert (queue.counts().pending, queue.counts().holding) == (0, 0)


class HeldPart(Held):
    """A part of a job that holds its slot until `leave`, or until it is refused where it yields."""

    def __init__(self, queue: Queue, *, yields: bool = False) -> None:
        self._yields = yields
        super().__init__(queue)

    async def _run(self, queue: Queue, *_: object) -> None:
        async with queue.spare(yields=self._yields):
            self.has_slot = True
            await self._leave.wait()


async def test_free_slots_go_to_requests_before_parts_of_jobs() -> None:
    queue = Queue(1, 5, 50)
    first = HeldPart(queue)
    await until(lambda: first.has_slot)
    request, beside, second = Held(queue), HeldPart(queue), HeldPart(queue)
    await until(lambda: beside.has_slot)
    assert (request.has_slot, second.has_slot) == (False, False)
    await first.leave()
    await until(lambda: request.has_slot)
    assert not second.has_slot
    await request.leave()
    await until(lambda: second.has_slot)
    await beside.leave()
    await second.leave()
    assert (queue.counts().pending, queue.counts().holding) == (0, 0)


async def test_one_part_at_a_time_runs_beside_requests_that_never_leave_a_slot() -> None:
    queue = Queue(1, 5, 50)
    requests = [Held(queue), Held(queue)]
    await until(lambda: requests[0].has_slot)
    parts = [HeldPart(queue) for _ in range(3)]
    for part, later in ((parts[0], parts[1:]), (parts[1], parts[2:])):
        await until(lambda part=part: part.has_slot)
        assert not any(other.has_slot for other in later)
        await part.leave()
    await until(lambda: parts[2].has_slot)
    # a part beside the slots takes none from a request
    await requests[0].leave()
    await until(lambda: requests[1].has_slot)
    await parts[2].leave()
    await requests[1].leave()


@pytest.mark.parametrize("comes_first", ["slot", "cancel"])
async def test_a_cancelled_part_gives_its_slot_back(comes_first: str) -> None:
    queue = Queue(1, 5, 50)
    first = HeldPart(queue)
    await until(lambda: first.has_slot)
    beside = HeldPart(queue)
    await until(lambda: beside.has_slot)
    second, third = HeldPart(queue), HeldPart(queue)
    await asyncio.sleep(0)
    if comes_first == "slot":
        first.task.cancel()
        await asyncio.sleep(0)  # the second part has the slot, and has not run yet
        second.task.cancel()
    else:
        second.task.cancel()
        first.task.cancel()
    await until(lambda: third.has_slot)
    await third.leave()
    await beside.leave()
    assert second.has_slot is False
    request = Held(queue)
    await until(lambda: request.has_slot)
    await request.leave()


async def test_a_request_gets_the_slot_of_the_newest_part_that_yields() -> None:
    queue = Queue(2, 5, 50)
    parts = []
    for _ in range(2):
        parts.append(part := HeldPart(queue, yields=True))
        await until(lambda part=part: part.has_slot)
    request = Held(queue)
    await until(lambda: request.has_slot)
    assert (await refused(parts[1].task)).code == "QUEUE_FULL"
    # the slot that the request gives back is the next part's
    after = HeldPart(queue, yields=True)
    await request.leave()
    await until(lambda: after.has_slot)
    assert not parts[0].task.done()
    queue.revoke()
    for part in (parts[0], after):
        assert (await refused(part.task)).code == "QUEUE_FULL"


async def test_a_part_that_does_not_yield_keeps_its_slot() -> None:
    queue = Queue(1, 5, 50)
    async with queue.spare():
        request = Held(queue)
        queue.revoke()
        await asyncio.sleep(0)
        assert not request.has_slot
    await until(lambda: request.has_slot)
    await request.leave()
