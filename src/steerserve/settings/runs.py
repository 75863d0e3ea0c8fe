"""The settings of recorded answers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings

from steerserve.settings.limits import MIB_MAXIMUM


class RecordSettings(BaseSettings, use_attribute_docstrings=True):
    """The settings of recorded answers. `Settings` has them among the other settings."""

    record_runs: bool = False
    """Keep every answer of /v1 with its request, its steering and its seed in the database, so that it can be made
    again. The texts are those of users. A request with `store: false` is not kept."""
    runs_max_days: Annotated[float, Field(gt=0, le=3650)] = 7
    """Days for which a recorded answer is kept."""
    runs_max_mb: Annotated[int, Field(ge=1, le=MIB_MAXIMUM)] = 256
    """Most MiB of recorded answers in the database; the oldest are deleted."""
