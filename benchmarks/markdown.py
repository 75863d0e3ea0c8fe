"""Tables and paragraphs of the page of the performance."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from benchmarks.tables import Row


def medians(quantiles: Mapping[str, Mapping[str, float]]) -> tuple[str, str]:
    p50, p99 = (
        f"{quantiles[share]['median'] * 1e3:,.0f}" if share in quantiles else ""
        for share in ("p50", "p99")
    )
    return p50, p99


def tenths(values: Mapping[str, float]) -> str:
    return f"{values['median'] * 1e3:.1f}"


def two_columns(found: list[Row]) -> str:
    return table(("", ""), [(row.name, row.figure) for row in found])


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = tuple("---" for _ in head)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *lines))


def prose(text: str) -> str:
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)
