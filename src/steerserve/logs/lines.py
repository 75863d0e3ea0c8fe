"""The lines of the log as people may read them over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

Level = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
Value = str | int | float | bool | None
Fields = Mapping[str, Value | list[Value]]


@dataclass(frozen=True, slots=True)
class LoggedException:
    """`type` is the name of its class. `places` are `file:line in function`, the last one is where it was raised."""

    type: str
    places: list[str]


@dataclass(frozen=True, slots=True)
class LogLine:
    """`id` grows from line to line, also over a restart. `event` is the name of what happened, and `fields` are its
    facts."""

    id: int
    at: datetime
    level: Level
    logger: str
    event: str
    fields: Fields
    exception: LoggedException | None


@dataclass(frozen=True, slots=True)
class LogLines:
    """`lines` are the newest ones, in the order in which they came. `last_id` is the `after` of the next question.
    `dropped` are lines after `after` that are not kept any more, of all levels."""

    lines: list[LogLine]
    last_id: int
    dropped: int
    kept: int
