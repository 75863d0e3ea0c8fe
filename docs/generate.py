"""Writes the tables of docs/ that are made from code: `python -m docs.generate`.

docs/errors.md comes from `errors.TABLE`, docs/settings.md from the fields of `Settings`, the tables of docs/limits.md
from `rules/bounds.py`, and tests/specification-coverage.md, which is for developers, from the markers of the tests.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from docs import coverage
from steerserve.errors import TABLE, Retry, Row
from steerserve.rules import bounds
from steerserve.settings import Settings
from steerserve.settings.limits import RequestLimits

FOLDER = Path(__file__).parent
RETRY_SOURCES = {
    Retry.NONE: "",
    Retry.QUEUE: "the estimated wait, at most `RETRY_AFTER_MAX_S`; without one `RETRY_AFTER_QUEUE_DEFAULT_S`",
    Retry.LOAD: "`RETRY_AFTER_LOAD_S` for a load, `RETRY_AFTER_UNLOAD_S` for an unload",
    Retry.NOT_LOADED: "`RETRY_AFTER_NOT_LOADED_S`",
    Retry.MEMORY: "`RETRY_AFTER_MEMORY_S`",
    Retry.HUB: "the time until the circuit breaker lets a call through",
    Retry.READINESS: "`RETRY_AFTER_READINESS_S`",
    Retry.DATABASE: "`RETRY_AFTER_DATABASE_S`; where it is not set `RETRY_AFTER_FALLBACK_S`",
    Retry.CONNECTIONS: "`RETRY_AFTER_CONNECTIONS_S`",
    Retry.FALLBACK: "`RETRY_AFTER_FALLBACK_S`",
}
DERIVED_DEFAULTS = {
    "steerserve_home": "`steerserve` in the user's data directory",
    "model_cache_dir": "`models` in `STEERSERVE_HOME`",
    "sae_cache_dir": "`saes` in `STEERSERVE_HOME`",
    "lens_cache_dir": "`lenses` in `STEERSERVE_HOME`",
    "database_url": "`steerserve.db` in `STEERSERVE_HOME`",
}
"""Defaults that depend on the machine, in words."""

TYPE_NAMES = {
    int: "integer",
    float: "number",
    bool: "boolean",
    str: "text",
    Path: "path",
    list[str]: "list, separated by commas",
    list[Path]: "list of paths, separated by colons",
    dict[str, float]: "JSON object of numbers",
    SecretStr: "secret text",
    list[SecretStr]: "secret list, separated by commas",
}
_LIMITS = (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))


def errors_page() -> str:
    """Every error code, and how both APIs answer it."""
    rows = [error_row(row) for row in TABLE.values()]
    return page(
        "Errors",
        "Every refusal carries a code of this table. Under `/api` the code is `error.code` of the\n"
        "[envelope](index.md#two-apis). Under `/v1` it is `error.code` of the protocol's error body, in the\n"
        "form of the fourth column. Some refusals under `/api` come with status 200; check `success`. Every 503\n"
        "has a `Retry-After` in whole seconds. A code marked *may pass* has none, and the same request may succeed\n"
        "later. All others are answered with `x-should-retry: false`, because the same request sent again cannot\n"
        "succeed; clients of OpenAI, which repeat 408, 409 and 5xx by themselves, then do not.",
        ("code", "`/api`", "`/v1`", "`/v1` code", "`/v1` type", "`Retry-After`", "meaning"),
        rows,
    )


def error_row(row: Row) -> tuple[str, ...]:
    source = RETRY_SOURCES[row.retry] if 503 in (row.api, row.v1) else ""
    meaning = f"{row.meaning} (*may pass*)" if row.may_pass else row.meaning
    return (
        f"`{row.code}`",
        str(row.api),
        str(row.v1),
        f"`{row.v1_code}`",
        f"`{row.v1_type}`",
        source,
        meaning,
    )


def settings_page() -> str:
    """Every setting, from its field."""
    # the limits of requests and connections are the last rows
    fields = sorted(
        Settings.model_fields.items(), key=lambda item: item[0] in RequestLimits.model_fields
    )
    rows = [setting_row(name, field) for name, field in fields]
    return page(
        "Settings",
        "Settings are environment variables, or lines of a file `.env` in the working directory. The\n"
        "environment wins. They are read once, at the start. A value out of its bounds ends the start with a\n"
        "sentence that names the setting. A name in `.env` that is no setting is logged as `unknown_setting`\n"
        "with the nearest name.\n\n"
        "Give a secret as a file: put the token, the keys or the URL into a file that only the account of\n"
        "the service can read, and name the file in `HUB_TOKEN_FILE`, `API_KEYS_FILE` or\n"
        "`DATABASE_URL_FILE`. Secrets of Docker and Kubernetes are such files\n"
        "(`HUB_TOKEN_FILE=/run/secrets/hub_token`). A secret in the environment stays readable in\n"
        "`/proc/<pid>/environ` for root and for every process of the same user, as long as the service runs. A\n"
        "file that is missing, empty or larger than 64 KiB ends the start, and so does a secret that is given\n"
        "in both ways. A file that other accounts can open is logged as `secret_file_open_to_others`.\n"
        "`steerserve doctor` tells where each secret comes from.\n\n"
        "`STEERSERVE_UI` is read by the installation, not by the service: it says whether the\n"
        "installation builds the [web page](web.md#how-it-is-built).",
        ("setting", "type", "default", "meaning"),
        rows,
    )


def setting_row(name: str, field: FieldInfo) -> tuple[str, ...]:
    bounds = [
        f"{words} {getattr(part, bound):,}"
        for bound, words in _LIMITS
        for part in field.metadata
        if getattr(part, bound, None) is not None
    ]
    kind = ", ".join([type_name(field.annotation), *bounds])
    default = DERIVED_DEFAULTS.get(name) or shown(field.default)
    # the docstring of the setting, whose lines are wrapped
    return f"`{name.upper()}`", kind, default, " ".join((field.description or "").split())


def type_name(annotation: Any) -> str:
    if typing.get_origin(annotation) is typing.Literal:
        return " or ".join(f"`{choice}`" for choice in typing.get_args(annotation))
    if isinstance(annotation, types.UnionType):
        return type_name(next(a for a in typing.get_args(annotation) if a is not type(None)))
    return TYPE_NAMES[annotation]


def shown(default: Any) -> str:
    if default in (None, [], {}):
        return "none"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default}`"


BOUNDS_HEAD = {
    "connections": ("what a client does", "bound", "what happens", "test"),
    "bodies": ("what a client does", "bound", "what happens", "test"),
    "documents": ("document", "bound", "what happens beyond it", "test"),
    "files": ("what a client does", "bound", "what happens beyond it", "test"),
    "stored": ("what is stored or listed", "bound", "what happens at the bound", "test"),
    "kept": ("what is kept", "bound", "beyond it", "test"),
    "links": ("part of the link", "bound", "beyond it", "test"),
}
_BOUNDS_TABLE = re.compile(r"(?<=<!-- bounds: )(\w+) -->\n.*?(?=<!-- end of bounds -->)", re.DOTALL)
_NAME = re.compile(r"\{(\w+):?(\w*)\}")


def limits_page() -> str:
    """The page of the limits as it is, with the tables of `BOUNDS` in it."""
    stored = (FOLDER / "limits.md").read_text(encoding="utf-8")
    return _BOUNDS_TABLE.sub(lambda found: f"{found[1]} -->\n{bounds_table(found[1])}\n", stored)


def bounds_table(group: str) -> str:
    rows = (
        (row.what, bound_words(row.bound), row.beyond, f"`{row.test}`")
        for row in bounds.BOUNDS
        if row.group == group
    )
    return table(BOUNDS_HEAD[group], rows)


def bound_words(bound: str) -> str:
    """A bound with the numbers of the constants and the settings that it names in braces."""

    def number(found: re.Match[str]) -> str:
        name, unit = found[1], found[2]
        if name not in vars(bounds):
            default = Settings.model_fields[name.lower()].default
            return f"`{name}`" if unit == "name" else f"`{name}` ({in_unit(default, unit)})"
        return in_unit(vars(bounds)[name], unit)

    return _NAME.sub(number, bound)


def in_unit(value: float, unit: str) -> str:
    """A number as the page shows it: `64 KiB`, `8 MB`, `20 s`, `16,384`."""
    match unit:
        case "bytes" if value % (1 << 20) == 0:
            return f"{value // (1 << 20):,} MiB"
        case "bytes" if value % (1 << 10) == 0:
            return f"{value // (1 << 10):,} KiB"
        case "MB":
            return f"{value / 1e6:,g} MB"
        case "s":
            return f"{value:,g} s"
    return f"{value:,} {unit}".rstrip()


def page(title: str, words: str, head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A page with one table."""
    note = "<!-- Written by `make docs`; edit the code instead. -->"
    return f"# {title}\n\n{note}\n\n{words}\n\n{table(head, rows)}\n"


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(map(escaped, line))} |" for line in lines)


def escaped(cell: str) -> str:
    """A cell's text; a bar would end the cell."""
    return cell.replace("|", "\\|")


PAGES: dict[Path, Callable[[], str]] = {
    FOLDER / "errors.md": errors_page,
    FOLDER / "limits.md": limits_page,
    FOLDER / "settings.md": settings_page,
    coverage.PAGE: coverage.page,
}


def main() -> None:
    for file, text in PAGES.items():
        file.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
