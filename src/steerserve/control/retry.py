"""Retry-After: its seconds, from the code of a refusal, the details of the refusal, and the settings."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import structlog

from steerserve.errors import Refusal, Retry
from steerserve.settings import Settings

log = structlog.get_logger(__name__)


SECONDS = 60.0
"""Each code has at most one line of the log in so many seconds."""


class DefaultedLog:
    """Logs `retry_after_defaulted` where an answer got the fallback, at most once a minute for each code or path,
    because every request meets a fault that lasts.

    Args:
        clock: gives seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged: dict[str, float] = {}

    def note_code(self, code: str) -> None:
        """A refusal with this code got the fallback."""
        if self._is_due(code):
            log.warning("retry_after_defaulted", code=code)

    def note_path(self, path: str) -> None:
        """An answer without a code, to a request with this path, got the fallback."""
        if self._is_due(path):
            log.warning("retry_after_defaulted", path=path)

    def _is_due(self, key: str) -> bool:
        now = self._clock()
        self._logged = {one: at for one, at in self._logged.items() if now - at < SECONDS}
        if key in self._logged:
            return False
        self._logged[key] = now
        return True


def seconds(
    settings: Settings, refusal: Refusal, status: int, defaulted: DefaultedLog
) -> int | None:
    """Whole seconds, at least 1, for a refusal with status 503; None for any other status. A code without a rule of its
    own gets the fallback, and the use of the fallback is logged."""
    if status != 503:
        return None
    match refusal.row.retry:
        case Retry.QUEUE:
            estimate = refusal.details.get("estimated_wait_seconds")
            if estimate is None:
                return settings.retry_after_queue_default_s
            return max(1, min(math.ceil(float(estimate)), settings.retry_after_max_s))
        case Retry.LOAD:
            unloading = refusal.details.get("unloading")
            return settings.retry_after_unload_s if unloading else settings.retry_after_load_s
        case Retry.NOT_LOADED:
            return settings.retry_after_not_loaded_s
        case Retry.MEMORY:
            return settings.retry_after_memory_s
        case Retry.HUB:
            return max(1, math.ceil(float(refusal.details.get("recovery_seconds") or 1)))
        case Retry.READINESS:
            return settings.retry_after_readiness_s
        case Retry.DATABASE if settings.retry_after_database_s is not None:
            return settings.retry_after_database_s
        case Retry.CONNECTIONS:
            return settings.retry_after_connections_s
        case _:
            defaulted.note_code(refusal.code)
            return settings.retry_after_fallback_s
