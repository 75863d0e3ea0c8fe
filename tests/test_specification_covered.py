"""The markers of the tests name sentences of the specification, and the list of sentences is the whole specification."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs import coverage

SPECIFICATION = Path(__file__).parents[2] / "shared" / "specification.md"
_CELLS = re.compile(r"(?<!\\)\|")
_ITEM = re.compile(r"\s*(?:[-*]|\d+\.)\s+(.*)")


def test_each_marker_names_a_sentence() -> None:
    known = {sentence.id for sentence in coverage.sentences()}
    assert {id: tests for id, tests in coverage.shown().items() if id not in known} == {}


def test_each_promise_is_shown_by_a_test_or_has_a_reason() -> None:
    shown = coverage.shown()
    promises = [one for one in coverage.sentences() if one.kind == coverage.PROMISE]
    assert [one.id for one in promises if one.id not in shown] == list(coverage.NOT_SHOWN)


def test_the_tests_that_a_reason_names_exist() -> None:
    for reason in coverage.NOT_SHOWN.values():
        for file, test in re.findall(r"`([\w/]+\.py)::(\w+)`", reason):
            assert f"def {test}(" in (coverage.TESTS / file).read_text(encoding="utf-8")


def test_the_page_is_fresh() -> None:
    assert coverage.PAGE.read_text(encoding="utf-8") == coverage.page(), "run `make docs`"


def test_each_sentence_has_an_id_of_its_own() -> None:
    ids = [sentence.id for sentence in coverage.sentences()]
    assert len(ids) == len(set(ids))
    assert {sentence.kind for sentence in coverage.sentences()} == {"promise", "remark"}


def test_the_markers_of_a_test_are_read() -> None:
    module = ast.parse(
        "@pytest.mark.shows('a.1', 'b.2 b.3')\nasync def test_one(): ...\n"
        "@pytest.mark.slow\ndef test_two(): ...\n"
    )
    assert list(coverage.marked(module)) == [("test_one", ["a.1", "b.2", "b.3"])]


@pytest.mark.skipif(
    not SPECIFICATION.exists(), reason="the specification is not beside the project"
)
def test_the_sentences_are_those_of_the_specification() -> None:
    listed = [sentence.text for sentence in coverage.sentences()]
    assert listed == list(texts(SPECIFICATION.read_text(encoding="utf-8")))


# ------------------------------------------------------------- reading the specification


def texts(document: str) -> Iterator[str]:
    """Each sentence of a Markdown document, and each row of its tables."""
    head: list[str] = []
    paragraph: list[str] = []
    for line in [*document.splitlines(), ""]:
        item = _ITEM.match(line)
        if not line.strip() or line.startswith(("#", "|")) or item:
            yield from split(" ".join(paragraph))
            paragraph = []
        if line.startswith("|"):
            cells = [cell.strip() for cell in _CELLS.split(line.strip().strip("|"))]
            if head and not set("".join(cells)) <= set("-: "):
                yield row(head, cells)
            head = head or cells
            continue
        head = []
        if item:
            yield from split(item.group(1))
        elif line.strip() and not line.startswith("#"):
            paragraph.append(line.strip())


def row(head: list[str], cells: list[str]) -> str:
    """The row of a table as one text: its first cell, then each cell that is not empty under its heading."""
    others = [f"{name}: {cell}" for name, cell in zip(head[1:], cells[1:], strict=False) if cell]
    return " -- ".join([cells[0], "; ".join(others)] if others else cells[:1])


def split(paragraph: str) -> Iterator[str]:
    """The sentences of a paragraph. A sentence ends with a mark outside of brackets and code before a capital
    letter."""
    begin = depth = 0
    is_code = False
    for at, character in enumerate(paragraph):
        is_code ^= character == "`"
        if is_code:
            continue
        depth += (character in "([{") - (character in ")]}" and depth > 0)
        follows = paragraph[at + 1 : at + 3]
        is_last = not follows or (
            follows[0] == " " and (follows[1:].isupper() or follows[1:] in "`'\"/")
        )
        if character in ".?!" and depth == 0 and is_last:
            yield paragraph[begin : at + 1].strip()
            begin = at + 1
    if paragraph[begin:].strip():
        yield paragraph[begin:].strip()
