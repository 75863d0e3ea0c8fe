"""The end of a link in the control plane: an engine on another node, as the client of an engine takes it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from steerserve import __version__
from steerserve.engines.checkpoint.process import FrameReader, FrameWriter
from steerserve.engines.remote.certificates import Identity, is_pinned
from steerserve.engines.remote.channel import PATIENCE, Channel, PartKind, Patience
from steerserve.engines.remote.facts import Contact
from steerserve.engines.remote.host import EXIT, LIFE
from steerserve.engines.remote.listener import HANDSHAKE_SECONDS, SHUTDOWN_SECONDS
from steerserve.errors import Refusal
from steerserve.messages import endings
from steerserve.rules.residency import heartbeat
from steerserve.rules.residency.heartbeat import Sign

CONNECT_SECONDS = 10.0
"""Seconds in which a host must have let its peer in."""

KILL_SECONDS = 2.0
"""Seconds in which a host must have ended an engine that is killed, until the connection is cut. The host then ends the
engine because its peer is gone."""

CUT_SECONDS = 2.0
"""Seconds without a beat after which a node counts as cut off."""


class RemoteProcess:
    """The process of an engine on another node. Satisfies `EngineProcess` and `ChannelEnd`.

    The process counts as ended when the connection has ended, because its host then ends it.
    """

    def __init__(self, contact: Contact, patience: Patience) -> None:
        self.contact = contact
        self.exitcode: int | None = None
        self.came = asyncio.Event()
        """Set when the host has let this end in, or the connection has ended."""
        self.channel = Channel(self, bytes, patience, self._is_expected)
        self.events = _Arrivals(self.channel)
        self.on_answer: Callable[[bytes | None], None] = lambda _: None
        """Called with each part of an answer of the host, and with None once the connection has ended."""
        self._life = (0, False)
        self._is_killed = False

    @property
    def pid(self) -> int | None:
        return self.contact.pid

    def kill(self) -> None:
        if not (self._is_killed or self.channel.is_closing()):
            self._is_killed = True
            self.channel.say(PartKind.KILL)
            why = f"the engine on {self.contact.facts.name} was given up"
            asyncio.get_running_loop().call_later(KILL_SECONDS, self.channel.abort, why)

    async def wait(self, seconds: float | None = None) -> None:
        await asyncio.wait([self.channel.lost], timeout=seconds)

    def sign(self) -> Sign:
        """The sign of the last beat. A node from which no beat comes is cut off."""
        word, is_stopped = self._life
        sign = heartbeat.sign(word, is_stopped=is_stopped)
        is_cut = self.channel.silent_seconds >= CUT_SECONDS
        return Sign(sign.activity, sign.count, is_stopped and not is_cut, is_cut=is_cut)

    def reason(self) -> str:
        where = f"on {self.contact.facts.name}"
        if self.exitcode is not None:
            return f"{endings.reason(self.exitcode)} {where}"
        why = self.channel.lost.result() if self.channel.lost.done() else "the engine is lost"
        return f"{why} {where}"

    # ------------------------------------------------------------- called by the channel

    def take_data(self, data: bytes) -> None:
        self.events.add(data)

    def take_word(self, kind: PartKind, payload: bytes) -> None:
        if kind is PartKind.BEAT:
            self._life = LIFE.unpack(payload)
            self.came.set()
        elif kind is PartKind.END:
            (self.exitcode,) = EXIT.unpack(payload)
            self.channel.close()
        elif kind is PartKind.ANSWER:
            self.on_answer(payload)

    def take_loss(self) -> None:
        self.came.set()
        self.events.end()
        self.on_answer(None)

    def _is_expected(self, transport: asyncio.BaseTransport) -> bool:
        return is_pinned(transport.get_extra_info("ssl_object"), self.contact.certificate)


async def connect(
    contact: Contact, identity: Identity, patience: Patience = PATIENCE
) -> tuple[RemoteProcess, FrameReader, FrameWriter]:
    """Become the peer of a host. The answer is like that of a start on this machine.

    Raises:
        Refusal: ENGINE_UNAVAILABLE when the host cannot be reached, is not the expected one, lets nobody in, or has
            another version of this package.
    """
    if contact.facts.steerserve != __version__:
        theirs = f"{contact.facts.name} has steerserve {contact.facts.steerserve}"
        raise Refusal("ENGINE_UNAVAILABLE", f"{theirs}, and this service is {__version__}")
    process = RemoteProcess(contact, patience)
    channel = process.channel
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await asyncio.get_running_loop().create_connection(
                lambda: channel,
                contact.host,
                contact.port,
                ssl=identity.as_client(contact.certificate),
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=SHUTDOWN_SECONDS,
            )
            await process.came.wait()
            if channel.lost.done():
                raise ConnectionResetError("the host let nobody in")
    except (OSError, ValueError) as error:
        channel.abort("the host could not be reached")
        cause = str(error) or f"no answer within {CONNECT_SECONDS:g} s"
        why = f"the engine on {contact.facts.name} cannot be reached: {cause}"
        raise Refusal("ENGINE_UNAVAILABLE", why) from None
    except BaseException:
        channel.abort("nobody waits for the engine any more")
        raise
    return process, process.events, channel


class _Arrivals:
    """The bytes that came and were not read yet. Satisfies `FrameReader`. Its sender has room for more only as they are
    read."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._arrived: deque[bytes] = deque()
        self._read = bytearray()
        self._came = asyncio.Event()
        self._has_ended = False

    def add(self, data: bytes) -> None:
        self._arrived.append(data)
        self._came.set()

    def end(self) -> None:
        self._has_ended = True
        self._came.set()

    async def readexactly(self, n: int, /) -> bytes:
        """The next `n` bytes. Only one caller may wait at a time."""
        while len(self._read) < n:
            while not self._arrived:
                if self._has_ended:
                    raise asyncio.IncompleteReadError(bytes(self._read), n)
                self._came.clear()
                await self._came.wait()
            data = self._arrived.popleft()
            self._read += data
            self._channel.took(len(data))
        taken = bytes(self._read[:n])
        del self._read[:n]
        return taken
