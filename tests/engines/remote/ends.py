"""Two ends of a channel in this process, over a real connection, without an engine."""

from __future__ import annotations

import asyncio
import dataclasses
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from steerserve import __version__
from steerserve.engines.remote import certificates
from steerserve.engines.remote.certificates import Identity
from steerserve.engines.remote.channel import Channel, PartKind, Patience
from steerserve.engines.remote.facts import Contact, NodeFacts
from steerserve.engines.remote.listener import PeerListener, listen
from tests.engines.remote.proxy import between

FACTS = NodeFacts("node-b", "127.0.0.1", __version__, "3.11", None, None, "cpu", 1, 1, 1)
QUICK = Patience(beat=0.05, lost=5.0, contact=30.0)


class KeptEnd:
    """Keeps what comes. Satisfies `ChannelEnd`. With `is_slow`, gives no room back."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.words: list[tuple[PartKind, bytes]] = []
        self.is_slow = False
        self.channel: Channel | None = None

    def take_data(self, data: bytes) -> None:
        self.data += data
        if not self.is_slow and self.channel is not None:
            self.channel.took(len(data))

    def take_word(self, kind: PartKind, payload: bytes) -> None:
        self.words.append((kind, payload))

    def take_loss(self) -> None:
        pass


@dataclasses.dataclass(slots=True)
class Listening:
    """A host without an engine, which waits for its peer."""

    contact: Contact
    peer: Identity
    end: KeptEnd
    admitting: asyncio.Task[Channel]

    async def connect(self, identity: Identity, end: KeptEnd | None = None) -> Channel:
        """A connection whose TLS handshake has worked for the end that connects."""
        return await dial(self.contact, identity.as_client(self.contact.certificate), end)


async def dial(contact: Contact, context: ssl.SSLContext, end: KeptEnd | None = None) -> Channel:
    taker = end or KeptEnd()
    taker.channel = Channel(taker, bytes, QUICK, lambda _: True)
    await asyncio.get_running_loop().create_connection(
        partial(_the, taker.channel), contact.host, contact.port, ssl=context
    )
    return taker.channel


def _the(channel: Channel) -> Channel:
    return channel


@asynccontextmanager
async def listening(patience: Patience = QUICK) -> AsyncIterator[Listening]:
    host, peer = certificates.new_identity(), certificates.new_identity()
    listener = await listen("127.0.0.1")
    end = KeptEnd()
    contact = Contact("127.0.0.1", listener.getsockname()[1], host.certificate, None, FACTS)
    peer_listener = PeerListener(
        listener,
        host.as_server(peer.certificate),
        peer.certificate,
        partial(Channel, end, bytes, patience),
    )
    admitting = asyncio.create_task(peer_listener.admit())
    try:
        yield Listening(contact, peer, end, admitting)
    finally:
        admitting.cancel()
        await asyncio.wait([admitting])
        if not admitting.cancelled():
            admitting.result().abort("the test has ended")


@asynccontextmanager
async def joined(pace: int = 0) -> AsyncIterator[tuple[KeptEnd, KeptEnd]]:
    """Both ends of a channel: the one that connected, and the host. The network has a pace in bytes per second, or is
    as fast as it can be."""
    async with listening() as host, between(host.contact) as (contact, proxy):
        proxy.pace = pace
        end = KeptEnd()
        host.contact = contact if pace else host.contact
        ours = await host.connect(host.peer, end)
        host.end.channel = await host.admitting
        yield end, host.end
        ours.abort("the test has ended")
        await asyncio.wait([ours.lost, host.end.channel.lost])
