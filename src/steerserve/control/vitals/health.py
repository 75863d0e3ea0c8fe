"""Health: liveness, readiness, components, the queue block, the cards. Each block is built in its own guard."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

import structlog

from steerserve import __version__
from steerserve.control.breakers import Breakers
from steerserve.control.interventions.serving import Serving
from steerserve.control.requests.generate import Generation
from steerserve.control.requests.queue import Queue
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.resident import Resident
from steerserve.control.vitals import cards as card_reading
from steerserve.control.vitals.cards import Cards, Reading
from steerserve.rules.instant import iso
from steerserve.rules.residency import Phase
from steerserve.settings import Settings
from steerserve.store.catalog import utc_now
from steerserve.store.db import Database

log = structlog.get_logger(__name__)

PING_SECONDS = 2.0
CARDS_AGE = 5.0
"""Seconds that a reading of the cards is good for."""
CARDS_SECONDS = 1.0
"""How long readiness waits for the cards' driver."""


class Vitals:
    """Reads the state of the owners; owns nothing but the time of the start.

    Args:
        hub: whose circuit breakers are shown and reset.
        starts: why engines cannot be started; None where nothing says so.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        conductor: Conductor,
        queue: Queue,
        generation: Generation,
        cards: Cards,
        hub: Breakers,
        starts: Callable[[], str | None],
        serving: Serving,
    ) -> None:
        self._settings = settings
        self._database = database
        self._conductor = conductor
        self._queue = queue
        self._generation = generation
        self._cards = cards
        self._hub = hub
        self._starts = starts
        self._serving = serving
        self._since = time.monotonic()
        self.load_failure: str | None = None
        """Why the model that the start loads could not be loaded."""

    def liveness(self) -> dict[str, Any]:
        return {
            "status": "healthy",
            "version": __version__,
            "timestamp": now(),
            "uptime_seconds": round(time.monotonic() - self._since, 3),
        }

    async def readiness(self) -> dict[str, Any]:
        """Whether requests can be served; a model that is not loaded is degraded and still ready."""
        reading, database = await asyncio.gather(
            self._cards.reading(CARDS_AGE, CARDS_SECONDS), self._database_health()
        )
        components = self._components(database, reading)
        status = _worst(components)
        return {
            "ready": status != "unhealthy",
            "status": status,
            "version": __version__,
            "timestamp": now(),
            "components": components,
            "model_loaded": self._is_loaded(),
            "sae_attached": bool(self._conductor.attachments()),
        }

    async def detailed(self) -> dict[str, Any]:
        """Everything at once. No driver is asked here: the cards are those of the last reading. A block that cannot be
        built is None, and `errors` names what it failed with."""
        blocks = _Blocks()
        components = self._components(await self._database_health(), self._cards.last)
        resident = self._conductor.resident
        attachments = blocks.built("saes", self._conductor.attachments) or []
        return self.liveness() | {
            "status": _worst(components),
            "components": components,
            "circuit_breakers": blocks.built("circuit_breakers", self._hub.breakers),
            "model_loaded": self._is_loaded(),
            "model_name": resident.row.name if resident and self._is_loaded() else None,
            "model_placement": blocks.built("model_placement", lambda: _placement(resident)),
            "sae_attached": bool(attachments),
            "sae_id": attachments[0].sae_id if attachments else None,
            "sae_count": len(attachments),
            "sae_ids": [attached.sae_id for attached in attachments],
            "inference": self.inference(),
            "active_profile": await blocks.read("active_profile", self._active_profile),
            "lease": blocks.built("lease", self._conductor.leases.status),
            "errors": blocks.errors,
        }

    async def gpus(self) -> dict[str, Any]:
        """Every card of the machine, read now, and what the tensor library holds on each."""
        return await card_reading.report(self._cards, self._conductor)

    def breakers(self) -> list[dict[str, Any]]:
        return self._hub.breakers()

    def reset(self, name: str) -> dict[str, Any]:
        """Raises:
        Refusal: BREAKER_NOT_FOUND.
        """
        return self._hub.reset(name)

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

    # ------------------------------------------------------------- inside

    async def _active_profile(self) -> dict[str, Any] | None:
        profile = await self._serving.profile()
        return asdict(profile) if profile is not None else None

    def _is_loaded(self) -> bool:
        resident = self._conductor.resident
        return resident is not None and resident.phase is Phase.LOADED

    def _components(
        self, database: dict[str, Any], reading: Reading | None
    ) -> list[dict[str, Any]]:
        components = [database, self._engine_health(), _gpu_health(reading), self._hub_health()]
        if self._generation.is_closing:
            components.append(_component("service", "unhealthy", "the service is shutting down"))
        return components

    async def _database_health(self) -> dict[str, Any]:
        before = time.monotonic()
        fault = await self._database.fault()
        if fault is not None:
            return _component("database", "unhealthy", f"not usable: {fault}")
        return _component("database", "healthy", None, (time.monotonic() - before) * 1000)

    def _engine_health(self) -> dict[str, Any]:
        """An engine that died is degraded: the next load starts another. One that cannot be started is unhealthy."""
        resident, failure = self._conductor.resident, self._starts()
        if resident is not None and resident.phase is Phase.LOADED:
            return _component("engine", "healthy", None)
        if failure is not None:
            return _component("engine", "unhealthy", failure)
        if resident is None:
            return _component("engine", "degraded", self.load_failure or "no model is loaded")
        return _component("engine", "degraded", f"model {resident.row.name!r} is {resident.phase}")

    def _hub_health(self) -> dict[str, Any]:
        try:
            opened = [breaker["name"] for breaker in self._hub.breakers() if breaker["is_open"]]
        except Exception as error:
            # the hub's own state is no reason to take the service out of use
            return _component("hub", "degraded", f"not known: {type(error).__name__}")
        if opened:
            return _component("hub", "degraded", f"left alone after failures: {', '.join(opened)}")
        return _component("hub", "healthy", None)


class _Blocks:
    """Parts of a body, each built so that its failure is its own."""

    def __init__(self) -> None:
        self.errors: dict[str, str] = {}

    def built(self, name: str, build: Callable[[], Any]) -> Any:
        try:
            return build()
        except Exception as error:
            # one block that cannot be read must not take the others with it; texts of errors may hold anything
            self._failed(name, error)
            return None

    async def read(self, name: str, read: Callable[[], Awaitable[Any]]) -> Any:
        """A block that waits, at most as long as the database may."""
        try:
            async with asyncio.timeout(PING_SECONDS):
                return await read()
        except Exception as error:
            # as above
            self._failed(name, error)
            return None

    def _failed(self, name: str, error: Exception) -> None:
        log.error("health_block_failed", block=name, exc_info=error)
        self.errors[name] = type(error).__name__


_BLOCK = (
    "backend cbm_enabled cbm_running queue_pending queue_max_concurrent queue_max_pending in_flight queue_waiting "
    "batch_backlog_rows estimated_wait_seconds"
).split()


def _gpu_health(reading: Reading | None) -> dict[str, Any]:
    """A machine without cards is healthy; a card that was lost, or a driver that hangs, is not."""
    if reading is None:
        return _component("gpu", "healthy", "the cards have not been read yet")
    if reading.is_late or (reading.cards and reading.reason):
        return _component("gpu", "degraded", reading.reason)
    if not reading.cards:
        return _component("gpu", "healthy", "no card: the processor serves")
    return _component("gpu", "healthy", ", ".join(card.name for card in reading.cards))


def _placement(resident: Resident | None) -> Any:
    return resident.placement if resident else None


def _worst(components: list[dict[str, Any]]) -> str:
    statuses = {component["status"] for component in components}
    return next(s for s in ("unhealthy", "degraded", "healthy") if s in statuses)


def _component(
    name: str, status: str, message: str | None, latency_ms: float | None = None
) -> dict[str, Any]:
    latency = None if latency_ms is None else round(latency_ms, 3)
    return {"name": name, "status": status, "message": message, "latency_ms": latency}


def now() -> str:
    return iso(utc_now())
