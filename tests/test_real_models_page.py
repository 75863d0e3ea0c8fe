"""The figures of docs/real-models.md and of its row in the README are those of the newest run that was kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def test_the_page_and_the_readme_say_what_was_kept() -> None:
    kept = sorted((ROOT / "benchmarks" / "results").glob("*-real-sae.json"))[-1]
    found = json.loads(kept.read_text())
    page, readme = (ROOT / "docs" / "real-models.md").read_text(), (ROOT / "README.md").read_text()
    for row in found["rows"]:
        assert table_row(row) in page
    shares = found["concept_share"]
    told = f"{shares['plain']:.2f} -> {shares['steered']:.2f}"
    for text in (page, readme):
        assert told in text
        assert f"{max(shares['random']):.2f}" in text
    assert kept.name in page


def table_row(row: dict[str, Any]) -> str:
    share, other = (f"{100 * row[name]:g} %" for name in ("share", "random_share"))
    works = "yes" if row["works"] else "no"
    return f"| {row['feature']} | {row['strength']:g} | {share} | {other} | {works} | {row['damage']:.2f} |"
