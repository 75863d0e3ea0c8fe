"""Live events over Socket.IO: which are sent, and to whom. Clients send only subscriptions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict

import engineio.packet
import socketio
import structlog
from socketio import packet

from steerserve.control.bus import Bus
from steerserve.control.health.gpus import CardReadings, totals
from steerserve.control.health.views import SYSTEM
from steerserve.logs import background
from steerserve.rules import throttle
from steerserve.rules.bounds import LIVE_UNREAD_EVENTS
from steerserve.rules.events import Event, LiveEvent
from steerserve.settings import Settings

log = structlog.get_logger(__name__)

SYSTEM_SECONDS = 2.0
"""The time between two reports of the cards."""


class Throttle:
    """Drops reports of the same work that follow each other too fast. The first and the last report always pass."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._passed: dict[tuple[str, int | str], float] = {}

    def passes(self, event: LiveEvent) -> bool:
        report = event.work_report()
        if report is None:
            return True
        if report.is_last:
            self._passed.pop(report.work, None)
            return True
        now, last = self._clock(), self._passed.get(report.work)
        passes = throttle.may_pass(last, now, report.least)
        if passes:
            self._passed[report.work] = now
        return passes


class System:
    """Sends the numbers of the cards to each client that joins: at once, then every `seconds` until the client
    leaves."""

    def __init__(
        self, server: socketio.AsyncServer, cards: CardReadings, seconds: float = SYSTEM_SECONDS
    ) -> None:
        self._server = server
        self._cards = cards
        self.seconds = seconds
        self._joined: set[str] = set()
        self._sending: asyncio.Task[None] | None = None

    async def join(self, sid: str, *_: object) -> None:
        if not self._server.manager.is_connected(sid, "/"):
            return  # the client has left meanwhile
        self._joined.add(sid)
        if self._sending is None:
            self._sending = background.start(self._send_on(), name="system-metrics")
        await self._send([sid])

    async def leave(self, sid: str, *_: object) -> None:
        self._joined.discard(sid)
        if not self._joined:
            self.close()

    def close(self) -> None:
        """Stop sending."""
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None

    async def _send_on(self) -> None:
        while True:
            await asyncio.sleep(self.seconds)
            try:
                await self._send(list(self._joined))
            except Exception:
                # the next report may succeed, and no client waits for this one
                log.exception("system_metrics_failed")

    async def _send(self, sids: list[str]) -> None:
        body = asdict(totals(await self._cards.reading(self.seconds / 2)))
        for sid in sids:
            await self._server.emit(SYSTEM, body, to=sid)


class Sessions(socketio.AsyncManager):  # type: ignore[misc]
    """The sessions of one Socket.IO server. An event for all clients is encoded once and put into the queue of each
    session; the base class would start a task for each client. The base class sends all other events."""

    async def emit(
        self, event: str, data: object, namespace: str, room: object = None, **options: object
    ) -> None:
        if room is not None or any(options.get(name) for name in ("to", "skip_sid", "callback")):
            await super().emit(event, data, namespace, room, **options)
            return
        sent = packet.Packet(packet.EVENT, data=[event, data], namespace=namespace)
        # sessions share the packet, which keeps its encoded form
        shared = engineio.packet.Packet(engineio.packet.MESSAGE, sent.encode())
        for _, session_id in self.get_participants(namespace, None):
            session = self.server.eio.sockets.get(session_id)
            if session is not None and not session.closed:
                session.queue.put_nowait(shared)


class LiveEvents:
    """Owner of the Socket.IO server. The service never waits until a client got an event. A client that missed events
    reads the state over the management API."""

    def __init__(self, bus: Bus, settings: Settings, cards: CardReadings) -> None:
        # an empty list: `http/guards.py` checks the origins, and the CORS layer of the application writes the headers
        self.server = socketio.AsyncServer(
            async_mode="asgi",
            client_manager=Sessions(),
            cors_allowed_origins=[],
            max_http_buffer_size=10_000,
        )
        self._emitting: set[asyncio.Task[None]] = set()
        self.system = System(self.server, cards)
        self._throttle = Throttle()
        self.server.on("monitoring:join", _joined)
        self.server.on("system:join", self.system.join)
        self.server.on("system:leave", self.system.leave)
        self.server.on("disconnect", self.system.leave)
        bus.subscribe(self._emit)

    async def close(self) -> None:
        """Stop sending, and end the task that looks after the sessions."""
        self.system.close()
        await self.server.shutdown()

    def end_sessions(self) -> None:
        """Cut every client."""
        for session in list(self.server.eio.sockets.values()):
            self._keep(session.close(wait=False, abort=True))

    def _emit(self, event: Event) -> None:
        if not isinstance(event, LiveEvent) or not self._throttle.passes(event):
            return
        self._end_those_behind()
        self._keep(self.server.emit(event.wire, event.payload()))

    def _end_those_behind(self) -> None:
        """End the sessions whose clients do not fetch their events. The events would wait in memory."""
        for session in self.server.eio.sockets.values():
            if session.queue.qsize() >= LIVE_UNREAD_EVENTS and not session.closing:
                while not session.queue.empty():
                    session.queue.get_nowait()
                    session.queue.task_done()
                session.queue.put_nowait(None)  # ends the task that writes to this client
                self._keep(session.close(wait=False, abort=True))

    def _keep(self, work: Coroutine[object, object, None]) -> None:
        task = background.start(work)
        self._emitting.add(task)
        task.add_done_callback(self._emitting.discard)


async def _joined(_sid: str, *_: object) -> None:
    """Activations are sent to every client, so joining changes nothing."""
