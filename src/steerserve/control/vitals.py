"""Health: liveness, readiness, components, the queue block. Each block is built in its own guard."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from typing import Any

from steerserve import __version__
from steerserve.control.conductor import Conductor
from steerserve.control.generate import Generation
from steerserve.control.queue import Queue
from steerserve.rules.residency import Phase
from steerserve.settings import Settings
from steerserve.store.catalog import utc_now
from steerserve.store.db import Database

PING_SECONDS = 2.0


class Vitals:
    """Reads the state of the owners; owns nothing but the time of the start."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        conductor: Conductor,
        queue: Queue,
        generation: Generation,
    ) -> None:
        self._settings = settings
        self._database = database
        self._conductor = conductor
        self._queue = queue
        self._generation = generation
        self._since = time.monotonic()

    def liveness(self) -> dict[str, Any]:
        return {
            "status": "healthy",
            "version": __version__,
            "timestamp": now(),
            "uptime_seconds": round(time.monotonic() - self._since, 3),
        }

    async def readiness(self) -> dict[str, Any]:
        """Whether requests can be served; a model that is not loaded is degraded and still ready."""
        components = [await self._database_health(), self._engine_health()]
        if self._generation.is_closing:
            components.append(_component("service", "unhealthy", "the service is shutting down"))
        statuses = {component["status"] for component in components}
        worst = next(s for s in ("unhealthy", "degraded", "healthy") if s in statuses)
        return {
            "ready": worst != "unhealthy",
            "status": worst,
            "version": __version__,
            "timestamp": now(),
            "components": components,
            "model_loaded": self._is_loaded(),
            "sae_attached": bool(self._conductor.attachments()),
        }

    async def detailed(self) -> dict[str, Any]:
        ready = await self.readiness()
        resident = self._conductor.resident
        attachments = self._conductor.attachments()
        return {
            **{key: ready[key] for key in ("status", "version", "timestamp", "components")},
            "uptime_seconds": round(time.monotonic() - self._since, 3),
            "circuit_breakers": [],
            "model_loaded": self._is_loaded(),
            "model_name": resident.row.name if resident and self._is_loaded() else None,
            "sae_attached": bool(attachments),
            "sae_id": attachments[0].sae_id if attachments else None,
            "sae_count": len(attachments),
            "sae_ids": [attached.sae_id for attached in attachments],
            "inference": self.inference(),
            "active_profile": None,
            "lease": self._conductor.leases.status(),
        }

    def inference(self) -> dict[str, Any]:
        """The queue block; unmeasured is None, never 0."""
        try:
            counts = self._queue.counts()
        except Exception as error:
            # the block must be there even when it cannot be read
            return {**dict.fromkeys(_BLOCK), "error": f"{type(error).__name__}: {error}"}
        is_batching = self._generation.is_batching
        running = is_batching and self._is_loaded()
        return {
            "backend": "cbm" if running else "queue",
            "cbm_enabled": is_batching,
            "cbm_running": running,
            "queue_pending": counts.pending,
            "queue_max_concurrent": counts.max_concurrent,
            "queue_max_pending": counts.max_pending,
            "in_flight": None if running else counts.holding,
            "queue_waiting": None if running else counts.waiting,
            "batch_backlog_rows": None,
            "estimated_wait_seconds": None if running else counts.estimated_wait_seconds,
            "error": None,
        }

    def backend(self) -> dict[str, Any]:
        """Which backend serves, and what it can do. A server with continuous batching serves all else serially."""
        settings, counts = self._settings, self._queue.counts()
        if self._generation.is_batching:
            return {
                "backend": "cbm",
                "description": "one running batch; requests of the fixed sampling parameters need no slot",
                "capabilities": {
                    "streaming": True,
                    "per_request_sampling_params": False,
                    "per_request_profile_override": False,
                    "speculative_decoding": False,
                },
                "cbm_config": {
                    "default_temperature": settings.cbm_default_temperature,
                    "default_top_p": settings.cbm_default_top_p,
                    "max_queue_size": settings.cbm_max_queue_size,
                },
                "limitations": [
                    "response_format is refused",
                    "seeds are best effort",
                    "other sampling parameters, profiles and intensities take a slot",
                ],
            }
        return {
            "backend": "serial",
            "description": "one running batch; every request takes a slot",
            "capabilities": {
                "streaming": True,
                "per_request_sampling_params": True,
                "per_request_profile_override": True,
                "speculative_decoding": False,
            },
            "queue": {
                "max_concurrent": counts.max_concurrent,
                "max_pending": counts.max_pending,
                "current_pending": counts.pending,
            },
            "limitations": [],
        }

    def _is_loaded(self) -> bool:
        resident = self._conductor.resident
        return resident is not None and resident.phase is Phase.LOADED

    async def _database_health(self) -> dict[str, Any]:
        before = time.monotonic()
        try:
            async with asyncio.timeout(PING_SECONDS):
                await self._database.ping()
        except Exception as error:
            # whatever the driver raises, the database is not usable
            return _component("database", "unhealthy", f"not usable: {type(error).__name__}")
        return _component("database", "healthy", None, (time.monotonic() - before) * 1000)

    def _engine_health(self) -> dict[str, Any]:
        resident = self._conductor.resident
        if resident is None:
            return _component("engine", "degraded", "no model is loaded")
        if resident.phase is Phase.LOADED:
            return _component("engine", "healthy", None)
        return _component("engine", "degraded", f"model {resident.row.name!r} is {resident.phase}")


_BLOCK = (
    "backend cbm_enabled cbm_running queue_pending queue_max_concurrent queue_max_pending in_flight queue_waiting "
    "batch_backlog_rows estimated_wait_seconds"
).split()


def _component(
    name: str, status: str, message: str | None, latency_ms: float | None = None
) -> dict[str, Any]:
    latency = None if latency_ms is None else round(latency_ms, 3)
    return {"name": name, "status": status, "message": message, "latency_ms": latency}


def now() -> str:
    return iso(utc_now())


def iso(time_: datetime) -> str:
    """ISO-8601 in UTC, with Z."""
    return time_.isoformat().replace("+00:00", "Z")
