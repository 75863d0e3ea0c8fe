"""The last lines of the log, kept in memory for people who ask the service for them.

These lines leave the process over HTTP, so they have less than the log: no secret and no text that a client sent. Of an
exception they have its type and its places in the code, without its message, which may quote a prompt. Of a line of a
library they have the text only where the library fills no values into it.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from steerserve.logs.lines import Level, LoggedException, LogLine, LogLines, Value
from steerserve.logs.setup import printable, scrub
from steerserve.rules.bounds import LOG_LINES_KEPT

LEVELS: dict[Level, int] = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40}
TEXT = 500
"""The most characters of a value that a line has."""
ENTRIES = 16
"""The most entries of a list that a line has."""
PLACES = 8
"""The most places of an exception, the last ones of its traceback."""
LEFT_OUT = "text_left_out"
"""The event of a line whose text may have values, which are left out."""

_OURS = "steerserve"
_FIXED_TEXTS = "uvicorn"
"""A library whose lines without values are sentences of its source code."""
_PLACEHOLDERS = re.compile(r"%(\(\w+\))?[-+ #0-9.]*[a-zA-Z]")
_NAMED = frozenset({"event", "level", "logger", "timestamp", "exc_info", "stack_info"})
_OF_CLIENTS = frozenset({"locations", "path"})
"""Fields with words that a client chose freely: the names of unknown fields, and the path of a request."""
_ROOT = Path(__file__).parents[1]


class RecentLines(logging.Handler):
    """Keeps the last lines that pass LOG_LEVEL. Lines of the engine are in the log only: they come from other
    processes.

    Args:
        before: the number before the id of the first line. A service that starts later takes a larger one, so that ids
            of the former service are not mistaken for its own.
    """

    def __init__(self, before: int = 0) -> None:
        super().__init__()
        self._first = before
        self._ids = count(before + 1)
        self._last = before
        self._lines: deque[LogLine] = deque(maxlen=LOG_LINES_KEPT)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = _line(next(self._ids), record)
        except Exception:
            # a line that cannot be read must not stop the code that logs it
            self.handleError(record)
            return
        self._lines.append(line)
        self._last = line.id

    def after(self, after: int | None, level: Level, limit: int) -> LogLines:
        """The newest `limit` lines after the line `after` that have at least this level."""
        self.acquire()
        try:
            lines, last = list(self._lines), self._last
        finally:
            self.release()
        since = self._first if after is None or not self._first <= after <= last else after
        oldest = lines[0].id if lines else last + 1
        least = LEVELS[level]
        wanted = [x for x in lines if x.id > since and LEVELS[x.level] >= least]
        dropped = 0 if after is None else max(0, oldest - since - 1)
        return LogLines(wanted[-limit:], last, dropped, LOG_LINES_KEPT)


def _line(number: int, record: logging.LogRecord) -> LogLine:
    facts: dict[str, object] = {}
    if record.name.partition(".")[0] == _OURS and isinstance(record.msg, dict):
        facts = dict(scrub(None, "", dict(record.msg)))
    event = str(facts["event"]) if "event" in facts else _text_of_library(record)
    error = facts.get("exc_info") or record.exc_info
    return LogLine(
        id=number,
        at=datetime.fromtimestamp(record.created, UTC),
        level=_level(record.levelno),
        logger=record.name,
        event=_shown("event", event),
        fields=_fields(facts),
        exception=_exception(error),
    )


def _level(number: int) -> Level:
    reached = [name for name, least in LEVELS.items() if number >= least]
    return reached[-1] if reached else "DEBUG"


def _text_of_library(record: logging.LogRecord) -> str:
    """The text of a library's line, without the values for its placeholders. A text without placeholders may have its
    values in it already; it is left out unless the library is known to write fixed texts."""
    is_fixed = bool(record.args) or record.name.partition(".")[0] == _FIXED_TEXTS
    if not is_fixed or not isinstance(record.msg, str):
        return LEFT_OUT
    return _PLACEHOLDERS.sub("…", record.msg).strip()


def _fields(facts: Mapping[str, object]) -> dict[str, Value | list[Value]]:
    names = (x for x in facts if x not in _NAMED | _OF_CLIENTS and not x.startswith("_"))
    return {name: _value(name, facts[name]) for name in names}


def _value(name: str, value: object) -> Value | list[Value]:
    if isinstance(value, list | tuple | set | frozenset):
        return [_one(name, entry) for entry in list(value)[:ENTRIES]]
    return _one(name, value)


def _one(name: str, value: object) -> Value:
    if value is None or isinstance(value, bool | int | float):
        return value
    return _shown(name, str(value))


def _shown(name: str, text: str) -> str:
    """The text without secrets and control characters, at most TEXT characters."""
    facts = printable(None, "", scrub(None, "", {name: text}))
    shown = str(facts[name])
    return shown if len(shown) <= TEXT else f"{shown[: TEXT - 1]}…"


def _exception(info: object) -> LoggedException | None:
    error = sys.exc_info()[1] if info is True else info[1] if isinstance(info, tuple) else info
    if not isinstance(error, BaseException):
        return None
    frames: Iterable[traceback.FrameSummary] = traceback.extract_tb(error.__traceback__)
    places = [f"{_file(frame.filename)}:{frame.lineno} in {frame.name}" for frame in frames]
    return LoggedException(type(error).__name__, places[-PLACES:])


def _file(name: str) -> str:
    """The path of a file of ours within the package, and the last two parts of the path of another file."""
    path = Path(name)
    if path.is_relative_to(_ROOT):
        return path.relative_to(_ROOT).as_posix()
    return "/".join(path.parts[-2:])
