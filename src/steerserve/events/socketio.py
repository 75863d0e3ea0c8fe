"""Live events over Socket.IO: the name and the payload of each event. Clients send only subscriptions.

Keys of model, SAE and steering events are camelCase, and each is repeated in snake_case for clients that read those
names. Keys of other events are snake_case.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict

import engineio.packet
import socketio
import structlog
from msgspec import to_builtins
from socketio import packet

from steerserve.control import bus as events
from steerserve.control.bus import Bus
from steerserve.control.health.gpus import CardReadings, totals
from steerserve.logs import background
from steerserve.rules import throttle
from steerserve.rules.bounds import LIVE_UNREAD_EVENTS
from steerserve.rules.instant import iso
from steerserve.settings import Settings

log = structlog.get_logger(__name__)

SYSTEM = "system:metrics"
SYSTEM_SECONDS = 2.0
"""The time between two reports of the cards."""
ACTIVATION_SECONDS = 0.1
"""The least time between two monitoring events. The history of monitoring has the records between them."""


def payload(event: events.Sent) -> tuple[str, dict[str, object]]:
    """An event's name and camelCase payload."""
    match event:
        case events.DownloadProgress():
            speed = {} if event.speed_bps is None else {"speedBps": event.speed_bps}
            return "model:download:progress", {
                "modelId": event.model_id,
                "progress": event.progress,
                "downloadedBytes": event.downloaded_bytes,
                "totalBytes": event.total_bytes,
                **speed,
            }
        case events.DownloadComplete():
            body = {"modelId": event.model_id, "localPath": event.local_path}
            return "model:download:complete", body
        case events.DownloadError():
            failed = {"code": event.code, "message": event.message, "details": event.details}
            return "model:download:error", {"modelId": event.model_id, "error": failed}
        case events.LoadProgress():
            return "model:load:progress", {
                "modelId": event.model_id,
                "stage": event.stage,
                "progress": event.progress,
            }
        case events.LoadComplete():
            return "model:load:complete", {
                "modelId": event.model_id,
                "memoryUsedMb": event.memory_used_mb,
            }
        case events.LoadError():
            error = {"code": event.code, "message": event.message}
            return "model:load:error", {"modelId": event.model_id, "error": error}
        case events.UnloadComplete():
            return "model:unload:complete", {"modelId": event.model_id}
        case events.ReplicaChanged():
            return "model:replica", {
                "modelId": event.model_id,
                "wanted": event.wanted,
                "serving": event.serving,
                "replica": asdict(event.replica) | {"since": iso(event.replica.since)},
            }
        case events.LeaseChanged():
            return "model:lease", {"modelId": event.model_id}
        case events.SaeAttached():
            return "sae:attached", {
                "saeId": event.sae_id,
                "layer": event.layer,
                "memoryMb": event.memory_mb,
            }
        case events.SaeDetached():
            return "sae:detached", {"saeId": event.sae_id}
        case events.SaeDownloadProgress():
            return "sae:download:progress", {"saeId": event.sae_id, "percent": event.percent}
        case events.SaeDownloadComplete():
            return "sae:download:complete", {"saeId": event.sae_id}
        case events.SaeDownloadError():
            return "sae:download:error", {"saeId": event.sae_id, "error": event.message}
        case events.SteeringUpdate():
            count = sum(map(len, (event.values, *event.others.values())))
            more: dict[str, object] = {"others": event.others} if event.others else {}
            if event.interventions:
                more["interventions"] = event.interventions
            return "steering:update", {
                "enabled": event.enabled,
                "values": event.values,
                "activeCount": count if event.enabled else 0,
                **more,
            }
        case events.MonitoringState():
            return "monitoring:state", {
                "enabled": event.enabled,
                "monitoredFeatures": event.features,
            }
        case events.ClusterFired():
            return "sensing:event", to_builtins(event.firing)
        case events.CircuitFired():
            return "circuit:sensing:event", to_builtins(event.firing)
        case events.JobProgressed():
            return "job:progress", to_builtins(event.job)
        case events.JobEnded():
            return "job:done", to_builtins(event.job)
        case events.MonitoringActivation():
            return "monitoring:activation", {
                "timestamp": iso(event.timestamp),
                "request_id": event.request_id,
                "position": event.position,
                "activations": [
                    {"feature_index": index, "activation": value}
                    for index, value in event.activations
                ],
            }


def with_twins(body: dict[str, object]) -> dict[str, object]:
    """The payload with every camelCase key under its snake_case name too."""
    return body | {
        re.sub(r"[A-Z]", lambda m: "_" + m[0].lower(), key): v for key, v in body.items()
    }


class Throttle:
    """Drops reports of the same work that follow each other too fast. The first and the last report of a download or a
    load always pass."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._passed: dict[tuple[str, int | str], float] = {}

    def passes(self, event: events.Event) -> bool:
        match event:
            case events.DownloadProgress():
                return self._may_pass(("download", event.model_id), event.progress)
            case events.SaeDownloadProgress():
                return self._may_pass(("sae", event.sae_id), event.percent)
            case events.LoadProgress():
                return self._may_pass(("load", event.model_id), event.progress)
            case events.MonitoringActivation():
                return self._may_pass(("monitoring", 0), 0.0, ACTIVATION_SECONDS)
            case events.JobProgressed():
                return self._may_pass(("job", event.job.id), 100 * event.job.progress)
            case events.JobEnded():
                self._passed.pop(("job", event.job.id), None)
            case events.DownloadComplete() | events.DownloadError():
                self._passed.pop(("download", event.model_id), None)
            case events.SaeDownloadComplete() | events.SaeDownloadError():
                self._passed.pop(("sae", event.sae_id), None)
            case events.LoadComplete() | events.LoadError():
                self._passed.pop(("load", event.model_id), None)
        return True

    def _may_pass(
        self, work: tuple[str, int | str], percent: float, least: float = throttle.LEAST_SECONDS
    ) -> bool:
        now = self._clock()
        passes = throttle.may_pass(
            self._passed.get(work), now, is_final=percent >= 100, least=least
        )
        if passes:
            self._passed[work] = now
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

    def _emit(self, event: events.Event) -> None:
        if isinstance(event, events.Unsent) or not self._throttle.passes(event):
            return
        self._end_those_behind()
        name, body = payload(event)
        self._keep(self.server.emit(name, with_twins(body)))

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
