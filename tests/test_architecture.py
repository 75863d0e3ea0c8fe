"""The pages for developers name files that are there."""

from __future__ import annotations

import re

from tests import ROOT

PAGES = [ROOT / "docs" / "architecture.md", *(ROOT / "docs" / "development").glob("*.md")]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
FILES = [
    path.relative_to(ROOT).as_posix()
    for folder in ("src/steerserve", "tests", "tools", "benchmarks", "docs", "ui/src")
    for path in (ROOT / folder).rglob("*")
    if "__pycache__" not in path.parts
] + [path.name for path in ROOT.iterdir()]
ENDINGS = {
    file[at:] for file in FILES for at in (0, *(i + 1 for i, c in enumerate(file) if c == "/"))
}
NAMED = sorted(set(re.findall(r"`([a-z_0-9/]+(?:\.py|\.toml|/))`", TEXT)))
BUILT = {"src/steerserve/webui/"}
"""Folders that a build makes."""
BLOCKS = re.findall(r"^```\w*\n(.*?)^```", TEXT, re.M | re.S)
FLOORS = "app|openai|api|events|http|control|nouns|database|engines|messages|rules|worker"
IN_FLOWS = {
    name for block in BLOCKS for name in re.findall(rf"(?<![\w/])(?:{FLOORS})/[\w/]+", block)
}
"""The modules of the diagrams, which have no ending there."""


def test_every_path_of_the_pages_exists() -> None:
    assert NAMED
    assert [name for name in NAMED if name not in BUILT and name.rstrip("/") not in ENDINGS] == []


def test_every_module_of_a_flow_exists() -> None:
    assert len(IN_FLOWS) > 30
    assert [name for name in sorted(IN_FLOWS) if not {name, f"{name}.py"} & ENDINGS] == []
