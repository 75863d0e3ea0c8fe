"""How answers look in a notebook. All texts are escaped, and no HTML has a script."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import msgspec

CELL = 120
"""The most characters of a cell of a table."""
LISTED = 10
"""The most entries of a list that are shown as text."""
TELLING = (
    "id",
    "sae_id",
    "request_id",
    "feature_idx",
    "index",
    "name",
    "label",
    "layer",
    "status",
    "state",
)
"""Fields that tell the entries of a list apart."""
EMPTY: tuple[object, ...] = (None, [], {})
"""Values that are not shown."""
_PLAIN = 'style="text-align:left;vertical-align:top"'
_COLOUR = "255,140,0"
_OTHER_COLOUR = "30,100,220"


def facts(entry: object) -> dict[str, object]:
    """An entry as a row: its fields, or itself under the name `value`."""
    plain = msgspec.to_builtins(entry)
    return plain if isinstance(plain, dict) else {"value": plain}


def cell(value: Any) -> str:
    """The escaped text of a value, which is cut after `CELL` characters. Of tokens with numbers, such as those that a
    feature promotes, only these are shown."""
    if isinstance(value, float):
        value = f"{value:.6g}"
    elif _are_tokens(value):
        value = ", ".join(f"{one['token']!r} {one['value']:.3g}" for one in value)
    elif isinstance(value, dict | list):
        value = json.dumps(value, ensure_ascii=False)
    text = "" if value is None else str(value)
    return escape(text if len(text) <= CELL else f"{text[: CELL - 1]}…")


def _are_tokens(value: object) -> bool:
    return (
        isinstance(value, list)
        and value != []
        and all(isinstance(one, dict) and {"token", "value"} <= one.keys() for one in value)
    )


def listing(entries: Sequence[object]) -> str:
    """The number of entries, and the first ones by the fields that tell them apart. All fields are in each entry."""
    lines = [f"  {_brief(entry)}" for entry in entries[:LISTED]]
    if len(entries) > LISTED:
        lines.append(f"  and {len(entries) - LISTED} more")
    return "\n".join([f"Listing of {len(entries)}" + (":" if lines else ""), *lines])


def _brief(entry: object) -> str:
    own = entry.__struct_fields__ if isinstance(entry, msgspec.Struct) else ()
    told = {name: getattr(entry, name) for name in TELLING if name in own}
    known = {name: value for name, value in told.items() if value is not None}
    if not known:
        text = repr(entry)
        return text if len(text) <= CELL else f"{text[: CELL - 1]}…"
    said = ", ".join(f"{name}={value!r}" for name, value in known.items())
    return f"{type(entry).__name__}({said}, …)"


def table(entries: Iterable[object]) -> str:
    """A table with a row for each entry, without the columns in which no entry has anything."""
    rows = [facts(entry) for entry in entries]
    names = {name: None for row in rows for name, value in row.items() if value not in EMPTY}
    head = "".join(f"<th {_PLAIN}>{escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td {_PLAIN}>{cell(row.get(name))}</td>" for name in names) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def card(title: str, entry: object) -> str:
    """A card: a title, and a line for each fact that is known."""
    lines = "".join(
        f"<tr><th {_PLAIN}>{escape(name)}</th><td {_PLAIN}>{cell(value)}</td></tr>"
        for name, value in facts(entry).items()
        if value not in EMPTY
    )
    return f"<div><strong>{escape(title)}</strong><table><tbody>{lines}</tbody></table></div>"


def columns(titles: Sequence[str], texts: Sequence[str]) -> str:
    """Texts side by side, each under its title."""
    head = "".join(f"<th {_PLAIN}>{escape(title)}</th>" for title in titles)
    style = 'style="text-align:left;vertical-align:top;white-space:pre-wrap"'
    body = "".join(f"<td {style}>{text}</td>" for text in texts)
    return f"<table><thead><tr>{head}</tr></thead><tbody><tr>{body}</tr></tbody></table>"


def tokens(pieces: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """A text whose tokens are coloured by their largest activation. The tooltip of a token has its activations.

    Args:
        pieces: the text of each token, and its activations by the names of the features.
    """
    strengths = [max((value for value in read.values()), default=0.0) for _, read in pieces]
    most = max(strengths, default=0.0) or 1.0
    spans = []
    for (text, read), strength in zip(pieces, strengths, strict=True):
        share = round(max(strength, 0.0) / most, 3)
        title = ", ".join(f"{name}: {value:.4g}" for name, value in read.items())
        style = f"background:rgba({_COLOUR},{share})"
        spans.append(f'<span style="{style}" title="{escape(title)}">{escape(text)}</span>')
    return f'<div style="white-space:pre-wrap">{"".join(spans)}</div>'


def heat_map(
    title: str, titles: Sequence[str], rows: Mapping[str, Sequence[tuple[float, str]]]
) -> str:
    """A table of coloured cells, each of a number and a tooltip: orange above 0 and blue below, full at 1 and -1. The
    keys of `rows` name the rows."""
    head = "".join(f'<th style="writing-mode:vertical-rl">{escape(one)}</th>' for one in titles)
    body = []
    for name, cells in rows.items():
        marks = []
        for value, tooltip in cells:
            colour = _COLOUR if value > 0 else _OTHER_COLOUR
            style = f"background:rgba({colour},{round(min(abs(value), 1.0), 3)})"
            marks.append(f'<td style="{style}" title="{escape(tooltip)}"></td>')
        body.append(f"<tr><th>{escape(name)}</th>{''.join(marks)}</tr>")
    return (
        f"<div><strong>{escape(title)}</strong><table><thead><tr><th></th>{head}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def frame(entries: Iterable[object]) -> Any:
    """A `pandas.DataFrame` with a row for each entry.

    Raises:
        ImportError: pandas is not installed.
    """
    return importlib.import_module("pandas").DataFrame([facts(entry) for entry in entries])
