"""The Socket.IO door: which event goes out under which name with which payload. Nothing comes in but subscriptions.

Keys of model, SAE and steering events are camelCase, with snake_case twins for clients that read those.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import socketio

from steerserve.control import bus as events
from steerserve.control.bus import Bus
from steerserve.settings import Settings


def payload(event: events.Event) -> tuple[str, dict[str, Any]]:
    """An event's name and camelCase payload."""
    match event:
        case events.DownloadProgress():
            return "model:download:progress", {
                "modelId": event.model_id,
                "progress": event.progress,
                "downloadedBytes": event.downloaded_bytes,
                "totalBytes": event.total_bytes,
                "speedBps": event.speed_bps,
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
        case events.SaeAttached():
            return "sae:attached", {
                "saeId": event.sae_id,
                "layer": event.layer,
                "memoryMb": event.memory_mb,
            }
        case events.SaeDetached():
            return "sae:detached", {"saeId": event.sae_id}
        case events.SteeringUpdate():
            return "steering:update", {
                "enabled": event.enabled,
                "values": event.values,
                "activeCount": len(event.values) if event.enabled else 0,
            }


def with_twins(body: dict[str, Any]) -> dict[str, Any]:
    """The payload with every camelCase key under its snake_case name too."""
    return body | {
        re.sub(r"[A-Z]", lambda m: "_" + m[0].lower(), key): v for key, v in body.items()
    }


class Live:
    """Owner of the Socket.IO server. Emission is fire and forget; clients resync over REST."""

    def __init__(self, bus: Bus, settings: Settings) -> None:
        allowed = settings.cors_origins
        origins: Any = "*" if "*" in allowed else allowed or None
        self.server = socketio.AsyncServer(
            async_mode="asgi", cors_allowed_origins=origins, max_http_buffer_size=100_000
        )
        self._emitting: set[asyncio.Task[None]] = set()
        self.server.on("monitoring:join", _joined)
        self.server.on("system:join", _joined)
        bus.subscribe(self._emit)

    def _emit(self, event: events.Event) -> None:
        name, body = payload(event)
        task = asyncio.create_task(self.server.emit(name, with_twins(body)))
        self._emitting.add(task)
        task.add_done_callback(self._emitting.discard)


async def _joined(_sid: str, _data: Any = None) -> None:
    """Every event is sent to everyone, so joining needs nothing more."""
