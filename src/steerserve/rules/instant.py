"""Points in time as text."""

from __future__ import annotations

from datetime import datetime


def iso(instant: datetime) -> str:
    """A UTC time in ISO 8601, with `Z` for its zone."""
    return instant.isoformat().replace("+00:00", "Z")
