"""Structured logging: one configuration for the service and its engine, with secrets scrubbed from every line."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from traceback import format_exception

import structlog
from structlog.typing import Processor

_SECRET_KEYS = re.compile(r"token$|lease_id|authorization|password|secret|api_key", re.IGNORECASE)
_SECRET_VALUES = re.compile(
    r"\bhf_[A-Za-z0-9]{8,}|\blease_[A-Za-z0-9_-]{32}|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)|Bearer\s+\S+"
)

_TRACEBACKS = ("exception", "stack")
_INDENT = "    "


def scrub(
    _logger: object, _method: str, event: MutableMapping[str, object]
) -> MutableMapping[str, object]:
    """Replace values under secret-looking keys, and secret-looking text anywhere, by `***`."""
    for key, value in event.items():
        if _SECRET_KEYS.search(key):
            event[key] = "***"
        elif isinstance(value, str):
            event[key] = _SECRET_VALUES.sub("***", value)
    return event


def _without_color(
    _logger: object, _method: str, event: MutableMapping[str, object]
) -> MutableMapping[str, object]:
    """Drop `color_message`, the coloured copy of the message that uvicorn adds to each line."""
    event.pop("color_message", None)
    return event


def printable(
    _logger: object, _method: str, event: MutableMapping[str, object]
) -> MutableMapping[str, object]:
    """Write control characters as escape sequences, and indent the lines of a traceback. So an untrusted text makes
    no line of its own that looks like a line of the log, and does not control the terminal."""
    for key, value in event.items():
        if isinstance(value, str):
            lines = value.split("\n") if key in _TRACEBACKS else [value]
            event[key] = "\n".join(_INDENT * (key in _TRACEBACKS) + _escaped(x) for x in lines)
    return event


def _escaped(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def lease_ref(digest: bytes) -> str:
    """The 8 characters by which the log names a lease. They come from the digest of its id, and do not reveal the
    id."""
    return digest.hex()[:8]


class _StandardError(logging.Handler):
    """Writes each line to the standard error of that moment. A stream kept from the start may have been closed
    since."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            write(f"{self.format(record)}\n")
        except Exception:
            self.handleError(record)


def write(text: str) -> None:
    """Write to the standard error of this moment."""
    stream = sys.stderr
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        if sys.stderr is stream:
            raise
        # the stream was replaced and closed during the write, as at the end of a capture
        write(text)


def _shared() -> list[Processor]:
    """The steps that our lines and those of libraries pass first."""
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.ExtraAdder(),
        _without_color,
    ]


def formatter(form: str) -> logging.Formatter:
    """Makes the text of a line, in the form of LOG_FORMAT."""
    # exceptions become text before the scrub, so that a secret inside one is replaced too
    final: list[Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if form == "json":
        final += [structlog.processors.format_exc_info, scrub, structlog.processors.JSONRenderer()]
    else:
        final += [
            structlog.processors.format_exc_info,
            scrub,
            printable,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ]
    return structlog.stdlib.ProcessorFormatter(foreign_pre_chain=_shared(), processors=final)


def say_cannot_start(form: str, reason: str, exit_code: int, bug: Exception | None = None) -> None:
    """Write why the service cannot start, in the form of LOG_FORMAT: a sentence for people, or a line of the log for
    machines. A bug has its traceback too. The log itself may not be configured yet."""
    if form != "json":
        traceback = "".join(format_exception(bug)) if bug else ""
        write(f"{traceback}{reason}\n")
        return
    level = {"name": "steerserve", "levelno": logging.ERROR, "levelname": "ERROR"}
    facts: dict[str, object] = {"msg": "cannot_start", "reason": reason, "exit_code": exit_code}
    if bug is not None:
        facts["exc_info"] = (type(bug), bug, bug.__traceback__)
    record = logging.makeLogRecord(level | facts)
    write(f"{formatter(form).format(record)}\n")


def configure(level: str, form: str, *others: logging.Handler) -> None:
    """Send every log line of the service and its libraries through one chain to standard error, and to other
    handlers."""
    structlog.configure(
        processors=[*_shared(), structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    out = _StandardError()
    out.setFormatter(formatter(form))
    root = logging.getLogger()
    root.handlers[:] = [out, *others]
    root.setLevel(level)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    for name in (
        "uvicorn.access",
        "httpx2",
        "httpcore2",
        "engineio",
        "socketio",
        "alembic",
        "aiosqlite",
    ):
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelName(level)))
