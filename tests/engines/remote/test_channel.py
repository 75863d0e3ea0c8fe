"""One channel between two nodes: order, room, beats, and what a wrong peer brings about."""

from __future__ import annotations

import asyncio
import random
import socket

import pytest

from steerserve.engines.remote import channel
from steerserve.engines.remote.channel import HEADER, WINDOW, Channel, PartKind
from tests.engines.remote.ends import KeptEnd, joined
from tests.waiting import until

BIG = 16 << 20


def of(end: KeptEnd) -> Channel:
    assert end.channel is not None
    return end.channel


def beats(end: KeptEnd) -> int:
    return sum(kind is PartKind.BEAT for kind, _ in end.words)


async def test_bytes_arrive_whole_and_in_order_in_both_directions() -> None:
    chance = random.Random(3)
    sizes = [
        0,
        1,
        5,
        channel.LARGEST,
        channel.LARGEST + 1,
        3 * WINDOW,
        *chance.sample(range(1 << 17), 60),
    ]
    parts = [chance.randbytes(size) for size in sizes]
    async with joined() as (ours, theirs):

        async def send(end: KeptEnd) -> None:
            for part in parts:
                of(end).write(part)
                await of(end).drain()

        await asyncio.gather(send(ours), send(theirs))
        whole = b"".join(parts)
        await until(lambda: len(ours.data) == len(theirs.data) == len(whole))
        assert bytes(ours.data) == bytes(theirs.data) == whole


async def test_a_reader_that_takes_nothing_holds_up_the_sender_and_no_beat() -> None:
    """No end keeps more than the window, and the other direction goes on."""
    async with joined() as (ours, theirs):
        theirs.is_slow = True
        of(ours).write(bytes(BIG))
        sending = asyncio.create_task(of(ours).drain())
        await until(lambda: len(theirs.data) == WINDOW)
        seen = beats(theirs), beats(ours)
        await until(lambda: beats(theirs) > seen[0] + 5 and beats(ours) > seen[1] + 5)
        assert len(theirs.data) == WINDOW
        assert not sending.done()
        of(theirs).write(b"an event")
        await until(lambda: ours.data == b"an event")
        theirs.is_slow = False
        of(theirs).took(WINDOW)
        await sending
        await until(lambda: len(theirs.data) == BIG)


async def test_beats_do_not_wait_for_the_rest_of_a_large_frame() -> None:
    """A large frame takes a second on this network."""
    async with joined(pace=BIG) as (ours, theirs):
        of(ours).write(bytes(BIG))
        await until(lambda: len(theirs.data) > WINDOW)
        before = beats(theirs)
        await until(lambda: beats(theirs) > before + 5)
        assert len(theirs.data) < BIG
        await until(lambda: len(theirs.data) == BIG)


async def test_tokens_are_sent_at_once() -> None:
    async with joined() as ends:
        for end in ends:
            transport = of(end)._transport
            assert transport is not None
            link = transport.get_extra_info("socket")
            assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize(
    "sent",
    [
        HEADER.pack(9, 0),
        HEADER.pack(PartKind.CREDIT, 1) + b"x",
        (HEADER.pack(PartKind.DATA, 1 << 15) + bytes(1 << 15)) * 33,
    ],
    ids=["unknown", "credit", "beyond the window"],
)
async def test_a_peer_that_breaks_the_rules_is_cut_off(sent: bytes) -> None:
    async with joined() as (ours, theirs):
        theirs.is_slow = True
        transport = of(ours)._transport
        assert transport is not None
        transport.write(sent)
        assert "no engine link" in await asyncio.wait_for(asyncio.shield(of(theirs).lost), 60)
        assert len(theirs.data) <= WINDOW


async def test_a_writer_that_waits_is_told_of_the_end() -> None:
    async with joined() as (ours, theirs):
        theirs.is_slow = True
        of(ours).write(bytes(BIG))
        sending = asyncio.create_task(of(ours).drain())
        await until(lambda: len(theirs.data) == WINDOW)
        of(theirs).abort("the test ends the connection")
        with pytest.raises(ConnectionError):
            await sending
