"""Writes tests/specification-coverage.md: each sentence of the specification with the tests that show it.

`specification.txt` has the sentences. Each line is an id, a kind and the sentence, separated by tabs; a line with `#`
is a heading. A `promise` says what the service does; a `remark` speaks about the text of the specification. A test
names the sentences that it shows in a marker: `@pytest.mark.shows("models.3", "envelope.1")`. A text of the marker may
name several of them, with blanks between. `NOT_SHOWN` has the promises without a test, each with the reason.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent
TESTS = FOLDER.parent / "tests"
PAGE = TESTS / "specification-coverage.md"
PROMISE = "promise"
REMARK = "remark"
MARKER = "shows"

NOT_SHOWN = {
    "general-errors.12": (
        "Not shown, because no request can end this way. Every index is compared with the width of its SAE: in a "
        "request before its stream begins "
        "(`net/answers/test_checkpoint.py::test_an_answer_is_the_pinned_one`), in an operator's change before "
        "it reaches the engine "
        "(`nouns/steering/test_routes.py::test_a_bad_index_in_a_batch_changes_nothing`). An SAE is not detached or "
        "replaced before the streams in flight have ended "
        "(`nouns/attachments/test_owner.py::"
        "test_a_detach_waits_for_requests_in_flight_while_newcomers_wait_for_the_detach`). A "
        "stream that fails for another reason ends with an error event and `[DONE]` "
        "(`test_stalls.py::test_an_engine_that_stands_still_for_too_long_is_ended_like_a_crash`)."
    ),
}
"""The id of a promise -> why no test shows it."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence, or one row of a table, of the section with this heading."""

    id: str
    kind: str
    text: str
    heading: str


def sentences() -> list[Sentence]:
    """All sentences in their order."""
    heading, listed = "", []
    for line in (FOLDER / "specification.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            heading = line.removeprefix("# ")
        elif line:
            listed.append(Sentence(*line.split("\t"), heading))  # type: ignore[misc]
    return listed


@cache
def shown() -> Mapping[str, list[str]]:
    """The id of a sentence -> the tests that name it, as pytest names them. The tests are read once."""
    by_id: dict[str, list[str]] = {}
    for file in sorted(TESTS.rglob("test_*.py")):
        place = file.relative_to(TESTS.parent).as_posix()
        for test, ids in marked(ast.parse(file.read_text(encoding="utf-8"))):
            for one in ids:
                by_id.setdefault(one, []).append(f"{place}::{test}")
    return by_id


def marked(module: ast.Module) -> Iterator[tuple[str, list[str]]]:
    """Each test function of a module with the ids in its marker."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            ids = [one for decorator in node.decorator_list for one in _ids(decorator)]
            if ids:
                yield node.name, ids


def _ids(decorator: ast.expr) -> list[str]:
    is_marker = isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith(
        f"mark.{MARKER}"
    )
    given = decorator.args if is_marker else []  # type: ignore[attr-defined]
    return [one for texts in given for one in ast.literal_eval(texts).split()]


def page() -> str:
    """The text of tests/specification-coverage.md."""
    tests, heading, lines = shown(), "", list(_HEAD)
    for sentence in sentences():
        if sentence.heading != heading:
            heading = sentence.heading
            lines += ["", f"## {heading}", "", "| id | sentence | tests |", "|---|---|---|"]
        lines.append(_row(sentence, tests))
    return "\n".join(lines) + "\n"


def _row(sentence: Sentence, tests: Mapping[str, list[str]]) -> str:
    listed = "<br>".join(f"`{one.removeprefix('tests/')}`" for one in tests.get(sentence.id, []))
    if sentence.kind == REMARK:
        listed = "a remark about the text"
    elif sentence.id in NOT_SHOWN:
        listed = NOT_SHOWN[sentence.id]
    text = sentence.text.replace("|", "\\|")
    return f"| {sentence.id} | {text} | {listed} |"


_HEAD = (
    "# Specification coverage",
    "",
    "Each sentence of the specification, and each row of its tables, with the tests that show it.",
    "`make docs` writes this page from `docs/specification.txt` and from the markers `shows` of the tests. A promise",
    "that no test shows has the reason in place of tests.",
)
