"""Settings for a test."""

from __future__ import annotations

from typing import Any

from steerserve.settings import Settings


def made(**changes: Any) -> Settings:
    """The settings of the environment with these changes, without those of a file."""
    return Settings(_env_file=None, **changes)  # type: ignore[call-arg]
