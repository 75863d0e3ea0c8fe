"""A notebook as a page of the manual, with the outputs that were kept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def page(text: str) -> str:
    """The Markdown of a notebook in the format nbformat 4."""
    return "\n\n".join(part for cell in json.loads(text)["cells"] for part in _parts(cell)) + "\n"


def _parts(cell: Mapping[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield _fence(source, "python")
    for output in cell["outputs"]:
        yield _shown(output)


def _shown(output: Mapping[str, Any]) -> str:
    """The richest form of an output that a page can show."""
    if output["output_type"] == "stream":
        return _fence("".join(output["text"]), "text")
    data = output["data"]
    if "text/html" in data:
        return f"<div>{''.join(data['text/html'])}</div>"
    return _fence("".join(data["text/plain"]), "text")


def _fence(text: str, language: str) -> str:
    mark = "```"
    while mark in text:
        mark += "`"
    return f"{mark}{language}\n{text.rstrip()}\n{mark}"
