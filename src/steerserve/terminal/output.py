"""How the terminal shows answers and refusals, and the exit codes of the commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from steerserve.client import Listing, ServiceError, ServiceUnreachable

REFUSED, WRONG_USE, NO_SERVICE, STOPPED = 1, 2, 3, 130
"""Exit codes: the service refused, the command was used wrongly, no service answers, Ctrl-C."""
PIPED_WIDTH = 1000
"""Columns of the output where it is no terminal, so that nothing is cut there."""


def console(*, is_error: bool = False) -> Console:
    """A console for texts of people, models and files: nothing in them is markup."""
    stream = sys.stderr if is_error else sys.stdout
    return Console(
        file=stream,
        markup=False,
        highlight=False,
        emoji=False,
        width=None if stream.isatty() else PIPED_WIDTH,
    )


@contextmanager
def refusals() -> Iterator[None]:
    """Ends the command with a message and its exit code where the service refuses or does not answer."""
    try:
        yield
    except ServiceUnreachable as error:
        say(error.message)
        raise typer.Exit(NO_SERVICE) from None
    except ServiceError as error:
        say(str(error))
        raise typer.Exit(REFUSED) from None
    except KeyboardInterrupt:
        raise typer.Exit(STOPPED) from None


def say(message: str) -> None:
    """Print a message for people on the error output."""
    console(is_error=True).print(Text(readable(message), "red"))


def note(message: str) -> None:
    """Print a message on the error output, so that the output has answers only."""
    console(is_error=True).print(Text(readable(message), "dim"))


def warn(answer: object) -> None:
    """Print the warnings that an answer has on the error output."""
    shown = console(is_error=True)
    for warning in getattr(answer, "warnings", ()):
        shown.print(Text(readable(f"warning: {warning}"), "yellow"))


def is_lively() -> bool:
    """Whether bars may be shown, which are on the error output."""
    return sys.stderr.isatty()


def facts(record: object) -> dict[str, object]:
    """The fields of a record."""
    plain: dict[str, object] = msgspec.to_builtins(record)
    return plain


def show_json(answer: object) -> None:
    """Print what a route answers, as JSON."""
    plain = {k: _whole(v) for k, v in answer.items()} if isinstance(answer, dict) else answer
    typer.echo(json_text(msgspec.json.format(msgspec.json.encode(_whole(plain)))))


def json_text(encoded: bytes) -> str:
    """JSON for the output. On a terminal, characters that control it or that change the direction of text are escaped;
    the JSON means the same."""
    text = encoded.decode()
    if not sys.stdout.isatty() or (text.isascii() and text.replace("\n", "").isprintable()):
        return text
    return "".join(sign if sign.isprintable() or sign == "\n" else _escaped(sign) for sign in text)


def _escaped(sign: str) -> str:
    """A character as JSON escapes it: a group of four digits for each of its units in UTF-16."""
    units = sign.encode("utf-16-be")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def _whole(answer: object) -> object:
    return answer.answer if isinstance(answer, Listing) else answer


def show_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table without lines. Long cells go on in the next line where the terminal is narrow."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        shown.add_column(name, overflow="fold")
    for row in rows:
        shown.add_row(*(Text(readable(cell(value))) for value in row))
    put(shown)


def show_facts(facts: Mapping[str, object]) -> None:
    """Print the facts that are known, one in a line."""
    known = {name: value for name, value in facts.items() if value not in (None, [], {}, "")}
    shown = Table(box=None, pad_edge=False, show_header=False)
    shown.add_column(style="bold", no_wrap=True)
    shown.add_column(overflow="fold")
    for name, value in known.items():
        shown.add_row(name, Text(readable(cell(value))))
    put(shown)


def put(table: Table) -> None:
    """Print a table. Where the output is no terminal, its lines have no blanks at their ends."""
    shown = console()
    if shown.is_terminal:
        shown.print(table)
        return
    with shown.capture() as captured:
        shown.print(table)
    for line in captured.get().splitlines():
        typer.echo(line.rstrip())


def cell(value: object) -> str:
    """A value as a text of one line."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(value)
    return msgspec.json.encode(value).decode()


def readable(text: str) -> str:
    """A text without the characters that control a terminal, except line ends and tabs."""
    return "".join(
        sign if sign.isprintable() or sign in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for sign in text
    )


def megabytes(size: int | None) -> str:
    """A size in MiB, for people."""
    if size is None:
        return "-"
    return f"{size / 1024:.1f} GiB" if size >= 1024 else f"{size} MiB"
