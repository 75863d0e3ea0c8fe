"""The commands that go on until Ctrl-C: which features fire, and the log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated

import msgspec
import typer

from steerserve.client import Client
from steerserve.logs.lines import Level, LogLine
from steerserve.nouns.monitoring.form import FeatureActivation, MonitoredToken
from steerserve.rules.bounds import LOG_LINES_KEPT
from steerserve.terminal import naming, output

PERIOD = 0.5
"""Seconds between two questions."""
MOST = 100
"""Records that one question asks for."""

JsonLines = Annotated[
    bool, typer.Option("--json", help="Print what the route answers, one JSON object in a line.")
]


def watch(
    features: Annotated[
        list[str] | None,
        typer.Argument(help="Features by index or label; by default the most active ones."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=100, help="How many features are shown.")] = 5,
    count: Annotated[int | None, typer.Option(min=1, help="End after so many answers.")] = None,
    as_json: JsonLines = False,
) -> None:
    """Show which features fire in the answers of the service, as they end. Ctrl-C ends it."""
    with output.refusals(), Client() as client:
        sae_id = naming.attached(client)
        wanted = [str(naming.feature(client, sae_id, one)) for one in features or []]
        with _monitored(client):
            for number, record in enumerate(_records(client, ",".join(wanted) or None), 1):
                shown = record.activations if wanted else record.top_k[:top]
                _print(record if as_json else _line(record, shown))
                if number == count:
                    return


@contextmanager
def _monitored(client: Client) -> Iterator[None]:
    """Switches monitoring on while the block runs, where it is off."""
    was_on = client.monitoring.get().enabled
    if not was_on:
        client.monitoring.enable(True)
    try:
        yield
    finally:
        if not was_on:
            client.monitoring.enable(False)


def _records(client: Client, features: str | None) -> Iterator[MonitoredToken]:
    """The records that come from now on, in the order in which they come."""
    newest = client.monitoring.history(limit=MOST, features=features)
    output.note("waiting for answers; Ctrl-C ends it")
    while True:
        seen = {_key(one) for one in newest}
        newest = client.monitoring.history(limit=MOST, features=features)
        fresh = [one for one in newest if _key(one) not in seen]
        yield from reversed(fresh)
        if not fresh:
            time.sleep(PERIOD)


def _key(record: MonitoredToken) -> tuple[str, int]:
    return record.request_id, record.choice


def _line(record: MonitoredToken, shown: list[FeatureActivation]) -> str:
    features = "  ".join(
        f"{one.feature_index}{f' {one.label}' if isinstance(one.label, str) else ''}"
        f" {one.activation:.4g}"
        for one in shown
    )
    return f"{_clock(record.timestamp)}  {record.request_id}  {features or 'nothing fired'}"


def logs(
    lines: Annotated[int, typer.Option("-n", "--lines", min=1, max=LOG_LINES_KEPT)] = 50,
    level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR, and above.")] = "INFO",
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on with new lines until Ctrl-C.")
    ] = False,
    as_json: JsonLines = False,
) -> None:
    """Show the newest lines of the service's log."""
    known: dict[str, Level] = {
        "DEBUG": "DEBUG", "INFO": "INFO", "WARNING": "WARNING", "ERROR": "ERROR",
    }  # fmt: skip
    if level.upper() not in known:
        raise typer.BadParameter(f"{level!r} is no level; there are {', '.join(known)}")
    least = known[level.upper()]
    with output.refusals(), Client() as client:
        page = client.health.log(level=least, limit=lines)
        while True:
            for line in page:
                _print(line if as_json else _log_line(line))
            if not follow:
                return
            time.sleep(PERIOD)
            page = client.health.log(after=page.answer.last_id, level=least)


def _log_line(line: LogLine) -> str:
    facts = "".join(f" {name}={output.cell(value)}" for name, value in line.fields.items())
    failed = line.exception
    why = "" if failed is None else f" {failed.type} {' '.join(failed.places[-1:])}"
    return f"{_clock(line.at)} {line.level:<7} {line.event}{facts}{why}"


def _clock(at: datetime) -> str:
    return f"{at.astimezone():%H:%M:%S}"


def _print(what: object) -> None:
    """Print a line now, also where the output is a pipe."""
    if isinstance(what, str):
        typer.echo(output.readable(what))
    else:
        typer.echo(output.json_text(msgspec.json.encode(what)))
