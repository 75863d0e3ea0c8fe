"""The mailbox between the task that reads an engine and the task that answers a client."""

from __future__ import annotations

import asyncio

import pytest

from steerserve.messages.mailbox import Mailbox


async def test_items_are_taken_in_their_order() -> None:
    box = Mailbox[int]()
    for item in range(3):
        box.put(item)
    assert [await box.next_item() for _ in range(3)] == [0, 1, 2]


async def test_a_reader_that_waits_gets_what_is_put_later() -> None:
    box = Mailbox[int]()
    reading = asyncio.create_task(box.next_item())
    await asyncio.sleep(0)
    box.put(1)
    box.put(2)
    assert await reading == 1
    assert await box.next_item() == 2


async def test_a_wait_that_is_cancelled_takes_nothing() -> None:
    box = Mailbox[int]()
    reading = asyncio.create_task(box.next_item())
    await asyncio.sleep(0)
    # the item comes in the same turn of the event loop as the cancellation
    box.put(1)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await box.next_item() == 1
