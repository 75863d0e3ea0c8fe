"""Who is let in to a host: the one peer with the expected certificate, and nobody else."""

from __future__ import annotations

import asyncio
import copy
import pickle
import socket
import ssl

import pytest

from steerserve.engines.remote import certificates, listener
from steerserve.engines.remote.channel import Channel
from steerserve.engines.remote.link import connect
from steerserve.errors import Refusal
from tests.engines.remote.ends import Listening, dial, listening
from tests.waiting import until


async def is_let_in(host: Listening) -> bool:
    """Whether the expected peer is let in."""
    channel = await host.connect(host.peer)
    admitted = await asyncio.wait_for(host.admitting, 60)
    channel.abort("the test has ended")
    await asyncio.wait([admitted.lost])
    return admitted.lost.result() == "the connection to the other node closed"


async def refused(channel: Channel) -> None:
    """Wait until the host has turned a connection away."""
    await asyncio.wait_for(asyncio.shield(channel.lost), 60)


def without_certificate(host: Listening) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=host.contact.certificate)


async def test_a_peer_with_another_certificate_is_refused_and_takes_no_place() -> None:
    async with listening() as host:
        await refused(await host.connect(certificates.new_identity()))
        assert not host.admitting.done()
        assert await is_let_in(host)


async def test_a_peer_without_a_certificate_is_refused_and_takes_no_place() -> None:
    async with listening() as host:
        context = without_certificate(host)
        context.check_hostname = False
        await refused(await dial(host.contact, context))
        assert not host.admitting.done()
        assert await is_let_in(host)


async def test_an_older_protocol_is_refused() -> None:
    async with listening() as host:
        context = host.peer.as_client(host.contact.certificate)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(OSError):
            await dial(host.contact, context)
        assert await is_let_in(host)


async def test_connections_that_prove_nothing_do_not_keep_the_peer_out() -> None:
    async with listening() as host:
        place = (host.contact.host, host.contact.port)
        idle = [await asyncio.open_connection(*place) for _ in range(listener.HANDSHAKES + 5)]
        idle[-1][1].write(b"GET / HTTP/1.1\r\n\r\n")
        assert await idle[0][0].read() == b""  # the oldest made room
        assert await is_let_in(host)
        for reader, writer in idle:
            assert b"HTTP" not in await reader.read()
            writer.close()


async def test_a_second_peer_is_refused() -> None:
    async with listening() as host:
        first = await host.connect(host.peer)
        await host.admitting
        with pytest.raises(ConnectionError):
            await host.connect(host.peer)
        first.abort("the test has ended")


async def test_of_two_peers_at_once_one_is_let_in() -> None:
    async with listening() as host:
        came = await asyncio.gather(
            *[host.connect(host.peer) for _ in range(5)], return_exceptions=True
        )
        channels = [channel for channel in came if isinstance(channel, Channel)]
        await host.admitting
        await until(lambda: sum(not channel.lost.done() for channel in channels) == 1)
        for channel in channels:
            channel.abort("the test has ended")


async def test_a_host_with_another_certificate_is_refused() -> None:
    async with listening() as host, listening() as other:
        context = host.peer.as_client(other.contact.certificate)
        with pytest.raises(ssl.SSLError):
            await dial(host.contact, context)


async def test_a_link_to_a_host_that_lets_nobody_in_is_refused() -> None:
    async with listening() as host:
        with pytest.raises(Refusal, match="cannot be reached") as error:
            await connect(host.contact, certificates.new_identity())
        assert error.value.code == "ENGINE_UNAVAILABLE"
        assert not host.admitting.done()


@pytest.mark.parametrize("text", ["", "steerserve", "two"])
def test_only_the_text_of_one_certificate_is_trusted(text: str) -> None:
    identity = certificates.new_identity()
    peer = certificates.new_identity().certificate * 2 if text == "two" else text
    with pytest.raises(ValueError, match=r"\w"):
        identity.as_server(peer)


def test_a_key_stays_in_its_process_and_out_of_texts() -> None:
    identity = certificates.new_identity()
    assert "PRIVATE" not in repr(identity) + identity.certificate
    for leave in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError):
            leave(identity)


async def test_only_the_ports_of_the_range_are_listened_on_and_each_by_one_host() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    first = await listener.listen("127.0.0.1", range(free, free + 1))
    assert first.getsockname()[1] == free
    with pytest.raises(listener.NoPortIsFree) as refused:
        await listener.listen("127.0.0.1", range(free, free + 1))
    assert str(refused.value) == f"no port from {free} to {free} is free at 127.0.0.1"
    # a connection that came through the port does not keep the next host from it
    with socket.create_connection(("127.0.0.1", free)):
        accepted, _ = first.accept()
        first.close()
        second = await listener.listen("127.0.0.1", range(free, free + 1))
        assert second.getsockname()[1] == free
        second.close()
        accepted.close()
