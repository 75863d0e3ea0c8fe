"""docs/decisions/recorded-bugs.md: each recorded fault has its row, and the tests that the rows name exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/decisions/recorded-bugs.md").read_text()
ROWS = re.findall(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
COMPILED = re.compile(r"torch\.(compile\(|jit|_dynamo)|is_compileable = True")
RECORDED = re.compile(r"torch\.cuda\.graph|CUDAGraph")


@cache
def names(path: str) -> frozenset[str]:
    """The tests that a file defines."""
    return frozenset(
        re.findall(r"^(?:async )?def (test_\w+)", (ROOT / path).read_text(), re.MULTILINE)
    )


def test_the_page_has_every_number_once_and_in_order() -> None:
    assert [int(number) for number, _, _ in ROWS] == list(range(1, 55))
    assert len(ROWS) == len(re.findall(r"^\| *\d", PAGE, re.MULTILINE))


def test_every_fault_has_a_test_that_exists_or_is_excluded_by_design() -> None:
    for number, _, here in ROWS:
        tests = TEST.findall(here)
        assert tests or here.startswith("Excluded by design: "), number
        assert len(tests) == here.count("`tests/"), number
        missing = [f"{path}::{name}" for path, name in tests if name not in names(path)]
        assert missing == [], number


def test_no_code_compiles_a_model() -> None:
    files = list((ROOT / "src/steerserve").rglob("*.py"))
    assert len(files) > 100
    assert [file.name for file in files if COMPILED.search(file.read_text())] == []
    assert [file.name for file in files if RECORDED.search(file.read_text())] == ["recording.py"]
