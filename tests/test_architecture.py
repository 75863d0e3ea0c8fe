"""The map of the project names files that are there."""

from __future__ import annotations

import re

from tests import ROOT

MAP = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
FILES = [
    path.relative_to(ROOT).as_posix()
    for folder in ("src/steerserve", "tests", "tools", "benchmarks", "docs", "ui/src")
    for path in (ROOT / folder).rglob("*")
    if "__pycache__" not in path.parts
] + [path.name for path in ROOT.iterdir()]
ENDINGS = {
    file[at:] for file in FILES for at in (0, *(i + 1 for i, c in enumerate(file) if c == "/"))
}
NAMED = sorted(set(re.findall(r"`([a-z_0-9/]+(?:\.py|/))`", MAP)))
BUILT = {"src/steerserve/webui/"}
"""Folders that a build makes."""


def test_every_path_of_the_map_exists() -> None:
    assert NAMED
    assert [name for name in NAMED if name not in BUILT and name.rstrip("/") not in ENDINGS] == []
