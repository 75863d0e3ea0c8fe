"""Retry-After: its seconds, from the code of a refusal, the details of the refusal, and the settings."""

from __future__ import annotations

import math

import structlog

from steerserve.errors import Refusal, Retry
from steerserve.settings import Settings

log = structlog.get_logger(__name__)


def seconds(settings: Settings, refusal: Refusal, status: int) -> int | None:
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
        case Retry.DATABASE:
            return settings.retry_after_database_s
        case Retry.CONNECTIONS:
            return settings.retry_after_connections_s
        case _:
            log.warning("retry_after_defaulted", code=refusal.code)
            return settings.retry_after_fallback_s
