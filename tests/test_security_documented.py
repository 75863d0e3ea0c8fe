"""docs/security.md: every promise names the files that keep it and the tests that show it, and they exist."""

from __future__ import annotations

import re
from pathlib import Path

from steerserve.settings import Settings

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/security.md").read_text()
PARTS = re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)


def test_every_file_that_the_page_names_exists() -> None:
    files = re.findall(r"`([\w/]+\.py|[\w/]+/)`", PAGE)
    assert len(files) > 40
    places = [ROOT, ROOT / "src/steerserve"]
    missing = [file for file in files if not any((place / file).exists() for place in places)]
    assert missing == []


def test_every_place_where_text_is_kept_has_a_switch_that_exists() -> None:
    (places,) = re.findall(r"\n\| where text is kept .*?\n\n", PAGE, re.DOTALL)
    rows = [row.strip("| ").split(" | ") for row in places.strip().splitlines()[2:]]
    settings = {name.upper() for name in Settings.model_fields} | {"STEERSERVE_HISTORY"}
    without = [row[0] for row in rows if not settings & set(re.findall(r"[A-Z_]{5,}", row[-1]))]
    assert without == ["the page of a browser"]


def test_every_promise_names_its_test_and_every_part_says_what_is_not_promised() -> None:
    assert len(PARTS) == 7
    for name, text in PARTS:
        promises = re.findall(r"^\*\*.*?(?=\n\n)", text, re.MULTILINE | re.DOTALL)
        assert promises, name
        for promise in promises:
            assert "Shown by `tests/" in " ".join(promise.split()), promise
        assert "\nNot promised:\n" in text, name
