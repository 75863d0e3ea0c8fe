"""Every X-Service-* response header: when it is present and how it is written."""

from __future__ import annotations

from steerserve.rules import fields
from steerserve.rules.intent import Generate


def of(intent: Generate, limit: int) -> dict[str, str]:
    """The headers that are known once a request is admitted."""
    found: dict[str, str] = {}
    if intent.ignored:
        found["X-Service-Ignored-Fields"] = fields.header_value(intent.ignored, limit)
    if intent.sampling.seed is not None:
        found["X-Service-Seed"] = f"{intent.sampling.seed};scope=request"
    return found
